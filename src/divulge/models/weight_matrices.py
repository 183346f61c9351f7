"""A ReLU network as weight matrices, read from the user's module.

Reading is strict. A layer that is neither linear nor a ReLU is named and refused. The outputs of the matrices are
compared with those of the module, so no attack runs on another network than the user's.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node, symbolic_trace

from divulge.core.errors import UnsupportedModel, WrongShape
from divulge.models import MLP, Bias

Gate = Callable[[Tensor], Tensor]


def step(Z: Tensor) -> Tensor:
    """The derivative of the ReLU, taken as 0 at 0."""
    return (Z > 0).to(Z.dtype)


@dataclass(frozen=True)
class Network:
    """Linear layers with ReLUs between them. ``biases[l]`` is None where layer l has none."""

    weights: tuple[Tensor, ...]  # [out, in] each
    biases: tuple[Tensor | None, ...]

    @property
    def input_dim(self) -> int:
        return int(self.weights[0].shape[1])

    @property
    def output_dim(self) -> int:
        return int(self.weights[-1].shape[0])

    @property
    def depth(self) -> int:
        return len(self.weights)

    @property
    def homogeneous(self) -> bool:
        """Whether scaling all parameters scales the output: no bias beyond the first layer."""
        return all(bias is None or not bool(bias.any()) for bias in self.biases[1:])

    def first(self) -> Tensor:
        """The first layer with its bias as the last column, [h, d + 1], or [h, d] where it has none."""
        bias = self.biases[0]
        return self.weights[0] if bias is None else torch.cat([self.weights[0], bias[:, None]], dim=1)

    def to(self, dtype: torch.dtype, device: str | torch.device | None = None) -> Network:
        return Network(
            tuple(weight.to(device=device, dtype=dtype) for weight in self.weights),
            tuple(None if bias is None else bias.to(device=device, dtype=dtype) for bias in self.biases),
        )

    def upper(self) -> Network:
        """The layers above the first."""
        return replace(self, weights=self.weights[1:], biases=self.biases[1:])

    def forward(self, X: Tensor) -> tuple[list[Tensor], Tensor]:
        """Pre-activations of every hidden layer and the output, for rows X [..., d]."""
        hidden: list[Tensor] = []
        H = X
        for weight, bias in zip(self.weights, self.biases, strict=True):
            Z = H @ weight.T
            if bias is not None:
                Z = Z + bias
            hidden.append(Z)
            H = torch.relu(Z)
        return hidden[:-1], hidden[-1]

    def __call__(self, X: Tensor) -> Tensor:
        return self.forward(X)[1]

    def backward(self, hidden: list[Tensor], signal: Tensor, gate: Gate = step) -> list[Tensor]:
        """The gradient of <signal, output> with respect to every layer's pre-activation, for a signal [..., k]."""
        deltas = [signal]
        for weight, Z in zip(reversed(self.weights[1:]), reversed(hidden), strict=True):
            deltas.append((deltas[-1] @ weight) * gate(Z))
        return deltas[::-1]

    def module(self) -> MLP:
        """The same network as an MLP module."""
        has_bias = [bias is not None for bias in self.biases]
        kind: Bias = "all" if any(has_bias[1:]) else "first" if has_bias[0] else "none"
        widths = [self.input_dim, *(int(weight.shape[0]) for weight in self.weights)]
        model = MLP(widths, bias=kind).to(self.weights[0])
        linears = [layer for layer in model if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for layer, weight, bias in zip(linears, self.weights, self.biases, strict=True):
                layer.weight.copy_(weight)
                if layer.bias is not None:
                    layer.bias.copy_(torch.zeros(len(weight)) if bias is None else bias)
        return model.eval()


# -- reading a module -------------------------------------------------------------------------------------------------

_PASS = (nn.Flatten, nn.Identity, nn.Dropout)
_PASS_METHODS = {"flatten", "view", "reshape", "contiguous", "size", "squeeze", "float", "double", "to"}
_PASS_FUNCTIONS = {torch.flatten, torch.reshape, torch.squeeze, operator.getitem, getattr, nn.functional.dropout}
_RELU_FUNCTIONS = {torch.relu, nn.functional.relu}


def read(model: nn.Module | Network, *, dtype: torch.dtype = torch.float64) -> Network:
    """The module as a Network. UnsupportedModel names the layer that is in the way."""
    if isinstance(model, Network):
        _check_finite(model)
        return model.to(dtype)
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(
            f"Reconstruction needs the weights of a torch module; got {type(model).__name__}. A fitted scikit-learn "
            'network is one after divulge.oracle(model, access="weights").weights().'
        )
    network = _from_layers(_layers(model)).to(torch.float64)
    _check_finite(network)
    _check_same(model, network)
    return network.to(dtype)


def _layers(model: nn.Module) -> list[nn.Linear | str]:
    """The module's linear layers and ReLUs in the order they run."""
    if isinstance(model, nn.Linear):
        return [model]
    try:
        traced = symbolic_trace(copy.deepcopy(model).eval())
    except Exception as error:  # fx raises many kinds for code it cannot follow
        raise UnsupportedModel(
            f"The forward pass of {type(model).__name__} could not be followed ({str(error).splitlines()[0]}); "
            "use a plain sequence of linear layers and ReLUs."
        ) from error
    found: list[nn.Linear | str] = []
    for node in traced.graph.nodes:
        layer = _layer_of(traced, node)
        if layer is not None:
            found.append(layer)
    return found


def _layer_of(traced: GraphModule, node: Node) -> nn.Linear | str | None:
    target: Any = node.target
    if node.op in ("placeholder", "output"):
        return None
    if node.op == "call_module":
        layer = traced.get_submodule(str(target))
        if isinstance(layer, nn.Linear):
            return layer
        if isinstance(layer, nn.ReLU):
            return "relu"
        if isinstance(layer, _PASS):
            return None
        raise UnsupportedModel(_refusal(f"{type(layer).__name__} ({target})"))
    if node.op == "call_method" and target in _PASS_METHODS:
        return None
    if (node.op == "call_method" and target == "relu") or target in _RELU_FUNCTIONS:
        return "relu"
    if target in _PASS_FUNCTIONS:
        return None
    name = getattr(target, "__name__", str(target))
    if name in ("add", "iadd"):
        raise UnsupportedModel(_refusal("a residual connection (addition)"))
    raise UnsupportedModel(_refusal(f"the operation {name!r}"))


def _refusal(what: str) -> str:
    return (
        f"Reconstruction reads plain ReLU networks of linear layers, and this model has {what}; "
        "its weights would be misread, so nothing was tried."
    )


def _from_layers(layers: list[nn.Linear | str]) -> Network:
    weights: list[Tensor] = []
    biases: list[Tensor | None] = []
    open_linear = False  # whether the last layer was linear
    for layer in layers:
        if isinstance(layer, str):
            if not weights:
                raise UnsupportedModel(_refusal("a ReLU before its first linear layer"))
            open_linear = False
            continue
        weight = layer.weight.detach().clone()
        bias = None if layer.bias is None else layer.bias.detach().clone()
        if open_linear:  # two linear layers in a row are one
            joined = weight @ biases[-1] if biases[-1] is not None else None
            weights[-1] = weight @ weights[-1]
            biases[-1] = joined if bias is None else bias if joined is None else joined + bias
        else:
            weights.append(weight)
            biases.append(bias)
        open_linear = True
    if not open_linear:
        raise UnsupportedModel(_refusal("no linear layer at its end"))
    if len(weights) < 2:
        raise UnsupportedModel(_refusal("no hidden layer"))
    return Network(tuple(weights), tuple(biases))


def _check_finite(network: Network) -> None:
    for number, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True), start=1):
        if not bool(torch.isfinite(weight).all()) or (bias is not None and not bool(torch.isfinite(bias).all())):
            raise UnsupportedModel(
                f"Layer {number} of the model holds NaN or infinite weights; reconstruct from a checkpoint "
                "that was saved before training diverged."
            )


def _check_same(model: nn.Module, network: Network) -> None:
    """Check that the matrices answer as the module does."""
    reference = next(model.parameters())
    if reference.dtype in (torch.float16, torch.bfloat16):  # many processors compute neither
        model = copy.deepcopy(model).float()
        reference = next(model.parameters())
    rows = torch.randn(8, network.input_dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shape = getattr(model, "input_shape", (network.input_dim,))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            theirs = model(rows.to(reference).reshape(8, *shape)).reshape(8, -1).to(torch.float64).cpu()
    except RuntimeError as error:
        raise WrongShape(
            f"The model does not take rows of {network.input_dim} numbers: {str(error).splitlines()[0]}"
        ) from error
    finally:
        model.train(was_training)
    ours = network(rows.to(network.weights[0])).to(torch.float64).cpu()
    tolerance = 1e3 * float(torch.finfo(reference.dtype).eps) * max(float(theirs.abs().max()), 1e-300)
    if float((ours - theirs).abs().max()) > tolerance:
        raise UnsupportedModel(
            "The model does more than its linear layers and ReLUs say (its answers differ from theirs); "
            "nothing was tried."
        )
