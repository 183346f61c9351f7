"""The search along lines: every kink of a piecewise-linear function, from samples of value and slope."""

from __future__ import annotations

import pytest
import torch

from divulge.extraction.gradients.kink_search import KinkSearch, Samples, Tolerance

TOLERANCE = Tolerance(jump=1e-9, value=1e-12, drift=1e-12)


class BrokenLines:
    """sum_i s_i relu(t - t_i) on each of several lines, and how often it was asked."""

    def __init__(self, kinks: list[list[float]], jumps: list[list[float]]) -> None:
        self.kinks = [torch.tensor(k, dtype=torch.float64) for k in kinks]
        self.jumps = [torch.tensor(j, dtype=torch.float64) for j in jumps]
        self.rounds = self.rows = 0

    def __call__(self, line, t):
        self.rounds += 1
        self.rows += len(t)
        value, slope = torch.zeros(len(t), 1).double(), torch.zeros(len(t), 1).double()
        for i, (index, place) in enumerate(zip(line.tolist(), t, strict=True)):
            on = (place > self.kinks[index]).double()
            slope[i] = (on * self.jumps[index]).sum()
            value[i] = (on * self.jumps[index] * (place - self.kinks[index])).sum()
        return Samples(line, t, value, slope)


def ends(lines: int, reach: float = 1e4):
    return torch.tensor([[-reach, 0.0, reach]] * lines, dtype=torch.float64)


def crossings(search: KinkSearch, line: int = 0):
    return search.crossing[search.cells()[line][1]]


@pytest.mark.parametrize("seed", range(10))
def test_finds_all_kinks_of_many_lines_in_shared_rounds(seed):
    g = torch.Generator().manual_seed(seed)
    kinks = [torch.randn(n, generator=g).double().sort().values.tolist() for n in (1, 7, 40)]
    jumps = [torch.randn(len(k), generator=g).double().tolist() for k in kinks]
    target = BrokenLines(kinks, jumps)
    search = KinkSearch(target, ends(3), TOLERANCE)
    assert search.run()
    for line, expected in enumerate(kinks):
        assert torch.allclose(crossings(search, line), torch.tensor(expected).double(), atol=1e-8)
    assert target.rounds < 60
    assert target.rows < 6 * 48 + 9


def test_two_kinks_of_opposite_sign_whose_prediction_falls_outside_are_found():
    target = BrokenLines([[1.0, 1.01]], [[1.0, -1.5]])
    search = KinkSearch(target, ends(1), TOLERANCE)
    assert search.run()
    assert crossings(search).tolist() == pytest.approx([1.0, 1.01], abs=1e-7)


def test_kinks_closer_than_the_resolution_are_taken_for_one_and_the_search_ends():
    target = BrokenLines([[0.5, 0.5 + 1e-12]], [[1.0, 2.0]])
    search = KinkSearch(target, ends(1), TOLERANCE)
    assert search.run()
    assert len(crossings(search)) == 1


def test_a_line_without_kinks_is_empty_at_once():
    target = BrokenLines([[2e4]], [[1.0]])
    search = KinkSearch(target, ends(1), TOLERANCE)
    assert bool(search.empty.all())
    assert target.rounds == 1


def test_values_noisier_than_thought_do_not_make_the_search_endless():
    def noisy(line, t):
        exact = target(line, t)
        wobble = 1e-9 * torch.sin(1e9 * t)[:, None]
        return Samples(line, t, exact.value + wobble, exact.slope)

    target = BrokenLines([[-1.0, 0.3, 2.0]], [[1.0, -0.5, 0.25]])
    search = KinkSearch(noisy, ends(1), TOLERANCE)
    assert search.run()
    assert crossings(search).tolist() == pytest.approx([-1.0, 0.3, 2.0], abs=1e-6)


def test_a_curved_function_does_not_settle_and_the_search_says_so():
    def parabola(line, t):
        return Samples(line, t, (t**2)[:, None], (2 * t)[:, None])

    search = KinkSearch(parabola, ends(1, 10.0), TOLERANCE)
    assert not search.run(rounds=8)


def test_the_outermost_cells_are_sampled_nearer_to_their_kinks_when_asked():
    search = KinkSearch(BrokenLines([[-1.0, 3.0]], [[1.0, 1.0]]), ends(1), TOLERANCE)
    search.run()
    search.sample_ends()
    cells, _ = search.cells()[0]
    assert search.samples.t[cells].abs().max() < 10
