"""``divulge.oracle``: from whatever the user has (a module, an estimator, a file, an address) to an Oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import nn

from divulge.core.errors import InvalidInput, UnsupportedModel
from divulge.oracles.adapt import adapted
from divulge.oracles.arguments import Precision, checked_precision
from divulge.oracles.base import Access, Oracle, check_access
from divulge.oracles.load_model import KINDS, load_model
from divulge.oracles.local.function import CallableOracle
from divulge.oracles.local.sklearn_estimator import estimator_oracle, is_estimator
from divulge.oracles.local.torch_module import TorchOracle
from divulge.oracles.local.trees import TreeOracle, is_boosted
from divulge.oracles.options import REMOTE_ONLY, OracleOptions
from divulge.oracles.registry import open_by_plugin

if TYPE_CHECKING:
    import pandas as pd


def oracle(
    source: object,
    *,
    access: Access = "value",
    budget: int | None = None,
    precision: Precision = "native",
    input_shape: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
    device: str | None = None,
    output: str | None = None,
    gradient: Callable[..., object] | None = None,
    batch_size: int | None = None,
    table: pd.DataFrame | None = None,
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
    request: object = None,
    response: str | None = None,
    fixed: Mapping[str, object] | None = None,
) -> Oracle:
    """The oracle for a model: the only way in which an attack queries its target.

    Parameters
    ----------
    source : nn.Module, fitted estimator, callable, str or Path
        The model: a torch module, a Keras or transformers model, a fitted scikit-learn, XGBoost, LightGBM or CatBoost
        model, a function on arrays (give ``input_shape``), or a name: a model folder or file, an ``http://`` address,
        or ``module:function``. Plug-ins add more (``divulge.oracles.register``).
    access : {"label", "value", "gradient", "weights"}, default "value"
        What the attacker may see. Each level includes the ones before it.
    budget : int or None, default None
        The most rows that may be asked in total. None sets no limit.
    precision : {"native", "double"}, default "native"
        "double" asks a float64 copy of the model.
    input_shape : sequence of int, mapping or None, default None
        The shape of one input, where the model does not state it; by name, for a model of several inputs.
    device : str or None, default None
        Where a torch model is asked; its own device by default.
    output : str or None, default None
        What a torch or scikit-learn classifier shows: "logits", "probabilities" or "log-probabilities". For an ONNX
        or remote model, the name of the output to read.
    gradient : callable or None, default None
        The gradient of a function: from rows [n, d] to gradients [n, k, d].
    batch_size : int or None, default None
        Rows computed or sent at once.
    table : pandas.DataFrame or None, default None
        Example rows, for an estimator that takes a table of mixed columns. The oracle then asks with one number in
        [0, 1] a column; ``oracle.view`` says which number stands for which value.
    check_deterministic : bool, default False
        Ask one row twice first, charge both, and refuse a model that answers differently.
    trust_pickle : bool, default False
        Load files that can run code.
    journal, token_env, rate_limit, concurrency, timeout, retries, gradient_output, label_output, input_name, columns, \
output_dim, threshold, request, response
        For remote models only, as for ``divulge.oracles.remote.http.HttpOracle``.
    fixed : mapping or None, default None
        For ONNX models of several inputs: those that are the same for every row, by name, such as ``{"sr": 16000}``.

    Returns
    -------
    Oracle

    Raises
    ------
    UnsupportedModel
        If there is no oracle for the source.
    AccessDenied
        If the source cannot give the access.
    UntrustedFile
        If a file could run code and ``trust_pickle`` is False.
    InvalidInput
        If an option makes no sense, or is not for this kind of source.

    Examples
    --------
    >>> import divulge, torch
    >>> oracle = divulge.oracle(torch.nn.Linear(3, 2), access="gradient", budget=100)
    >>> values, gradients = oracle.gradient([[1.0, 2.0, 3.0]])
    >>> values.shape, gradients.shape, oracle.ledger.gradient
    (torch.Size([1, 2]), torch.Size([1, 2, 3]), 1)
    """
    check_access(access)
    checked_precision(precision)
    options = OracleOptions(
        access, budget, precision, input_shape, device, output, gradient, batch_size, table, trust_pickle, journal,
        token_env, rate_limit, concurrency, timeout, retries, gradient_output, label_output, input_name, columns,
        output_dim, threshold, request, response, fixed,
    )  # fmt: skip
    opened = _open(source, options)
    if check_deterministic:
        opened.check_deterministic()
    return opened


def is_address(source: object) -> TypeGuard[str]:
    """Whether this is the address of a remote model."""
    return isinstance(source, str) and source.lower().startswith(("http://", "https://"))


def _is_onnx(source: object) -> TypeGuard[str | Path]:
    return isinstance(source, str | Path) and Path(source).suffix.lower() == ".onnx"


def _open(source: object, options: OracleOptions) -> Oracle:
    plugged_in = open_by_plugin(source, options)
    if plugged_in is not None:
        return plugged_in
    if is_address(source):
        from divulge.oracles.remote.http import HttpOracle

        options.refuse("a remote model", "gradient", "table", "fixed")
        shared = ("access", "budget", "precision", "output", "batch_size", "input_shape", "device")
        return HttpOracle(source, **options.given(*shared, *REMOTE_ONLY))
    if not isinstance(source, str | Path) or _is_onnx(source):
        return _open_local(source, options)
    model = load_model(source, trust_pickle=options.trust_pickle)
    return open_by_plugin(model, options) or _open_local(model, options)


def is_plain_function(model: object) -> TypeGuard[Callable[[Any], Any]]:
    """Whether the model is a function on arrays, which does not say what one input looks like."""
    known = isinstance(model, nn.Module | Oracle | type) or is_boosted(model) or is_estimator(model)
    return callable(model) and not known


def _open_local(model: object, options: OracleOptions) -> Oracle:
    options.refuse("a local model", *REMOTE_ONLY)
    model = adapted(model)
    always = ("access", "budget", "batch_size")
    if _is_onnx(model):
        from divulge.oracles.onnx.oracle import OnnxOracle

        options.refuse("an ONNX model", "gradient", "table")
        return OnnxOracle(model, **options.given(*always, "precision", "input_shape", "device", "output", "fixed"))
    options.refuse("a model that is no ONNX file", "fixed")
    if isinstance(model, nn.Module):
        options.refuse("a torch model", "gradient", "table")
        return TorchOracle(model, **options.given(*always, "precision", "input_shape", "device", "output"))
    if is_boosted(model):
        options.refuse("a model of trees", "gradient", "input_shape", "device", "table")
        return TreeOracle(model, **options.given(*always, "output"))
    if is_estimator(model):
        options.refuse("a scikit-learn estimator", "gradient", "input_shape")
        return estimator_oracle(model, **options.given(*always, "device", "output", "table"))
    if isinstance(model, Oracle):
        raise InvalidInput("This is an oracle already; put a guard around it, or ask it directly.")
    if is_plain_function(model):
        options.refuse("a function", "output", "device", "table")
        if options.input_shape is None:
            raise InvalidInput("A function does not say what it takes; pass input_shape=(...) as one input has it.")
        return CallableOracle(model, **options.given(*always, "precision", "input_shape", "gradient"))
    raise UnsupportedModel(
        f"There is no oracle for {_described(model)}; give an nn.Module, a Keras or transformers model, a fitted "
        f"scikit-learn, XGBoost, LightGBM or CatBoost model, a function on arrays, or a name: {KINDS}."
    )


def _described(model: object) -> str:
    return f"the class {model.__name__} itself" if isinstance(model, type) else f"a {type(model).__name__}"
