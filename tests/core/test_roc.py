"""ROC curves against scikit-learn, and intervals against what they promise: coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm
from sklearn import metrics

from divulge.core.errors import InvalidInput
from divulge.core.roc import area, area_difference, implied_epsilon, rate_at, roc_curve


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_curve_area_and_rates_are_those_of_scikit_learn(seed: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(0.7, 1, 300), rng.normal(0, 1, 200)
    if ties:
        inside, outside = inside.round(1), outside.round(1)
    truth, scores = np.repeat([1, 0], [300, 200]), np.concatenate([inside, outside])
    fpr, tpr, _ = metrics.roc_curve(truth, scores, drop_intermediate=False)
    curve = roc_curve(inside, outside)
    assert curve.fpr == pytest.approx(fpr)
    assert curve.tpr == pytest.approx(tpr)
    assert area(inside, outside).value == pytest.approx(metrics.roc_auc_score(truth, scores))
    for level in (0.01, 0.05, 0.5):
        assert rate_at(inside, outside, level).value == pytest.approx(tpr[fpr <= level + 1e-12].max())


def test_the_areas_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng, truth = np.random.default_rng(0), norm.cdf(1 / np.sqrt(2))
    held = [
        low <= truth <= high for _, low, high in (area(rng.normal(1, 1, 60), rng.normal(0, 1, 80)) for _ in range(400))
    ]
    assert 0.92 <= np.mean(held) <= 0.985


def test_the_interval_of_a_rate_covers_that_its_threshold_is_estimated() -> None:
    rng, truth = np.random.default_rng(0), norm.sf(norm.isf(0.05) - 1)
    held = []
    for _ in range(400):
        _, low, high = rate_at(rng.normal(1, 1, 2000), rng.normal(0, 1, 100), 0.05)
        held.append(low <= truth <= high)
    assert np.mean(held) >= 0.95  # Clopper and Pearson's limits at the estimated threshold hold 30 % of the time here


def test_separated_groups_do_not_have_an_interval_of_no_width() -> None:
    value, low, high = area(np.arange(10.0) + 100, np.arange(20.0))
    assert (value, high) == (1.0, 1.0)
    assert 0.6 < low < 0.8


def test_too_few_negatives_are_refused_with_the_number_that_it_takes() -> None:
    with pytest.raises(InvalidInput, match="at least 1,000"):
        rate_at(np.zeros(10), np.zeros(500), 0.001)
    with pytest.raises(InvalidInput, match="strictly between 0 and 1"):
        rate_at(np.zeros(10), np.zeros(500), 1.5)
    with pytest.raises(InvalidInput, match="finite"):
        area(np.array([np.nan]), np.zeros(3))


def test_the_paired_difference_is_that_of_the_areas_and_its_interval_covers() -> None:
    rng, held = np.random.default_rng(1), 0
    truth = norm.cdf(0.5 / np.sqrt(2)) - norm.cdf(1 / np.sqrt(2))
    for _ in range(300):
        common = rng.normal(size=(2, 120))
        one = common[0] + 1, common[1]
        other = 0.8 * common[0] + 0.6 * rng.normal(size=120) + 0.5, 0.8 * common[1] + 0.6 * rng.normal(size=120)
        value, low, high = area_difference(one, other)
        held += low <= truth <= high
    assert value == pytest.approx(area(*other).value - area(*one).value)
    assert 0.91 <= held / 300 <= 0.99
    with pytest.raises(InvalidInput, match="same records"):
        area_difference((np.zeros(3), np.zeros(3)), (np.zeros(2), np.zeros(3)))


def test_counts_of_randomised_response_imply_no_more_than_its_epsilon() -> None:
    rng, epsilon = np.random.default_rng(0), 1.5
    keep = np.exp(epsilon) / (1 + np.exp(epsilon))
    counts = zip(rng.binomial(300, keep, 500), rng.binomial(300, 1 - keep, 500), strict=True)
    found = [implied_epsilon(int(hits), 300, int(alarms), 300, delta=0.0, error=0.05) for hits, alarms in counts]
    assert np.mean(np.array(found) > epsilon) <= 0.05
    assert np.median(found) > 1.0
