"""Limits of a rate hold as often as they promise."""

from __future__ import annotations

import pytest
from scipy.stats import binom, binomtest

from divulge.core.errors import InvalidInput
from divulge.core.statistics import clopper_pearson, rate_at_least, rate_at_most


@pytest.mark.parametrize(("hits", "trials"), [(0, 7), (7, 7), (3, 7), (41, 1000)])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_the_interval_is_the_exact_one(hits, trials, confidence):
    exact = binomtest(hits, trials).proportion_ci(confidence, method="exact")
    assert clopper_pearson(hits, trials, confidence) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_one_sided_limits_put_the_allowed_error_on_one_side():
    assert binom.sf(2, 20, rate_at_least(3, 20, error=0.01)) == pytest.approx(0.01)
    assert binom.cdf(3, 20, rate_at_most(3, 20, error=0.01)) == pytest.approx(0.01)


def test_a_rate_near_zero_keeps_its_digits():
    assert rate_at_least(1, 10**6, error=5e-4) == pytest.approx(5.00125e-10, rel=1e-5)


@pytest.mark.parametrize(
    ("hits", "trials", "error"), [(1, 0, 0.1), (5, 4, 0.1), (-1, 4, 0.1), (1, 4, 0.0), (1, 4, 1.0)]
)
def test_counts_that_make_no_sense_are_refused(hits, trials, error):
    for limit in (rate_at_least, rate_at_most):
        with pytest.raises(InvalidInput):
            limit(hits, trials, error=error)
