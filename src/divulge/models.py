"""The architectures of the papers, by name, and how a model is kept on disk: safetensors plus a small JSON.

Every model built here carries ``spec``, the plain dictionary that builds it again, so a saved model needs no pickle.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from divulge.errors import InvalidInput, UnsupportedModel

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
}
Bias = Literal["all", "first", "none"]


class MLP(nn.Sequential):
    """Linear layers with an activation between them; logits out. ``bias="first"`` makes a ReLU network homogeneous."""

    def __init__(self, widths: Sequence[int], *, activation: str = "relu", bias: Bias = "all") -> None:
        if len(widths) < 2 or any(width < 1 for width in widths):
            raise InvalidInput(
                f"An MLP needs at least an input and an output width, each positive; got {list(widths)}."
            )
        if activation not in ACTIVATIONS:
            raise InvalidInput(f"There is no activation {activation!r}; choose one of {', '.join(ACTIVATIONS)}.")
        layers: list[nn.Module] = []
        for depth, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
            if depth:
                layers.append(ACTIVATIONS[activation]())
            layers.append(nn.Linear(fan_in, fan_out, bias=bias == "all" or (bias == "first" and depth == 0)))
        super().__init__(*layers)
        self.spec = {"architecture": "mlp", "widths": list(widths), "activation": activation, "bias": bias}
        self.input_shape = (widths[0],)


class ReluNetwork(nn.Module):
    """f(x) = W relu(A x + b) + P x + q: one hidden layer and an affine part, as exact extraction finds it."""

    def __init__(self, A: Tensor, b: Tensor, W: Tensor, P: Tensor | None = None, q: Tensor | None = None) -> None:
        super().__init__()
        width, inputs = A.shape  # A [h, d], b [h], W [k, h], P [k, d], q [k]
        outputs = W.shape[0]
        self.A = nn.Parameter(A.detach().clone())
        self.b = nn.Parameter(b.detach().clone())
        self.W = nn.Parameter(W.detach().clone())
        self.P = nn.Parameter(P.detach().clone() if P is not None else A.new_zeros(outputs, inputs))
        self.q = nn.Parameter(q.detach().clone() if q is not None else A.new_zeros(outputs))
        self.spec = {"architecture": "relu-network", "inputs": inputs, "width": width, "outputs": outputs}
        self.input_shape = (inputs,)

    def forward(self, X: Tensor) -> Tensor:
        hidden = torch.relu(X @ self.A.T + self.b)
        return hidden @ self.W.T + X @ self.P.T + self.q


def _empty_relu_network(*, inputs: int, width: int, outputs: int) -> ReluNetwork:
    return ReluNetwork(torch.zeros(width, inputs), torch.zeros(width), torch.zeros(outputs, width))


BUILDERS: dict[str, Callable[..., nn.Module]] = {"mlp": MLP, "relu-network": _empty_relu_network}


def build(spec: dict[str, Any], *, seed: int = 0) -> nn.Module:
    """A fresh float32 model from the dictionary that describes it, its parameters drawn by ``initialise``."""
    options = dict(spec)
    name = options.pop("architecture", None)
    if name not in BUILDERS:
        raise UnsupportedModel(f"There is no architecture {name!r}; choose one of {', '.join(sorted(BUILDERS))}.")
    try:
        with torch.device("meta"):  # no storage yet, and no draw from the global random state
            model = BUILDERS[name](**options)
    except TypeError as error:
        raise InvalidInput(f"The description of a {name} model does not fit: {error}.") from error
    return initialise(model.to_empty(device="cpu"), seed=seed)


def weighted_layers(model: nn.Module) -> list[nn.Linear | nn.Conv1d | nn.Conv2d]:
    """The linear and convolutional layers, in order: the ones that an initial scale speaks of."""
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)]


def initialise(model: nn.Module, *, seed: int, scales: Sequence[float | None] = ()) -> nn.Module:
    """Draw the parameters in place, in float64 from ``torch.Generator`` seeded by ``seed``, then cast.

    A layer's weights, then its bias, are uniform on [-r, r]. By default r = 1/sqrt(fan in), torch's own initial
    distribution; where ``scales`` gives layer l a standard deviation s, r = sqrt(3) s. Layers go in order.
    Normalisation starts as the identity and any other parameter at zero.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = weighted_layers(model)
    wanted = [*scales, *[None] * (len(layers) - len(scales))]
    if len(wanted) > len(layers):
        raise InvalidInput(f"There are {len(scales)} initial scales but {len(layers)} layers.")
    radius: dict[nn.Module, float] = {
        layer: layer.weight[0].numel() ** -0.5 if scale is None else 3**0.5 * scale
        for layer, scale in zip(layers, wanted, strict=True)
    }
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm):
                module.reset_parameters()
                continue
            for parameter in module.parameters(recurse=False):
                if module in radius:
                    draw = torch.empty(parameter.shape, dtype=torch.float64)
                    parameter.copy_(draw.uniform_(-radius[module], radius[module], generator=generator))
                else:
                    parameter.zero_()
    return model


def save(model: nn.Module, folder: str | Path) -> Path:
    """Write ``model.safetensors`` and ``model.json`` to ``folder``."""
    from safetensors.torch import save_file

    spec = getattr(model, "spec", None)
    if spec is None:
        raise UnsupportedModel(
            f"{type(model).__name__} is not one of divulge's architectures; save it with torch or export it to ONNX."
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "model.json").write_text(json.dumps(spec, indent=2) + "\n")
    return folder


def load(folder: str | Path) -> nn.Module:
    """The model that ``save`` wrote, in the precision it was saved in."""
    from safetensors.torch import load_file

    folder = Path(folder)
    try:
        spec = json.loads((folder / "model.json").read_text())
        tensors = load_file(folder / "model.safetensors")
    except FileNotFoundError as error:
        raise InvalidInput(
            f"{error.filename} is not there; a saved model is a folder with model.json and model.safetensors."
        ) from error
    except Exception as error:  # a damaged file can fail in many ways; all mean the same to the user
        raise InvalidInput(f"{folder} does not hold a readable model: {error}.") from error
    model = build(spec)
    dtype = next((tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), torch.float32)
    model.to(dtype)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise InvalidInput(
            f"The weights in {folder} do not fit its model.json: {str(error).splitlines()[-1].strip()}."
        ) from error
    return model.eval()
