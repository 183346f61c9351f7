"""Candidates of a pencil, tried on other facets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.facets import Facet
from divulge.extraction.labels.pencils import Pencil
from divulge.extraction.labels.polygon import Corner, Edge, Slice
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.tolerances import Domain, Tolerances
from divulge.extraction.labels.trials import Trials

INPUTS = 4
SPREAD = INPUTS**0.5


@dataclass
class Sighting:
    x: Array
    slice: Slice
    error: float = 1e-12
    neuron: int | None = None


def labels(X: Array) -> Array:
    """A network with two hidden neurons, x1 and x2."""
    return (X[:, 0] + np.maximum(X[:, 1], 0) + np.maximum(X[:, 2], 0) > 0).astype(int)


def facet(row: list[float], base: list[float]) -> Facet:
    """A piece of the boundary, row . x = 0, in the scale of the network's output."""
    a = np.array(row)
    size = float(np.linalg.norm(a))
    return Facet(a / size, 0.0, (1, 0), np.zeros((0, INPUTS)), 0.1, 1e-13, np.array(base), scale=size * SPREAD)


def edge(piece: Slice, of: Facet) -> Edge:
    tangent = np.array([0.0, 1.0])
    return Edge(piece, np.zeros(2), tangent, (1, 0), tangent, np.array([1.0, 0.0]), facet=of)


def survey_and_pencil(third: Facet) -> tuple[Survey, Pencil]:
    """The pencil of the neuron x1, of two facets where x2 is off; a third facet is known besides."""
    tolerances = Tolerances.of(INPUTS, 1e-13, 0.0)
    domain = Domain(np.full(INPUTS, -np.inf), np.full(INPUTS, np.inf), 30 * SPREAD)
    survey = Survey(labels, tolerances, domain, 2, np.random.default_rng(0))
    piece = Slice(np.array([0.0, 0.0, -1.0, 0.0]), np.eye(INPUTS)[:2])
    before = edge(piece, facet([1, 0, 0, 0], [0, -0.5, -1, 0]))
    after = edge(piece, facet([1, 1, 0, 0], [-0.5, 0.5, -1, 0]))
    piece.edges += [before, after, edge(piece, third)]
    survey.slices.append(piece)
    corner = Corner(piece, before, after, "neuron", np.zeros(2), turn=0.8)
    return survey, Pencil.of(corner, SPREAD, 1)


def settled(third: Facet, corner: list[float]) -> Array | None:
    survey, pencil = survey_and_pencil(third)
    found = Trials(survey).settle(pencil, [Sighting(np.array(corner), pencil.corner.slice)])
    return None if found is None else np.abs(found[0].w)


def test_a_third_facet_confirms_the_right_candidate_and_refutes_a_wrong_one():
    third = facet([1, 0, 1, 0], [-0.5, -0.5, 0.5, 0])
    right, wrong = [-0.5, 0.0, 0.5, 0.2], [0.3, 1.0, 0.0, 0.0]
    found = settled(third, right)
    assert found is not None
    np.testing.assert_allclose(found, [0, 1, 0, 0], atol=1e-9)
    assert settled(third, wrong) is None


def test_another_piece_of_the_pencils_own_facets_confirms_nothing():
    """There the candidate bends the boundary as the true neuron does, whichever it is."""
    again = facet([1, 0, 0, 0], [0, -0.7, -1.5, 0.3])
    assert settled(again, [0.3, 1.0, 0.0, 0.0]) is None
