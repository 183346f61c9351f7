"""When corners agree on a neuron."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.pencils import Pencil, settle
from divulge.extraction.labels.polygon import Corner, Edge, Slice
from divulge.extraction.labels.tolerances import Tolerances

INPUTS = 6
TOLERANCES = Tolerances.of(INPUTS, 1e-13, 0.0)


@dataclass
class Sighting:
    x: Array
    slice: Slice
    error: float = 1e-9
    neuron: int | None = None


@pytest.fixture
def pencil() -> Pencil:
    """That of two random facets."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((2, INPUTS + 1))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    basis = np.linalg.qr(rows.T)[0].T
    piece = Slice(np.zeros(INPUTS), np.eye(INPUTS)[:2])
    edge = Edge(piece, np.zeros(2), np.ones(2), (0, 1), np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    return Pencil(Corner(piece, edge, edge, "neuron", np.zeros(2)), basis, 1e-11, rows @ basis.T)


def on_hyperplane(pencil: Pencil, ratio: float, count: int) -> list[Sighting]:
    """Points of a hyperplane of the pencil."""
    neuron = pencil.members(np.array([ratio]), TOLERANCES.spread)[0]
    X = np.random.default_rng(1).standard_normal((count, INPUTS))
    X -= (X @ neuron.w + neuron.b)[:, None] * neuron.w
    return [Sighting(x, pencil.corner.slice) for x in X]


def test_corners_in_different_places_tell_the_neuron(pencil):
    found = settle(pencil, on_hyperplane(pencil, 2.0, 3), TOLERANCES, 2)
    assert found is not None
    true = pencil.members(np.array([2.0]), TOLERANCES.spread)[0]
    assert abs(float(found[0].w @ true.w)) == pytest.approx(1, abs=1e-12)


def test_corners_in_one_place_are_no_agreement(pencil):
    """Where few neurons below are on, slices with nothing in common meet the boundary's bend in the same point."""
    one = on_hyperplane(pencil, 2.0, 1)[0]
    same = [Sighting(one.x + 1e-9 * i, pencil.corner.slice) for i in range(5)]
    assert settle(pencil, same, TOLERANCES, 2) is None
