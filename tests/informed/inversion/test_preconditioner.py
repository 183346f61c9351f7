"""What the search knows about the curvature of its problem."""

from __future__ import annotations

import torch

from divulge.informed.inversion.preconditioner import ExploredDirections


def test_the_weakest_direction_is_found_among_combinations_of_explored_ones():
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(8, 8, generator=generator, dtype=torch.float64)).Q for _ in range(2))
    J = left @ torch.diag(torch.tensor([10.0, 1, 1, 1, 1, 1, 1, 1e-3], dtype=torch.float64)) @ right.T
    explored = ExploredDirections()
    for _ in range(7):
        direction = torch.randn(1, 8, generator=generator, dtype=torch.float64)
        explored.add(direction, direction @ J.T)
    of_seven = float(explored.weakest(7))
    explored.add(direction, direction @ J.T)  # a repeated direction adds nothing
    assert abs(float(explored.weakest(8)) / of_seven - 1) < 1e-6
    assert of_seven > 1e-5
    fresh = ExploredDirections()
    for direction in torch.randn(8, 1, 8, generator=generator, dtype=torch.float64):
        fresh.add(direction, direction @ J.T)
    assert abs(float(fresh.weakest(8)) / 1e-6 - 1) < 1e-3
