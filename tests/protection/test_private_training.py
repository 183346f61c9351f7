"""Private linear models and scalers: the sensitivity is as proven, and the insider's attack respects the bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris

from divulge.core.errors import InvalidInput, WrongShape
from divulge.informed.private_linear import fisher_information, rebuild
from divulge.protection import fisher_error_bound, private_logistic, private_scale
from divulge.training.private.logistic import clipped, minimum, sensitivity
from divulge.training.private.preprocessing import epsilon_within, mu_of_epsilon


def _cancer(columns: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order, :columns], y[order]
    return X, y, np.column_stack([X.min(axis=0), X.max(axis=0)])


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("C", [0.01, 1.0])
def test_no_record_moves_the_minimum_further_than_the_sensitivity(classes: int, C: float) -> None:
    draw, norm = np.random.default_rng(0), 2.0
    rows, labels = clipped(draw.normal(size=(25, 3)) * 3, norm), draw.integers(0, classes, 25)
    labels[:classes] = np.arange(classes)
    limit, tolerance = sensitivity(C, norm, classes), 1e-4
    base = minimum(rows, labels, classes, C, tolerance=tolerance)
    moves = []
    for direction in [*draw.normal(size=(10, 3)), *(-base[:, :-1])]:  # random rows, and the most surprising ones
        row = norm * direction / np.linalg.norm(direction)
        for label in range(classes):
            more = minimum(np.vstack([rows, row]), np.append(labels, label), classes, C, tolerance=tolerance)
            moves.append(float(np.linalg.norm(more - base)))
    assert max(moves) <= limit + 2 * tolerance
    if C == 0.01:
        assert max(moves) > 0.4 * limit  # the bound is not idle


@pytest.mark.slow
def test_the_noise_is_what_the_guarantee_needs_and_the_pipeline_is_scikit_learns() -> None:
    X, y, ranges = _cancer()
    private = private_logistic(X, y, epsilon=3.0, delta=1e-4, ranges=ranges, C=0.1, seed=0)
    assert private.epsilon == pytest.approx(3.0, rel=1e-6)
    assert private.deviation >= sensitivity(0.1, private.norm, 2) / private.mu
    weights = [private_logistic(X, y, epsilon=3.0, delta=1e-4, ranges=ranges, C=0.1, seed=s) for s in range(60)]
    seen = np.array([np.append(one.estimator[-1].coef_, one.estimator[-1].intercept_) for one in weights])
    assert seen.std(axis=0).mean() == pytest.approx(private.deviation, rel=0.15)
    assert set(private.estimator.predict(X)) <= {0, 1}
    assert not private_logistic(X, y, epsilon=3.0, ranges=ranges).seeded


@pytest.mark.parametrize("method", ["moments", "quantiles"])
def test_private_scalers_find_centre_and_width_and_share_the_budget(method: str) -> None:
    draw = np.random.default_rng(0)
    X = draw.normal([10.0, -3.0], [2.0, 0.5], size=(4000, 2))
    scale = private_scale(X, [(-20, 40), (-10, 10)], mu=1.0, method=method, seed=1)  # type: ignore[arg-type]
    np.testing.assert_allclose(scale.centre, [10, -3], atol=0.3)
    np.testing.assert_allclose(scale.scale, [2, 0.5], rtol=0.35)
    y = draw.integers(0, 2, 4000)
    options = {"ranges": [(-20, 40), (-10, 10)], "scaling": method, "seed": 0}
    private = private_logistic(X, y, epsilon=2.0, **options)  # type: ignore[arg-type]
    assert 0 < private.scale.mu < private.mu
    own = sensitivity(private.C, private.norm, 2) / private.deviation
    assert math.hypot(own, private.scale.mu) <= private.mu * 1.001  # what both spend together


@pytest.mark.slow
def test_a_quantile_is_as_private_as_it_says() -> None:
    # the chance of every answer changes by at most e^epsilon with one record more: measured on a coarse grid
    column, epsilon = np.linspace(-0.9, 0.9, 9), 1.0
    mu = mu_of_epsilon(epsilon) * math.sqrt(3)  # three quartiles share it
    assert epsilon_within(mu / math.sqrt(3)) == pytest.approx(epsilon)
    medians = []
    for extra in ([], [0.95]):
        rows = np.append(column, extra)[:, None]
        medians.append(
            [private_scale(rows, [(-1, 1)], mu=mu, method="quantiles", seed=s).centre[0] for s in range(1500)]
        )
    shares = [np.histogram(found, bins=4, range=(-1, 1))[0] / 1500 for found in medians]
    ratio = np.abs(np.log(shares[0] / shares[1]))
    assert ratio.max() < epsilon  # of the median of three, which is no less private


@pytest.mark.slow
def test_without_noise_the_insider_is_exact_and_with_noise_never_better_than_the_fisher_bound() -> None:
    X, y, ranges = _cancer(5)
    n, spread = 120, X.std(axis=0)
    errors: dict[float, list[float]] = {1e9: [], 1000.0: []}
    information = []
    for record in range(12):
        known = np.delete(X[:n], record, axis=0), np.delete(y[:n], record)
        for epsilon, found in errors.items():
            private = private_logistic(X[:n], y[:n], epsilon=epsilon, ranges=ranges, C=0.1, seed=record)
            x, label = rebuild(private, *known, X[n:], y[n:])
            found.append(float(np.square((x - X[record]) / spread).mean()))
            if epsilon == 1e9:
                assert label == y[record]
            else:
                information.append(fisher_information(private, X[:n], y[:n], record))
    assert max(errors[1e9]) < 1e-3
    scaled = np.diag(spread) @ np.mean(information, axis=0) @ np.diag(spread)
    limit = fisher_error_bound(scaled, np.cov((X / spread).T))
    assert 0.1 * np.mean(errors[1000.0]) < limit < 1.2 * np.mean(errors[1000.0])


def test_softmax_records_are_rebuilt_without_noise() -> None:
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(150)
    X, y = X[order], y[order]
    private = private_logistic(X[:90], y[:90], epsilon=1e10, ranges=[(0, 10)] * 4, C=1.0, seed=0)
    x, label = rebuild(private, X[1:90], y[1:90], X[90:], y[90:])
    np.testing.assert_allclose(x, X[0], atol=0.05)
    assert label == y[0]


def test_bad_input_gets_one_sentence() -> None:
    X, y, ranges = _cancer()
    with pytest.raises(WrongShape, match="one a column"):
        private_logistic(X, y, epsilon=1.0, ranges=ranges[:2])
    with pytest.raises(InvalidInput, match="larger one"):
        private_scale(X, np.zeros((6, 2)), mu=1.0)
    with pytest.raises(InvalidInput, match="two classes"):
        private_logistic(X, np.zeros(len(X)), epsilon=1.0, ranges=ranges)
    with pytest.raises(InvalidInput):
        private_logistic(X, y[:3], epsilon=1.0, ranges=ranges)
