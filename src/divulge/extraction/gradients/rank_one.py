"""The rank-one matrices g v^T, with g >= 0, in a linear space of matrices; each is a neuron to jacobian_factors.py.

Alternating projections, from many random starts, between the space and the rank-one matrices: what is nearest in the
one, then what is nearest in the other. A candidate has converged when it lies in both, or when it does once its g is
rounded to 0 and 1. New starts are drawn away from what was found.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from divulge.core.progress import report

CHECK_EVERY, MOST_CHECKS = 25, 20
"""Steps of alternating projection between two checks of which candidates have converged, and checks without a new one
after which the search is given up."""
STILL = 0.8
"""A candidate has converged when a check finds it no nearer than this times what it was."""
INDEPENDENT = 1e-3
"""An element is new if at least this share of it lies outside the span of those found before."""


@dataclass(frozen=True)
class Space:
    """A space of matrices [n, k], by an orthonormal basis [n, k, r]."""

    basis: Tensor

    def coordinates(self, u: Tensor, v: Tensor) -> Tensor:
        """[m, r]: where the matrices u v^T, scaled to length 1, fall in the space."""
        return self._unit(u, v) @ self.basis.flatten(0, 1)

    def matrices(self, coordinates: Tensor) -> Tensor:
        """[m, n, k]"""
        return (coordinates @ self.basis.flatten(0, 1).T).reshape(-1, *self.basis.shape[:2])

    def outside(self, u: Tensor, v: Tensor) -> Tensor:
        """[m]: how far each matrix u v^T, scaled to length 1, is from the space."""
        away: Tensor = (self._unit(u, v) - self.matrices(self.coordinates(u, v)).flatten(1)).norm(dim=1)
        return away

    def _unit(self, u: Tensor, v: Tensor) -> Tensor:
        return (functional.normalize(u)[:, :, None] * functional.normalize(v)[:, None, :]).flatten(1)


def elements(space: Space, tolerance: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The g [m, n], up to 1, and v [m, k] of independent elements: as many as the space has dimensions, or fewer."""
    rank = space.basis.shape[2]
    found: list[tuple[Tensor, Tensor]] = []
    spanned = torch.zeros(rank, 0, dtype=torch.float64)
    u, v = _starts(space, spanned, 2 * rank, generator)
    before = torch.full((len(u),), torch.inf, dtype=torch.float64)
    in_vain = 0
    while len(found) < rank and in_vain < MOST_CHECKS:
        u, v = _closer(space, u, v)
        g, w, off, hard = _converged(space, u, v)
        done = (off <= tolerance) & (hard | (off > STILL * before))
        in_vain, known = in_vain + 1, len(found)
        for place in done.nonzero()[:, 0].tolist():
            for one in _sharing(space, g[place], tolerance) if hard[place] else w[place][None]:
                at = space.coordinates(g[place][None], one[None])[0]
                new = at - spanned @ (spanned.T @ at)
                if float(new.norm()) > INDEPENDENT and len(found) < rank:
                    spanned = torch.cat([spanned, (new / new.norm())[:, None]], dim=1)
                    found.append((g[place], one))
        in_vain = in_vain if len(found) == known else 0
        report("finding neurons", len(found), rank)
        u[done], v[done] = _starts(space, spanned, int(done.sum()), generator)
        before = torch.where(done, torch.inf, off)
    if not found:
        return u[:0], v[:0]
    return torch.stack([g for g, _ in found]), torch.stack([w for _, w in found])


def _starts(space: Space, spanned: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random elements of the space, more or less away from the neurons already found, as rank-one matrices."""
    at = torch.randn(count, space.basis.shape[2], generator=generator, dtype=torch.float64)
    away = torch.rand(count, 1, generator=generator, dtype=torch.float64)
    at = at - away * ((at @ spanned) @ spanned.T)
    left, _, right = torch.linalg.svd(space.matrices(at), full_matrices=False)
    return left[:, :, 0], right[:, 0]


def _closer(space: Space, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates after some steps of alternating projection; gates of one sign, which is made positive."""
    for _ in range(CHECK_EVERY):
        inside = space.matrices(space.coordinates(u, v))
        u = (inside @ v[:, :, None])[:, :, 0]
        u = (u * u.sum(dim=1, keepdim=True).sign()).clamp_min(0)
        v = (inside.transpose(1, 2) @ u[:, :, None])[:, :, 0]
        v = functional.normalize(v)
    return u, v


def _converged(space: Space, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Each candidate with its gates rounded to 0 and 1 if that is nearer to the space than as it is; how near; and
    whether they were rounded."""
    u = u / u.amax(dim=1, keepdim=True).clamp_min(1e-300)
    hard = (u > 0.5).to(u)
    reach = torch.einsum("mn,nkr->mkr", hard, space.basis)
    best = torch.linalg.eigh(reach @ reach.transpose(1, 2)).eigenvectors[:, :, -1]
    best = best * (best * v).sum(dim=1, keepdim=True).sign()
    soft_off, hard_off = space.outside(u, v), space.outside(hard, best)
    nearer = hard_off <= soft_off
    gates, outward = torch.where(nearer[:, None], hard, u), torch.where(nearer[:, None], best, v)
    return gates, outward, torch.minimum(soft_off, hard_off), nearer


def _sharing(space: Space, gates: Tensor, tolerance: float) -> Tensor:
    """[m, k]: output weights of the neurons with these gates, summed where several share them."""
    reach = torch.einsum("n,nkr->kr", gates, space.basis)
    outward = torch.linalg.svd(reach).U.T
    inside = space.outside(gates.expand(len(outward), -1), outward) <= tolerance
    return torch.as_tensor(outward[inside])
