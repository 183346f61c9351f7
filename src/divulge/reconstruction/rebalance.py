"""The signs and scales of an extracted copy's hidden units, restored to those of the trained network.

A copy computes the same function, but its units have any order, scale and sign: relu(z) = relu(-z) + z, up to a linear
part. The stationarity equation holds for the trained weights only, so signs and scales must be restored first.

Sign: the linear parts of the flipped units add up to the copy's affine part. A least-squares fit decides which units
are flipped. Scale: gradient flow keeps |outgoing|^2 - |incoming|^2 of every unit at its initial value, so units with
small initial weights end with equal norms. Where the initial noise of the first layer can be measured it gives the
scale too, because it has the same standard deviation in every row.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from divulge.core.errors import AttackFailed, UnsupportedModel
from divulge.core.validation import checked_choice
from divulge.models import MLP, ReluNetwork
from divulge.models.weight_matrices import Network, read
from divulge.reconstruction.row_space import noise_edge

By = Literal["flow", "noise", "auto"]
NEGLIGIBLE = 1e-6
"""Biases below this share of a layer's largest weight are rounding."""
ROUNDS, BALANCED = 500, 1e-12
"""Layers are balanced in turn, at most so often, until no unit changes by more than this share."""


def rebalance(model: nn.Module, *, by: By = "auto") -> MLP:
    """The same function with the units of its first hidden layer scaled as training left them.

    ``by="flow"`` makes the incoming and outgoing norms of each unit equal, which is right where all layers had small
    initial weights. ``by="noise"`` finds the constant by which the squared norms differ from the initial noise in the
    rows, which is right where later layers had large initial weights. ``by="auto"`` takes the noise where it can be
    measured and gives all units one constant, else the flow.
    """
    checked_choice("by", by, ("flow", "noise", "auto"))
    network = read(model)
    noise = None if by == "flow" else _noise_in_rows(network.first())
    measured = None if noise is None else _scaled_by_noise(network, noise)
    if by == "noise" and measured is None:
        raise AttackFailed(
            "The first layer shows too little initial noise to measure its units by; re-balance by flow."
        )
    network, constant = (network, 0.0) if measured is None else measured
    incoming = network.first().square().sum(dim=1).clamp_min(1e-300)
    outgoing = network.weights[1].square().sum(dim=0).clamp_min(1e-300)
    wanted = (constant + (constant**2 + 4 * incoming * outgoing).sqrt()) / 2  # |outgoing|^2 - |incoming|^2 = constant
    return _scaled(network, (outgoing / wanted).sqrt()).module()


def rebalance_all(model: nn.Module) -> MLP:
    """The same function with equal incoming and outgoing norms at every unit of every hidden layer.

    Gradient flow leaves networks with small initial weights so. Where the first layer shows its initial noise, its
    units are scaled by that afterwards: it is the same in every row, whatever the layers above began with, and a factor
    that all units share does not matter to a reconstruction. Biases beyond the first layer that are rounding only are
    left out: a copy of a homogeneous network has them.
    """
    network = _balanced(read(model).to(torch.float64))
    noise = _noise_in_rows(network.first())
    return (network if noise is None else _scaled(network, 1 / noise)).module()


def _balanced(network: Network) -> Network:
    """Equal incoming and outgoing norms at every unit, without biases beyond the first layer that are rounding."""
    weights, biases = list(network.weights), list(network.biases)
    for depth in range(1, len(weights)):
        bias = biases[depth]
        if bias is not None and float(bias.abs().max()) < NEGLIGIBLE * float(weights[depth].abs().max()):
            biases[depth] = None
    for _ in range(ROUNDS):
        largest = 1.0
        for depth in range(len(weights) - 1):
            bias = biases[depth]
            incoming = weights[depth].square().sum(dim=1) + (0 if bias is None else bias.square())
            outgoing = weights[depth + 1].square().sum(dim=0)
            factor = (outgoing.clamp_min(1e-300) / incoming.clamp_min(1e-300)) ** 0.25
            weights[depth] = weights[depth] * factor[:, None]
            biases[depth] = None if bias is None else bias * factor
            weights[depth + 1] = weights[depth + 1] / factor
            largest = max(largest, float(factor.max()), 1 / float(factor.min()))
        if largest < 1 + BALANCED:
            break
    return Network(tuple(weights), tuple(biases))


def _scaled_by_noise(network: Network, noise: Tensor) -> tuple[Network, float] | None:
    """Units scaled to equal ``noise``, and |outgoing|^2 - |incoming|^2; None where that differs between units.

    If all rows are a factor k too small, |outgoing|^2 is linear in |incoming|^2, and its slope gives k.
    """
    network = _scaled(network, 1 / noise)
    incoming, outgoing = network.first().square().sum(dim=1), network.weights[1].square().sum(dim=0)
    line = torch.stack([torch.ones_like(incoming), incoming], dim=1)
    weight = 1 / outgoing.clamp_min(1e-300)  # errors of the noise are relative
    _, slope = torch.linalg.lstsq(line * weight[:, None], outgoing * weight, driver="gelsd").solution.tolist()
    if slope <= 0:
        return None
    network = _scaled(network, torch.full_like(incoming, slope**0.25))  # slope k^4 becomes 1
    outgoing = network.weights[1].square().sum(dim=0)
    difference = outgoing - network.first().square().sum(dim=1)
    constant = difference.median()
    if float(((difference - constant).abs() / outgoing).median()) > 0.2:
        return None
    return network, float(constant)


