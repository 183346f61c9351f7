"""Why a target is not a one-hidden-layer ReLU network: its kinks bend (it is deeper), or it has none (it is smooth)."""

from __future__ import annotations

import torch
from torch import Tensor

from divulge.extraction.gradients.affine_maps import TargetMaps
from divulge.extraction.gradients.kink_search import Tolerance
from divulge.extraction.relu_network import NetworkEstimate

PAIRS = 8


def smooth(
    target: TargetMaps, tolerance: Tolerance, eps: float, reach: float, generator: torch.Generator
) -> str | None:
    """The kind of activation if the target is curved everywhere; None if it is piecewise linear. Asks 16 to 20 rows."""
    X = torch.randn(PAIRS, target.inputs, generator=generator, dtype=torch.float64)
    step = eps ** (1 / 3) * torch.randn(PAIRS, target.inputs, generator=generator, dtype=torch.float64)
    _, gradient = target.maps(torch.cat([X, X + step]))
    change = (gradient[PAIRS:] - gradient[:PAIRS]).flatten(1).norm(dim=1)
    if int((change > tolerance.jump).sum()) < PAIRS - 2:
        return None
    return _name(target, step[0], float(gradient.flatten(1).norm(dim=1).max()), reach, generator)


def _name(target: TargetMaps, step: Tensor, scale: float, reach: float, generator: torch.Generator) -> str:
    """Tell activations apart by what is left of them far out, and by the symmetry of their curvature about the origin.

    Sigmoid and tanh go flat far out; the curvature of softplus, GELU and SiLU is even, so it is nearly the same on
    both sides of the origin; that of ELU is on one side only.
    """
    x = torch.randn(target.inputs, generator=generator, dtype=torch.float64)
    far = reach * x
    _, gradient = target.maps(torch.stack([far, -far, x, x + step, -x, -x - step]))
    if float(gradient[:2].abs().max()) < 1e-6 * scale:
        return "sigmoid or tanh"
    one, other = (gradient[3] - gradient[2]).flatten(), (gradient[4] - gradient[5]).flatten()
    cosine = float(one @ other / (one.norm() * other.norm()).clamp_min(1e-300))
    return "softplus, GELU or SiLU" if cosine > 0.5 else "ELU"


def bends(target: TargetMaps, copy: NetworkEstimate, tolerance: Tolerance, generator: torch.Generator) -> bool:
    """Whether the hyperplanes found on a line do not go on elsewhere, as those of deeper layers do. Asks 16 rows."""
    size = copy.strength
    pick = size.argsort(descending=True)[: max(PAIRS, len(size) // 2)]
    pick = pick[torch.randperm(len(pick), generator=generator)[:PAIRS]]
    if not len(pick):
        return True
    normal, offset = copy.A[pick], copy.b[pick]
    X = torch.randn(len(pick), target.inputs, generator=generator, dtype=torch.float64)
    X = X - ((X * normal).sum(dim=1) + offset)[:, None] * normal
    step = 1e3 * tolerance.closest * normal
    _, gradient = target.maps(torch.cat([X + step, X - step]))
    jump = gradient[: len(pick)] - gradient[len(pick) :]
    expected = copy.W[:, pick].T[:, :, None] * normal[:, None, :]
    held = (jump - expected).flatten(1).norm(dim=1) <= 0.01 * expected.flatten(1).norm(dim=1) + tolerance.jump
    return int(held.sum()) <= len(pick) // 2
