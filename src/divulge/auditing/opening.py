"""Opening the model under audit: what the attacker may see of it, and what kind of model that turns out to be."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from divulge.auditing.target import Kind, fit_data, kind_by_asking, kind_of_module
from divulge.errors import DivulgeError, InvalidInput, UnsupportedModel
from divulge.oracles import Access, Oracle, load_model, oracle
from divulge.oracles.base import check_access
from divulge.oracles.sklearn_model import is_estimator


@dataclass(frozen=True)
class View:
    """A target as the attacker may see it; ``make_oracle(access)`` gives each adversary a fresh, counted oracle."""

    source: Any
    origin: str
    """How the user named it: a path, an address, or nothing for an object."""
    access: Access
    make_oracle: Any
    input_dim: int
    output_dim: int
    module: nn.Module | None
    kind: Kind
    digest: str
    """Tells this model from another of the same name; empty for a remote one, which its journal tells apart."""
    asked: list[Oracle]
    """Every oracle that was made so far."""
    estimator: Any
    """The fitted scikit-learn estimator, where the target is one and less was not asked for."""

    @property
    def name(self) -> str:
        return Path(self.origin).name if self.origin else type(self.source).__name__


def view_of(
    source: Any, *, access: Access | None, guard: str, seed: int, trust_pickle: bool, options: dict[str, Any],
    remote_options: dict[str, Any],
) -> View:  # fmt: skip
    """Open ``source`` once and find out what it is."""
    from divulge.oracles.factory import is_address

    remote = is_address(source)
    origin = str(source) if isinstance(source, str | Path) else ""
    if origin and not remote:
        source = _loaded(source, access, trust_pickle=trust_pickle)
    if access is not None:
        check_access(access)
    if access == "weights" and (remote or guard):
        raise InvalidInput("Weights cannot be granted through an address or a guard; choose value, gradient or label.")
    asked: list[Oracle] = []
    make = _oracle_maker(source, {**options, **(remote_options if remote else {})}, asked, guard=guard, seed=seed)
    outside = remote or bool(guard) or isinstance(source, str | Path)
    estimator = source if access in ("weights", None) and not outside and is_estimator(source) else None
    module = _weights_of(source) if access in ("weights", None) and not outside else None
    access = access or _widest(make, guard, outside=outside, weights=module is not None)
    first = make("gradient" if access == "weights" else access)
    kind: Kind = kind_of_module(module) if module is not None else _kind_by_asking(make, access)
    digest = "" if remote else _digest(source, {**options, "budget": None})
    return View(source, origin, access, make, first.input_dim, first.output_dim, module, kind, digest, asked, estimator)


def _widest(make: Any, guard: str, *, outside: bool, weights: bool) -> Access:
    """All that the auditor can show: the weights, gradients, or values; labels where a guard leaves nothing else."""
    if weights:
        return "weights"
    if "label" in guard.split(","):
        return "label"
    if not outside:
        with suppress(InvalidInput):
            make("gradient")
            return "gradient"
    return "value"


def _loaded(path: str | Path, access: Access | None, *, trust_pickle: bool) -> Any:
    """The model in a file; the file's own name for an ONNX graph that can be asked but not read."""
    try:
        return load_model(path, trust_pickle=trust_pickle)
    except UnsupportedModel:
        if Path(path).suffix.lower() != ".onnx" or access in ("weights", "gradient"):
            raise
        return path


def _oracle_maker(source: Any, options: dict[str, Any], asked: list[Oracle], *, guard: str, seed: int) -> Any:
    def make(access: Access) -> Oracle:
        inner: Access = "value" if access == "label" and guard else access
        view = oracle(source, access=inner, **options)
        asked.append(view)
        if guard:
            from divulge.oracles.guards import guard as guards

            view = guards(guard, seed=seed)(view)
        if access == "label" and view.access != "label":
            from divulge.oracles.guards import LabelOnly

            view = LabelOnly(view)
        return view

    return make


def _kind_by_asking(make: Any, access: Access) -> Kind:
    return "unknown" if access == "label" else kind_by_asking(make("value"))


def _digest(source: Any, options: dict[str, Any]) -> str:
    """Of the weights where they are at hand, otherwise of some answers to the precision that every machine repeats."""
    if isinstance(source, nn.Module):
        state = hashlib.sha256(repr(source).encode())
        for name, tensor in source.state_dict().items():
            state.update(name.encode())
            state.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return state.hexdigest()
    asked = oracle(source, access="label", **options)
    rows = torch.randn(64, asked.input_dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    told: list[float] = asked.label(rows).tolist()
    with suppress(DivulgeError):  # some show decisions only
        told += oracle(source, access="value", **options).value(rows).flatten().tolist()
    return hashlib.sha256(" ".join(f"{answer:.5g}" for answer in told).encode()).hexdigest()


def _weights_of(source: Any) -> nn.Module | None:
    if isinstance(source, nn.Module):
        return source
    try:
        view = oracle(source, access="weights")
        weights: nn.Module = view.weights()
        return weights
    except (DivulgeError, AttributeError):
        return None


def training(data: Any, input_dim: int, shape: Any, columns: Any) -> tuple[Tensor | None, Tensor | None, Any, Any]:
    """Inputs, labels, shape and column names out of (X, y) or a data set."""
    if data is None:
        return None, None, shape, columns
    if hasattr(data, "train"):
        shape = shape if shape is not None else data.shape
        columns = columns or getattr(data, "columns", ()) or ()
        data = data.train
    try:
        X, y = data
        labels = torch.as_tensor(y if isinstance(y, Tensor) else np.array(y))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"Training data comes as (X, y), with numbers for labels: {error}.") from error
    inputs = fit_data(X, input_dim, "training data")
    columns = columns or tuple(map(str, getattr(X, "columns", ())))
    if len(labels) != len(inputs):
        raise InvalidInput(f"The training data has {len(inputs)} rows and {len(labels)} labels.")
    return inputs, labels, shape, columns


def unseen_of(data: Any, input_dim: int) -> tuple[Tensor | None, Tensor | None]:
    """The control, and its labels where it comes as (X, y)."""
    if data is None:
        return None, None
    if isinstance(data, tuple) and len(data) == 2:
        inputs, labels, _, _ = training(data, input_dim, None, ())
        return inputs, labels
    return fit_data(data, input_dim, "unseen data"), None
