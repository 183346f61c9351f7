"""From a copy of a model to weights that the attack can read: orient, then re-balance.

A copy computes the same function with its hidden units in any order, at any scale and mirrored: relu(z) and
relu(-z) + z differ by a linear part. Stationarity holds for the trained weights only, so both must be undone.

Orientation: the mirrored units' linear parts must add up to the copy's affine part, which a least squares problem
decides exactly. Scale: gradient flow keeps |outgoing|^2 - |incoming|^2 of every unit at its initial value, so units
that started small end with equal norms; and where the initial noise of the first layer can be seen under the signal,
it is a ruler, because it had the same size in every row.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from divulge.errors import AttackFailed, InvalidInput, UnsupportedModel
from divulge.extraction.result import Extraction
from divulge.models import MLP, ReluNetwork
from divulge.reconstruction.network import Network, read
from divulge.reconstruction.subspace import noise_edge

By = Literal["flow", "noise", "auto"]


def rebalance(model: nn.Module, *, by: By = "auto") -> MLP:
    """The same function with its first hidden layer's units scaled as training left them.

    ``by="flow"`` makes incoming and outgoing norms of each unit equal: right for networks whose units all started
    small. ``by="noise"`` finds the constant by which they differ from the initial noise in the rows: right where later
    layers started large. ``"auto"`` takes the noise if it can be seen and gives all units one constant, else the flow.
    """
    if by not in ("flow", "auto", "noise"):
        raise InvalidInput(f'by is "flow", "noise" or "auto", not {by!r}.')
    network = read(model)
    ruler = None if by == "flow" else _noise_in_rows(network.first())
    measured = None if ruler is None else _by_ruler(network, ruler)
    if by == "noise" and measured is None:
        raise AttackFailed(
            "The first layer shows too little initial noise to measure its units by; re-balance by flow."
        )
    network, constant = (network, 0.0) if measured is None else measured
    incoming = network.first().square().sum(dim=1).clamp_min(1e-300)
    outgoing = network.weights[1].square().sum(dim=0).clamp_min(1e-300)
    wanted = (constant + (constant**2 + 4 * incoming * outgoing).sqrt()) / 2  # |outgoing|^2 - |incoming|^2 = constant
    return _scaled(network, (outgoing / wanted).sqrt()).module()


def _by_ruler(network: Network, ruler: Tensor) -> tuple[Network, float] | None:
    """Units at the scale that the ruler says, and the constant |outgoing|^2 - |incoming|^2; None if it is not one.

    With rows a factor k too small, |outgoing|^2 is a straight line in |incoming|^2 whose slope tells k.
    """
    network = _scaled(network, 1 / ruler)
    incoming, outgoing = network.first().square().sum(dim=1), network.weights[1].square().sum(dim=0)
    line = torch.stack([torch.ones_like(incoming), incoming], dim=1)
    weight = 1 / outgoing.clamp_min(1e-300)  # errors of the ruler are relative
    _, slope = torch.linalg.lstsq(line * weight[:, None], outgoing * weight).solution.tolist()
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
    """The size of each row's initial noise over their geometric mean; None if rounding hides it.

    At first each half of the rows is measured outside the leading directions of the other half, so that a row's own
    noise cannot pass for a direction of the signal. Once rows are alike the signal's rank is clear, and what a row
    contributed to its directions (its leverage) can be allowed for.
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


def from_extraction(extraction: Extraction | nn.Module, *, tolerance: float = 0.1) -> MLP:
    """The homogeneous one-hidden-layer network that an exact extraction copied, oriented and balanced.

    Refused where the copy does not determine it: more units than the input has dimensions, or a flip that comes out
    neither as 0 nor as 1 to within ``tolerance``, the sign of an extraction that missed a unit or found one too many.
    """
    if isinstance(extraction, Extraction):
        if not extraction.exact:
            raise AttackFailed(
                f"Only an exact copy can be oriented, and this one is not ({extraction.reason or 'unverified'})."
            )
        extraction = extraction.model
    if not isinstance(extraction, ReluNetwork):
        raise UnsupportedModel(
            f"Orientation is for a copy with one hidden layer (a ReluNetwork); got {type(extraction).__name__}."
        )
    copy = extraction
    with torch.no_grad():
        rows = torch.cat([copy.A, copy.b[:, None]], dim=1).double()
        rest = torch.cat([copy.P, copy.q[:, None]], dim=1).double()
        outgoing = copy.W.detach().double()
    flips = _flips(rows, outgoing, rest, tolerance)
    sign = 1.0 - 2.0 * flips
    rest = rest + (outgoing * flips) @ rows  # what mirroring leaves of the affine part: an output bias at most
    size = rows.norm(dim=1).clamp_min(1e-300)
    reach = outgoing.norm(dim=0).clamp_min(1e-300)
    rows, outgoing = rows * (sign * (reach / size).sqrt())[:, None], outgoing * (size / reach).sqrt()
    q = rest[:, -1]
    bias = None if float(q.abs().max()) < tolerance * float(outgoing.abs().max()) * 1e-3 else q
    return Network((rows[:, :-1], outgoing), (rows[:, -1], bias)).module()


def _flips(rows: Tensor, outgoing: Tensor, rest: Tensor, tolerance: float) -> Tensor:
    """Which units are mirrored, 0 or 1 each: P + sum_j flip_j W_j A_j = 0."""
    width, d = len(rows), rows.shape[1] - 1
    if width > d:
        raise AttackFailed(
            f"{width} hidden units over {d} inputs leave their orientation open; it needs no more units than inputs."
        )
    linear = outgoing[:, :, None] * rows[None, :, :-1]  # [k, h, d]
    system = linear.permute(0, 2, 1).reshape(-1, width)  # [k d, h]
    right = -rest[:, :-1].reshape(-1)
    scale = system.norm(dim=0).clamp_min(1e-300)
    flips = torch.linalg.lstsq(system / scale, right).solution / scale
    whole = flips.round()
    worst = float((flips - whole).abs().max())
    if worst > tolerance or not bool(((whole == 0) | (whole == 1)).all()):
        raise AttackFailed(
            f"The copy's orientation does not come out whole (a unit is {worst:.2g} away from kept or mirrored), so it "
            "is not the copy of a network without an affine part, or a unit is missing or was found twice."
        )
    kept: Tensor = whole
    return kept
