"""Regions with half-spaces beside their box."""

from __future__ import annotations

import numpy as np
import pytest

from divulge.extraction.labels.tolerances import Domain


@pytest.fixture
def region() -> Domain:
    """A cone in the positive orthant: x + y < 3 and x < 2 y."""
    faces = np.array([[-1.0, -1.0, 3.0], [-1.0, 2.0, 0.0]])
    faces /= np.linalg.norm(faces[:, :-1], axis=1, keepdims=True)
    return Domain(np.zeros(2), np.full(2, np.inf), 50.0, 0.01, faces, np.array([0.5, 1.0]))


def test_rows_are_moved_inside(region):
    rows = region.inner(5 * np.random.default_rng(0).standard_normal((500, 2)))
    assert region.holds(rows + 1e-9 * (np.array([0.5, 1.0]) - rows))
    assert not region.unbounded
    inside = np.array([[0.5, 1.0], [0.2, 0.4]])
    np.testing.assert_array_equal(region.inner(inside), inside)


def test_the_room_ends_at_the_nearest_face(region):
    x = np.array([0.5, 1.0])
    for angle in np.linspace(0, 2 * np.pi, 60):
        along = np.array([np.cos(angle), np.sin(angle)])
        room = region.room(x, along)
        inside = x + np.linspace(0, room, 50)[:, None] * along
        heights = np.column_stack([inside, inside @ region.faces[:, :-1].T + region.faces[:, -1]])
        assert heights.min() == pytest.approx(0.01, abs=1e-9)
