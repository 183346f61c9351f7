"""The scalar search: every kink of a broken line, none that is not there, several lines in one request."""

from __future__ import annotations

import numpy as np
import pytest

from divulge.extraction.values.line_scan import Line, Piece, chord_at, middle, run_together, scan


def broken_line(kinks, jumps):
    kinks, jumps = np.asarray(kinks), np.asarray(jumps)

    def ask(rows):
        return (np.maximum(rows[:, :1] - kinks, 0.0) @ jumps[:, None]) + 0.3 * rows[:, :1]

    return ask


def search(ask, *, noise=1e-14, far=1e4, seed=0, **options):
    line = Line(np.zeros(1), np.ones(1))
    found = scan(
        line,
        -far,
        far,
        noise=lambda rows: noise * (1 + np.abs(rows[:, 0])),
        smallest=lambda t: 1e-7 * (1 + abs(t)),
        rng=np.random.default_rng(seed),
        **options,
    )
    return run_together(ask, [found])[0]


@pytest.mark.parametrize("seed", range(10))
def test_all_kinks_are_found_where_they_are(seed):
    rng = np.random.default_rng(seed)
    kinks = np.sort(rng.standard_cauchy(40))
    found = search(broken_line(kinks, rng.normal(size=40)), seed=seed)
    assert found.complete
    assert all(kink.single for kink in found.kinks)
    np.testing.assert_allclose([kink.t for kink in found.kinks], kinks, rtol=1e-7, atol=1e-7)


def test_two_kinks_of_opposite_sign_do_not_pass_for_one():
    for seed in range(20):
        found = search(broken_line([0.519, 0.522], [-2.2, 1.7]), seed=seed)
        np.testing.assert_allclose([kink.t for kink in found.kinks], [0.519, 0.522], atol=1e-9)


def test_kinks_closer_than_can_be_told_apart_are_one_bundle():
    found = search(broken_line([0.5, 0.5 + 1e-9], [1.0, 1.0]))
    assert len(found.kinks) == 1
    np.testing.assert_allclose(found.kinks[0].jump, 2.0, rtol=1e-6)


def test_a_straight_line_has_none():
    found = search(broken_line([], []))
    assert not found.kinks
    assert len(found.pieces) == 1


def test_noise_is_not_taken_for_kinks():
    rng = np.random.default_rng(0)
    ask = broken_line([-1.0, 0.2, 2.0], [1.0, -0.5, 2.0])
    found = search(lambda rows: ask(rows) + 1e-6 * rng.normal(size=(len(rows), 1)), noise=1e-6, far=50.0)
    np.testing.assert_allclose([kink.t for kink in found.kinks], [-1.0, 0.2, 2.0], atol=1e-4)


def test_a_function_that_bends_everywhere_is_given_up():
    found = search(lambda rows: np.tanh(rows[:, :1]), limit=2_000)
    assert not found.complete


def test_many_lines_share_their_requests():
    requests = []
    ask = broken_line([0.1, 0.7], [1.0, 1.0])

    def counted(rows):
        requests.append(len(rows))
        return ask(rows)

    def one(seed):
        return scan(
            Line(np.zeros(1), np.ones(1)),
            -10.0,
            10.0,
            noise=lambda rows: np.full(len(rows), 1e-14),
            smallest=lambda t: 1e-7,
            rng=np.random.default_rng(seed),
        )

    alone = [len(run_together(counted, [one(seed)])[0].kinks) for seed in range(5)]
    each = len(requests)
    requests.clear()
    side_by_side = run_together(counted, [one(seed) for seed in range(5)])
    assert [len(found.kinks) for found in side_by_side] == alone == [2] * 5
    assert len(requests) < each / 2


def test_values_far_out_keep_their_digits():
    t = np.array([1.0])
    value = chord_at(t, np.array(-1e8), np.array([-3e8]), np.array(2.0), np.array([6.0]))
    np.testing.assert_allclose(value, [[3.0]], rtol=1e-15)
    piece = Piece(np.array([0.0, 1.0]), np.array([[0.0], [2.0]]), np.array([1e-3, 1e-3]))
    np.testing.assert_allclose(piece.at(3.0), [6.0])
    assert piece.uncertainty(3.0) > piece.uncertainty(0.5)
    assert middle(-1e4, 1e4) == pytest.approx(0.0, abs=1e-12)
