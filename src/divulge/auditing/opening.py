"""Opening the model under audit: what the attacker may see of it, and what kind of model that turns out to be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from divulge.auditing.target import Kind, fit_data, kind_by_asking, kind_of_module
from divulge.errors import DivulgeError, InvalidInput, UnsupportedModel
from divulge.oracles import Access, Oracle, load_model, oracle
from divulge.oracles.base import check_access


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

    @property
    def name(self) -> str:
        return Path(self.origin).name if self.origin else type(self.source).__name__

    @property
    def estimator(self) -> Any:
        """The fitted scikit-learn estimator, where the target is one and its weights are granted."""
        if self.access != "weights" or isinstance(self.source, nn.Module):
            return None
        return self.source


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
    outside = remote or isinstance(source, str | Path) or (guard and "label" not in guard)
    access = access or ("value" if outside else "weights")
    check_access(access)
    if access == "weights" and (remote or guard):
        raise InvalidInput("Weights cannot be granted through an address or a guard; choose value, gradient or label.")
    make = _oracle_maker(source, {**options, **(remote_options if remote else {})}, guard=guard, seed=seed)
    first = make("gradient" if access == "weights" and not remote else access)
    module = _weights_of(source) if access == "weights" else None
    kind: Kind = kind_of_module(module) if module is not None else _kind_by_asking(make, access)
    return View(source, origin, access, make, first.input_dim, first.output_dim, module, kind)


def _loaded(path: str | Path, access: Access | None, *, trust_pickle: bool) -> Any:
    """The model in a file; the file's own name for an ONNX graph that can be asked but not read."""
    try:
        return load_model(path, trust_pickle=trust_pickle)
    except UnsupportedModel:
        if Path(path).suffix.lower() != ".onnx" or access in ("weights", "gradient"):
            raise
        return path


def _oracle_maker(source: Any, options: dict[str, Any], *, guard: str, seed: int) -> Any:
    def make(access: Access) -> Oracle:
        inner: Access = "value" if access == "label" and guard else access
        view = oracle(source, access=inner, **options)
        if guard:
            from divulge.oracles.guards import guard as guards

            view = guards(guard, seed=seed)(view)
        if access == "label" and view.access != "label":
            from divulge.oracles.guards import LabelOnly

            view = LabelOnly(view)
        return view

    return make


def _kind_by_asking(make: Any, access: Access) -> Kind:
    if access == "label":
        return "smooth"  # labels tell nothing of the kind; the label attacks are for smooth networks
    return kind_by_asking(make("value"))


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
    X, y = data
    inputs = fit_data(X, input_dim, "training data")
    labels = torch.as_tensor(y)
    if len(labels) != len(inputs):
        raise InvalidInput(f"The training data has {len(inputs)} rows and {len(labels)} labels.")
    return inputs, labels, shape, columns