def _scaled(network: Network, factor: Tensor) -> Network:
    """The same function with each unit of the first hidden layer made ``factor`` times as large."""
    weights, biases = list(network.weights), list(network.biases)
    weights[0] = weights[0] * factor[:, None]
    biases[0] = None if biases[0] is None else biases[0] * factor
    weights[1] = weights[1] / factor
    return Network(tuple(weights), tuple(biases))


def _noise_in_rows(first: Tensor) -> Tensor | None:
    """The relative size of each row's initial noise, with geometric mean 1; None if it is below rounding.

    The first two passes measure each half of the rows outside the leading directions of the other half, so that the
    noise of a row is not mistaken for signal. After them rows have similar noise and the rank of the signal is clear.
    The later passes use all rows and correct for the leverage of each row on the signal's directions.
    """
    first = first.double()
    order = torch.randperm(len(first), generator=torch.Generator().manual_seed(0))
    halves = order[: len(order) // 2], order[len(order) // 2 :]
    level = first.norm(dim=1).clamp_min(1e-300)
    for turn in range(5):
        scaled = first / level[:, None]
        size = torch.zeros_like(level)
        if turn < 2:
            for here, there in (halves, halves[::-1]):
                leading = torch.linalg.svd(scaled[there], full_matrices=False)[2][: len(there) // 2]
                rows = scaled[here]
                size[here] = (rows - rows @ leading.T @ leading).norm(dim=1)
        else:
            U, singular, Vh = torch.linalg.svd(scaled, full_matrices=False)
            rank = int((singular > noise_edge(singular, *first.shape)).sum())
            leverage = U[:, :rank].square().sum(dim=1)
            size = (scaled - scaled @ Vh[:rank].T @ Vh[:rank]).norm(dim=1) / (1 - leverage).clamp_min(1e-6).sqrt()
        if not bool((size > 30 * torch.finfo(torch.float32).eps * scaled.norm(dim=1)).all()):
            return None
        level = level * size / size.log().mean().exp()
    sizes: Tensor = level / level.log().mean().exp()
    return sizes


def orient(copy: nn.Module, *, tolerance: float = 0.1) -> MLP:
    """The homogeneous network with one hidden layer of which ``copy`` is an exact copy, with signs and scales restored.

    Fails where the copy does not determine the signs: with more units than inputs, or where a unit comes out neither
    flipped nor unflipped to within ``tolerance``. The extraction then missed a unit or found one twice.
    """
    if not isinstance(copy, ReluNetwork):
        raise UnsupportedModel(
            f"Orientation is for a copy with one hidden layer (a ReluNetwork); got {type(copy).__name__}."
        )
    with torch.no_grad():
        rows = torch.cat([copy.A, copy.b[:, None]], dim=1).double()
        rest = torch.cat([copy.P, copy.q[:, None]], dim=1).double()
        outgoing = copy.W.detach().double()
    flips = _flips(rows, outgoing, rest, tolerance)
    sign = 1.0 - 2.0 * flips
    rest = rest + (outgoing * flips) @ rows  # what is left of the affine part: an output bias at most
    size = rows.norm(dim=1).clamp_min(1e-300)
    reach = outgoing.norm(dim=0).clamp_min(1e-300)
    rows, outgoing = rows * (sign * (reach / size).sqrt())[:, None], outgoing * (size / reach).sqrt()
    q = rest[:, -1]
    bias = None if float(q.abs().max()) < tolerance * float(outgoing.abs().max()) * 1e-3 else q
    return Network((rows[:, :-1], outgoing), (rows[:, -1], bias)).module()


def _flips(rows: Tensor, outgoing: Tensor, rest: Tensor, tolerance: float) -> Tensor:
    """Which units are flipped, 0 or 1 each, from P + sum_j flip_j W_j A_j = 0."""
    width, d = len(rows), rows.shape[1] - 1
    if width > d:
        raise AttackFailed(
            f"{width} hidden units over {d} inputs leave their orientation open; it needs no more units than inputs."
        )
    linear = outgoing[:, :, None] * rows[None, :, :-1]  # [k, h, d]
    system = linear.permute(0, 2, 1).reshape(-1, width)  # [k d, h]
    right = -rest[:, :-1].reshape(-1)
    scale = system.norm(dim=0).clamp_min(1e-300)
    flips = torch.linalg.lstsq(system / scale, right, driver="gelsd").solution / scale
    whole = flips.round()
    worst = float((flips - whole).abs().max())
    if worst > tolerance or not bool(((whole == 0) | (whole == 1)).all()):
        raise AttackFailed(
            f"The copy's orientation does not come out whole (a unit is {worst:.2g} away from kept or mirrored), so it "
            "is not the copy of a network without an affine part, or a unit is missing or was found twice."
        )
    kept: Tensor = whole
    return kept
