"""``divulge.oracle``: from whatever the user has (a module, an estimator, a file, an address) to an Oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from divulge.errors import InvalidInput, UnsupportedModel
from divulge.oracles.base import Access, Oracle, check_access
from divulge.oracles.callable_model import CallableOracle
from divulge.oracles.files import load_model
from divulge.oracles.sklearn_model import estimator_oracle, is_estimator
from divulge.oracles.torch_model import Precision, TorchOracle, checked_precision


def oracle(
    source: Any,
    *,
    access: Access = "value",
    budget: int | None = None,
    precision: Precision = "native",
    input_shape: Sequence[int] | None = None,
    device: str | None = None,
    output: str | None = None,
    gradient: Callable[[Any], Any] | None = None,
    batch_size: int | None = None,
    check_deterministic: bool = False,
    trust_pickle: bool = False,
    journal: str | Path | None = None,
    token_env: str | None = None,
    rate_limit: float | None = None,
    concurrency: int | None = None,
    timeout: float | None = None,
    retries: int | None = None,
    gradient_output: str | None = None,
    label_output: str | None = None,
    input_name: str | None = None,
    columns: Sequence[str] | None = None,
    output_dim: int | None = None,
    threshold: float | None = None,
) -> Oracle:
    """The oracle for ``source``: the only way an attack touches a target it does not own.

    ``source`` is an nn.Module, a fitted scikit-learn estimator, a function on arrays (give ``input_shape``, and
    ``gradient`` if gradients may be asked), or a name: a model folder or file, an ``http://`` address, or
    ``module:function``. ``access`` is what the attacker may see and ``budget`` how many rows may be asked in total.

    ``precision="double"`` asks a float64 copy of the model. ``output`` is what a torch or scikit-learn classifier
    shows ("logits", "probabilities" or "log-probabilities"), or the name of the output to read of an ONNX or remote
    model. ``batch_size`` is how many rows are computed or sent at once. ``check_deterministic`` asks one row twice,
    and charges both.
    The options from ``journal`` on are for remote models only, as ``divulge.oracles.http_model.HttpOracle`` explains.
    """
    check_access(access)
    checked_precision(precision)
    remote = {
        "journal": journal,
        "token_env": token_env,
        "rate_limit": rate_limit,
        "concurrency": concurrency,
        "timeout": timeout,
        "retries": retries,
        "gradient_output": gradient_output,
        "label_output": label_output,
        "input_name": input_name,
        "columns": columns,
        "output_dim": output_dim,
        "threshold": threshold,
    }
    if is_address(source):
        from divulge.oracles.http_model import HttpOracle

        _refuse("a remote model", {"gradient": gradient})
        shared = {"output": output, "batch_size": batch_size, "input_shape": input_shape, "device": device}
        chosen: dict[str, Any] = {name: value for name, value in {**remote, **shared}.items() if value is not None}
        asked: Oracle = HttpOracle(source, access=access, budget=budget, precision=precision, **chosen)
    else:
        _refuse("a local model", remote)
        asked = _local(
            load_model(source, trust_pickle=trust_pickle) if not _is_onnx(source) else source,
            {"access": access, "budget": budget, "batch_size": batch_size},
            precision=precision,
            input_shape=input_shape,
            device=device,
            output=output,
            gradient=gradient,
        )
    if check_deterministic:
        asked.check_deterministic()
    return asked


def is_address(source: Any) -> bool:
    return isinstance(source, str) and source.lower().startswith(("http://", "https://"))


def _is_onnx(source: Any) -> bool:
    return isinstance(source, str | Path) and Path(source).suffix.lower() == ".onnx"


def _local(
    model: Any,
    options: dict[str, Any],
    *,
    precision: Precision,
    input_shape: Sequence[int] | None,
    device: str | None,
    output: str | None,
    gradient: Callable[[Any], Any] | None,
) -> Oracle:
    if _is_onnx(model):
        from divulge.oracles.onnx_model import OnnxOracle

        _refuse("an ONNX model", {"gradient": gradient})
        return OnnxOracle(model, **options, precision=precision, input_shape=input_shape, device=device, output=output)
    if isinstance(model, nn.Module):
        _refuse("a torch model", {"gradient": gradient})
        return TorchOracle(model, **options, precision=precision, input_shape=input_shape, device=device, output=output)
    if is_estimator(model):
        _refuse("a scikit-learn estimator", {"gradient": gradient, "input_shape": input_shape})
        return estimator_oracle(model, **options, device=device, output=output)
    if isinstance(model, Oracle):
        raise InvalidInput("This is an oracle already; put a guard around it, or ask it directly.")
    if callable(model) and not isinstance(model, type):
        _refuse("a function", {"output": output, "device": device})
        if input_shape is None:
            raise InvalidInput("A function does not say what it takes; pass input_shape=(...) as one input has it.")
        return CallableOracle(model, **options, precision=precision, input_shape=input_shape, gradient=gradient)
    raise UnsupportedModel(
        f"There is no oracle for {_described(model)}; give an nn.Module, a fitted scikit-learn estimator, a function "
        "on arrays, a model file or folder, or an http(s) address."
    )


def _refuse(what: str, options: dict[str, Any]) -> None:
    """An option that would do nothing is an error, not a silence."""
    for name, value in options.items():
        if value is not None:
            raise InvalidInput(f"{name}= is not for {what}; leave it out.")


def _described(model: Any) -> str:
    return f"the class {model.__name__} itself" if isinstance(model, type) else f"a {type(model).__name__}"
