"""Clipped per-example gradients of networks that are no multilayer perceptron: convolutions, residual blocks.

A layer with inputs h_t and back-propagated errors e_t at its positions t (one for a linear layer; each place of the
filter for a convolution, h_t being the patch under it) has for one example the gradient sum_t e_t h_t^T. Its squared
norm is sum_{s,t} <e_s, e_t> <h_s, h_t>, which takes two Gram matrices and no gradient; where the gradient itself is the
smaller of the two, as in early convolutions, it is made and its norm taken. Either way one forward and one backward
sweep give every example's norm, and the clipped sum is made of the same inputs and errors.

One model at a time: a picture network keeps a processor busy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from divulge.errors import UnsupportedModel
from divulge.protection.clipping import factors
from divulge.training import Recipe, shaped

_NUMBERS = 2**21  # of one layer's unfolded inputs that are held at once


@dataclass(frozen=True)
class _Share:
    """What one parameter adds to every example's squared norm [n], and its gradient summed with weights [n]."""

    parameter: Tensor
    squares: Tensor
    weighted: Callable[[Tensor], Tensor]


class Layerwise:
    """A model and its training rows, watched: inputs and outputs of every layer that has parameters are kept."""

    def __init__(self, model: nn.Module, rows: Tensor, targets: Tensor, recipe: Recipe) -> None:
        self.model = model.train().requires_grad_(False)
        self._rows, self._targets, self._recipe = shaped(rows, model), targets, recipe
        self._seen: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}
        for module in model.modules():
            _check(module)
            if next(module.parameters(recurse=False), None) is not None:
                self._seen[module] = []
        self._hooks = [layer.register_forward_hook(self._watch) for layer in self._seen]
        largest = max(_patches(layer, h).numel() for layer, h, _ in self._sweep(self._rows[:1], targets[:1]))
        self._at_once = max(1, _NUMBERS // largest)

    def parameters(self) -> list[Tensor]:
        """The parameters in place, each with an axis for its one model."""
        return [parameter.detach()[None] for parameter in self.model.parameters()]

    def clipped_sum(self, clip: float) -> tuple[list[Tensor], Tensor]:
        """The sum over examples of each one's gradient clipped to norm ``clip``, in the order of ``parameters()``, and
        the norms [1, n] before clipping."""
        totals: dict[Tensor, Tensor] = {parameter: torch.zeros_like(parameter) for parameter in self.model.parameters()}
        norms = []
        for X, y in zip(*(torch.split(part, self._at_once) for part in (self._rows, self._targets)), strict=True):
            shares = [share for layer, h, e in self._sweep(X, y) for share in _shares(layer, h, e)]
            norms.append(torch.stack([share.squares for share in shares]).sum(dim=0).sqrt())
            weights = factors(norms[-1], clip)
            for share in shares:
                totals[share.parameter] += share.weighted(weights)
        return [total[None] for total in totals.values()], torch.cat(norms)[None]

    def release(self) -> nn.Module:
        """The model, no longer watched, in evaluation mode."""
        for hook in self._hooks:
            hook.remove()
        return self.model.requires_grad_(True).eval()

    def _watch(self, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        if not output.requires_grad:
            output.requires_grad_()  # the first layer: where the backward sweep ends
        self._seen[layer].append((inputs[0].detach(), output))

    def _sweep(self, X: Tensor, y: Tensor) -> Iterator[tuple[nn.Module, Tensor, Tensor]]:
        """Every layer with its inputs and the errors at its outputs."""
        for seen in self._seen.values():
            seen.clear()
        loss = self._recipe.loss_of(self.model(X), y, "sum")
        if any(len(seen) != 1 for seen in self._seen.values()):
            raise UnsupportedModel("Private training on full batches needs every layer to be used exactly once.")
        errors = torch.autograd.grad(loss, [seen[0][1] for seen in self._seen.values()])
        for (layer, seen), error in zip(self._seen.items(), errors, strict=True):
            yield layer, seen[0][0], error
            seen.clear()


# -- one layer --------------------------------------------------------------------------------------------------------


def _check(module: nn.Module) -> None:
    if getattr(module, "inplace", False):
        raise UnsupportedModel(f"Private training reads a layer's outputs; set inplace=False in {module}.")
    plain = isinstance(module, nn.Conv2d) and module.groups == 1 and module.padding_mode == "zeros"
    if (plain and not isinstance(module.padding, str)) or isinstance(module, nn.Linear | nn.GroupNorm):
        return
    if next(module.parameters(recurse=False), None) is not None:
        raise UnsupportedModel(
            "Private training on full batches knows linear layers, convolutions in one group and group normalisation; "
            f"this model has {module}. Train it with batches, which go through Opacus."
        )


def _patches(layer: nn.Module, h: Tensor) -> Tensor:
    """A layer's inputs at each of its positions, [n, inputs, positions]."""
    if isinstance(layer, nn.Conv2d):
        return functional.unfold(h, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # type: ignore[arg-type]
    if isinstance(layer, nn.Linear):
        return h.reshape(len(h), -1, h.shape[-1]).mT
    return h


def _shares(layer: Any, h: Tensor, e: Tensor) -> Iterator[_Share]:
    if isinstance(layer, nn.GroupNorm):
        normed = functional.group_norm(h, layer.num_groups, eps=layer.eps)
        yield _held(layer.weight, (e * normed).flatten(2).sum(dim=2))
        yield _held(layer.bias, e.flatten(2).sum(dim=2))
        return
    H = _patches(layer, h)
    E = e.flatten(2) if isinstance(layer, nn.Conv2d) else e.reshape(len(e), -1, e.shape[-1]).mT
    inputs, outputs, positions = H.shape[1], E.shape[1], H.shape[2]
    if inputs * outputs <= positions * (inputs + outputs):
        yield _held(layer.weight, E @ H.mT)
    else:
        squares = ((E.mT @ E) * (H.mT @ H)).sum(dim=(1, 2))
        yield _Share(layer.weight, squares, lambda w: torch.einsum("n,nkt,nqt->kq", w, E, H).view_as(layer.weight))
    if layer.bias is not None:
        yield _held(layer.bias, E.sum(dim=2))


def _held(parameter: Tensor, gradients: Tensor) -> _Share:
    """Of every example's own gradient [n, ...], where that is small."""
    squares = gradients.flatten(1).square().sum(dim=1)
    return _Share(parameter, squares, lambda w: torch.tensordot(w, gradients, dims=1).view_as(parameter))
