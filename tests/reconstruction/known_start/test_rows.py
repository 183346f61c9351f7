"""Rows of A: which of them are certain, and that no mixture is."""

from __future__ import annotations

import torch
from torch import Tensor

from divulge.reconstruction.known_start import rows
from divulge.reconstruction.known_start.difference import Span, span_of

RANK, UNITS, INPUTS = 12, 200, 60


def planted(seed: int) -> tuple[Span, Tensor]:
    """A span of 12 inputs, and the directions [12, 12] of their rows, which vanish at about 40 % of the units.

    The second row vanishes wherever the first does.
    """
    draw = torch.Generator().manual_seed(seed)
    A = torch.randn(RANK, UNITS, generator=draw, dtype=torch.float64)
    A = A * (torch.rand(RANK, UNITS, generator=draw) > 0.4)
    A[1] = A[1] * (A[0] != 0)
    X = torch.cat([torch.randn(RANK, INPUTS, generator=draw).double(), torch.ones(RANK, 1).double()], dim=1)
    span = span_of(A.T @ X, RANK, has_bias=True)
    return span, torch.linalg.pinv((X @ span.V.T) / span.S).T


def measured(span: Span, q: Tensor) -> rows.Rows:
    off = torch.full((len(q), UNITS), -1.0, dtype=torch.float64)
    return rows.measured(span, q, off, rows.informative(span))


def test_the_rows_of_inputs_are_certain() -> None:
    span, q = planted(0)
    found = measured(span, q)
    assert bool(found.certain()[1:].all())
    assert float(found.chance.max()) < 0.5
    assert not bool(found.certain()[0])  # the second row vanishes wherever it does, so mixtures of both do


def test_a_mixture_with_one_forced_zero_is_not_certain() -> None:
    span, q = planted(1)
    entries = q @ span.L.T
    there = (entries[0].abs() > 0.01) & (entries[1].abs() > 0.01)
    unit = int(there.nonzero()[0])
    mixture = q[0] - entries[0, unit] / entries[1, unit] * q[1]
    found = measured(span, mixture[None])
    assert int(found.zeros) >= rows.least(RANK)  # it vanishes where the first row does, and at one unit more
    assert float(found.leverage) > 0.999
    assert not bool(found.certain())


def test_rows_follow_from_the_masks_of_near_inputs() -> None:
    span, q = planted(2)
    entries = q @ span.L.T
    highest = torch.where(entries.abs() < 1e-9, -1.0, 1.0).double()
    c = torch.linalg.inv(q).T
    near = (
        c
        + 0.05
        * c.norm(dim=1, keepdim=True)
        * torch.randn(RANK, RANK, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        / RANK**0.5
    )
    found = rows.from_masks(span, highest, near, rows.informative(span))
    likeness = (found.q * q / q.norm(dim=1, keepdim=True)).sum(dim=1).abs()
    assert int((likeness > 0.99999).sum()) >= RANK - 2
    assert bool(((likeness > 0.99999) | ~found.certain()).all())


def test_no_rows() -> None:
    span, q = planted(0)
    assert len(rows.none(span)) == 0
    assert len(rows.join([rows.none(span), measured(span, q)])) == RANK


def test_rows_beside_certain_inputs_are_found_among_few_directions_and_measured_among_all() -> None:
    span, q = planted(0)
    C = torch.linalg.inv(q).T
    rest, own = rows.frames(span, C[:6])
    assert rest.shape == (RANK, RANK - 6)
    assert float((C[:6] @ rest).abs().max()) < 1e-9
    assert own.shape == (6, RANK, RANK - 5)
    highest = torch.where((q @ span.L.T).abs() < 1e-9, -1.0, 1.0).double()
    found = rows.from_masks(span, highest[:6], C[:6], rows.informative(span), frame=own)
    likeness = (found.q * q[:6] / q[:6].norm(dim=1, keepdim=True)).sum(dim=1).abs()
    assert int((likeness > 0.99999).sum()) >= 5
    assert not bool(found.certain()[0])  # the second row vanishes wherever it does
    assert bool(found.certain()[2:].all())
