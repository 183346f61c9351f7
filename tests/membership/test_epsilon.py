"""The lower limit on epsilon from one run: against the theorem computed another way, and never above the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from divulge.core.errors import InvalidInput
from divulge.membership import one_run_epsilon, one_run_p_value
from divulge.membership.epsilon import epsilon_of_scores


@pytest.mark.parametrize(("right", "guesses"), [(60, 100), (90, 100), (30, 30)])
def test_without_delta_it_is_an_exact_binomial_test(right: int, guesses: int) -> None:
    for epsilon in (0.0, 0.5, 2.0):
        test = binomtest(right, guesses, math.exp(epsilon) / (1 + math.exp(epsilon)), alternative="greater")
        assert one_run_p_value(right, guesses, guesses, epsilon, 0.0) == pytest.approx(test.pvalue)


def test_with_delta_it_is_the_sum_written_out() -> None:
    right, guesses, records, epsilon, delta = 40, 50, 80, 0.7, 1e-3
    chance = math.exp(epsilon) / (1 + math.exp(epsilon))
    alpha = max(sum(binom.pmf(k, guesses, chance) for k in range(right - i, right)) / i for i in range(1, right + 1))
    expected = binom.sf(right - 1, guesses, chance) + 2 * records * delta * alpha
    assert one_run_p_value(right, guesses, records, epsilon, delta) == pytest.approx(expected)


def test_the_limit_is_the_epsilon_at_which_the_test_turns() -> None:
    limit = one_run_epsilon(80, 100, 200, delta=1e-6)
    assert one_run_p_value(80, 100, 200, limit, 1e-6) == pytest.approx(0.05, rel=1e-6)
    assert one_run_epsilon(48, 100, 200) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_randomised_response_is_not_said_to_leak_more_than_it_does(epsilon: float) -> None:
    over = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        truth = rng.random(400) < 0.5
        kept = rng.random(400) < math.exp(epsilon) / (1 + math.exp(epsilon))
        said = np.where(kept, truth, ~truth) + 0.0
        over += epsilon_of_scores(said[truth], said[~truth], delta=0.0 + 1e-9, seed=seed, coins=True) > epsilon
    assert over <= 6  # 5 % of 60 are 3


def test_most_of_epsilon_is_found_where_guesses_are_as_good_as_it_allows() -> None:
    rng = np.random.default_rng(0)
    truth = rng.random(4000) < 0.5
    kept = rng.random(4000) < math.exp(2.0) / (1 + math.exp(2.0))
    said = np.where(kept, truth, ~truth) + 0.0
    assert epsilon_of_scores(said[truth], said[~truth], coins=True) > 1.7


def test_counts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidInput, match="ascend"):
        one_run_epsilon(5, 4, 10)
