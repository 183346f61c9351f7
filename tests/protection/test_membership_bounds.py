"""Bounds on membership inference against dp-accounting's privacy-loss distributions and against one another."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from divulge.core.errors import InvalidInput
from divulge.protection import membership_advantage_bound, membership_bound

LEVELS = (0.001, 0.01, 0.1, 0.5, 0.9)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
def test_the_gaussian_bound_is_that_of_the_privacy_loss_distribution(mu: float) -> None:
    library = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    loss = library.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-3)
    epsilons = np.linspace(-8, 8, 3201)
    deltas = np.array(loss.get_delta_for_epsilon(epsilons))
    for fpr in LEVELS:
        independent = min(1.0, float((np.exp(epsilons) * fpr + deltas).min()))
        assert membership_bound(fpr, gaussian=mu) == pytest.approx(independent, rel=2e-3)
    tested = norm.sf(norm.isf(np.linspace(0.001, 0.999, 999)) - mu) - np.linspace(0.001, 0.999, 999)
    assert membership_advantage_bound(gaussian=mu) == pytest.approx(tested.max(), abs=1e-4)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_randomised_response_reaches_the_bound_of_epsilon(epsilon: float) -> None:
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert membership_bound(1 - truth, epsilon=epsilon) == pytest.approx(truth)
    assert membership_advantage_bound(epsilon=epsilon) == pytest.approx(2 * truth - 1)
    best = max(membership_bound(fpr, epsilon=epsilon, delta=0.01) - fpr for fpr in np.linspace(0.001, 0.999, 999))
    assert membership_advantage_bound(epsilon=epsilon, delta=0.01) == pytest.approx(best, abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.2, 1.0])
def test_concentrated_and_renyi_bounds_hold_for_the_gaussian_mechanism_that_has_them(mu: float) -> None:
    rho = mu**2 / 2
    orders = [(alpha, alpha * rho) for alpha in (1.5, 2.0, 4.0, 16.0, 64.0)]
    for fpr in LEVELS:
        exact = membership_bound(fpr, gaussian=mu)
        assert exact - 1e-12 <= membership_bound(fpr, zcdp=rho) <= 1
        assert exact - 1e-12 <= membership_bound(fpr, rdp=orders) <= 1
    exact = membership_advantage_bound(gaussian=mu)
    assert exact <= membership_advantage_bound(zcdp=rho) <= 1
    assert exact <= membership_advantage_bound(rdp=orders) <= 1


@pytest.mark.parametrize(
    ("fpr", "privacy", "expected"),
    [
        (0.001, {"epsilon": 1.0, "delta": 1e-5}, 0.002728281828),
        (0.1, {"epsilon": 4.0, "delta": 1e-3}, 0.983534240639),
        (0.5, {"epsilon": 1.0, "delta": 1e-5}, 0.816063958209),
        (0.01, {"gaussian": 0.5}, 0.033898939123),
        (0.1, {"gaussian": 2.0}, 0.763759584106),
        (0.001, {"zcdp": 1.0}, 0.070234352222),
        (0.01, {"zcdp": 0.1}, 0.035062527900),
        (0.1, {"zcdp": 1.0}, 0.689217225717),
        (0.5, {"zcdp": 0.1}, 0.712088533763),
    ],
)
def test_rates_are_those_of_riskcal(fpr: float, privacy: dict[str, float], expected: float) -> None:
    """Printed by riskcal 1.5.1: 1 - get_beta_from_adp, _gdp and _zcdp (Kulynych et al.)."""
    assert membership_bound(fpr, **privacy) == pytest.approx(expected, rel=1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("privacy", "expected"),
    [
        ({"epsilon": 1.0, "delta": 1e-5}, 0.462122536088),
        ({"epsilon": 4.0, "delta": 1e-3}, 0.964063552496),
        ({"gaussian": 0.5}, 0.197412651366),
        ({"zcdp": 0.1}, 0.221741916451),
        ({"zcdp": 1.0}, 0.647918228468),
    ],
)
def test_advantages_are_those_of_riskcal(privacy: dict[str, float], expected: float) -> None:
    """Printed by riskcal 1.5.1: get_advantage_from_adp, _gdp and _zcdp."""
    assert membership_advantage_bound(**privacy) == pytest.approx(expected, rel=1e-4)  # type: ignore[arg-type]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="strictly between 0 and 1"):
        membership_bound(0.0, epsilon=1.0)
    with pytest.raises(InvalidInput, match="exactly one way"):
        membership_bound(0.1)
    with pytest.raises(InvalidInput, match="exactly one way"):
        membership_advantage_bound(epsilon=1.0, gaussian=1.0)
