"""The neurons of one hidden layer, all at once, from the Jacobians at a few points, if there are several outputs.

With weights W [h, d], output weights V [k, h] and gates g(x) in {0, 1}, the Jacobian at point i is V diag(g_i) W: all
points together are the matrix K W, where column j of K [n k, h] is the *rank-one* matrix g_j v_j^T [n, k], laid flat.
The columns of the stacked Jacobians span the same space as those of K, and when (n - 1)(k - 1) is well above h, its
only rank-one elements are the neurons. rank_one.py finds them; then W is linear least squares. Nothing is asked of
where the points lie, and none are chosen. Gates that are averages over noise (SmoothGrad) keep this form. There can be
no more neurons than inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.extraction.failures import SearchFailed
from divulge.extraction.gradients.affine_maps import LocalMaps
from divulge.extraction.gradients.rank_one import Space, elements
from divulge.extraction.relu_network import NetworkEstimate

GAP = 1e2
"""How much the singular values must drop behind the last neuron for the number of neurons to be read off."""
ROOM = 1.2
"""How many equations there must be for each unknown of a rank-one element, so that none is met by chance."""


@dataclass(frozen=True)
class Factors:
    """Jacobian i is sum_j gates[j, i] outward[j] inward[j]^T; the sign of a pair (inward, outward) is open."""

    inward: Tensor  # [h, d]
    outward: Tensor  # [h, k]
    gates: Tensor  # [h, n]

    @property
    def averaged(self) -> bool:
        """Whether gates are averages and not only 0 and 1."""
        return bool((self.gates * (1 - self.gates) > 1e-3).any())


def factor(jacobians: Tensor, generator: torch.Generator, *, most: int | None = None) -> Factors | None:
    """The neurons, at most ``most``, behind Jacobians [n, k, d]; None where these do not determine them."""
    n, k, d = jacobians.shape
    if ROOM * (n + k) > n * k:
        return None
    rows = jacobians.reshape(n * k, d)
    if d > n * k:  # the triangle has the same left vectors, and its decomposition does not grow with the inputs
        rows = torch.linalg.qr(rows.T, mode="r").R.T
    left, sizes, _ = torch.linalg.svd(rows, full_matrices=False)
    rank, noise = _rank(sizes if most is None else sizes[: most + 1])
    if not rank or ROOM * (rank + n + k) > n * k:
        return None
    gates, outward = elements(Space(left[:, :rank].reshape(n, k, rank)), max(3 * noise, 1e-9), generator)
    if len(gates) < rank:
        return None
    design = (gates.T[:, None, :] * outward.T[None]).reshape(n * k, -1)
    inward = _least_squares(design, jacobians.reshape(n * k, d))
    return Factors(inward, outward, gates)


def neuron_signs(reached: Tensor, gates: Tensor) -> Tensor:
    """[h]: minus one where a neuron [n, h] is on at the lower inputs and not at the higher, else one."""
    together = ((reached - reached.mean(dim=0)) * (gates - gates.mean(dim=0))).sum(dim=0)
    return torch.where(together < 0, -1.0, 1.0).to(reached)


def network_from_jacobians(rows: LocalMaps, offset_error: float, generator: torch.Generator) -> NetworkEstimate | None:
    """The network that has these values and gradients; a neuron that is on at every point is part of the slope."""
    found = factor(rows.gradient, generator)
    if found is None or found.averaged:
        return None
    always = found.gates.amin(dim=1) > 0.5
    slope = found.outward[always].T @ found.inward[always]
    length = found.inward[~always].norm(dim=1)
    gates, normal = found.gates[~always].T, found.inward[~always] / length[:, None]
    sign = neuron_signs(rows.X @ normal.T, gates)
    normal, weight = sign[:, None] * normal, found.outward[~always].T * (sign * length)
    missing = rows.value - rows.X @ slope.T - (gates * (rows.X @ normal.T)) @ weight.T
    n, k = missing.shape
    design = torch.cat([gates[:, None, :] * weight, torch.eye(k).to(gates).expand(n, k, k)], dim=2).flatten(0, 1)
    solution = _least_squares(design, missing.reshape(-1, 1))[:, 0]
    h = len(normal)
    errors = torch.full((h,), offset_error, dtype=normal.dtype)
    return NetworkEstimate(normal, solution[:h], weight, slope, solution[h:], errors)


def _least_squares(design: Tensor, wanted: Tensor) -> Tensor:
    """The least-squares solution; torch ends in an internal error where a number is not finite."""
    if not bool(design.isfinite().all() and wanted.isfinite().all()):
        raise SearchFailed("The equations of the Jacobians leave the range of numbers.")
    solution: Tensor = torch.linalg.lstsq(design, wanted, driver="gelsd").solution
    return solution


def _rank(sizes: Tensor) -> tuple[int, float]:
    """How many singular values stand above the noise, and how large it is beside the last; 0 if no drop is clear."""
    if len(sizes) < 2 or float(sizes[0]) == 0:
        return 0, 0.0
    after = sizes[1:].clamp_min(1e-17 * float(sizes[0]) + 1e-300)
    drops = sizes[:-1] / after
    place = int(drops.argmax())
    return (place + 1 if float(drops[place]) >= GAP else 0), 1 / float(drops[place])
