"""The audit of epsilon by canaries: below the claim where training keeps it, above it where training is broken."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

import divulge
from divulge.core.errors import DivulgeError
from divulge.membership import epsilon_audit, many_run_epsilon
from divulge.membership.epsilon import planned_epsilon, planned_guesses
from divulge.training import Privacy
from divulge.training.private import canaries, trainer
from divulge.training.private.accounting import noise_for

Data = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def digits() -> Data:
    X, y = divulge.datasets.load("digits").train
    return X[:200], y[:200]


def private(epsilon: float, *, batch_size: int | None = None, seed: int | None = 0) -> divulge.Recipe:
    recipe = divulge.Recipe(widths=[64, 64, 10], epochs=10, batch_size=batch_size, learning_rate=0.5)
    return replace(recipe, privacy=Privacy(noise_multiplier=noise_of(epsilon, batch_size), noise_seed=seed))


@lru_cache
def noise_of(epsilon: float, batch_size: int | None) -> float:
    batches = 1 if batch_size is None else 200 // batch_size
    return noise_for(epsilon, delta=1e-5, steps=10 * batches, sampling_rate=1 / batches, accountant="rdp" if batches > 1
                     else "pld")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_the_limit_lies_below_the_claim_and_above_a_third_of_it_where_that_is_possible(
    digits: Data, epsilon: float
) -> None:
    for seed in range(2):
        audit = epsilon_audit(private(epsilon, seed=seed), *digits, seed=seed)
        assert audit.claimed == pytest.approx(epsilon, rel=1e-3)
        assert not audit.contradicts
        assert audit.epsilon < epsilon
        if epsilon >= 4:
            assert audit.epsilon > 0.3 * epsilon
        assert audit.canaries == 4810  # as many as there are parameters
        assert audit.facts["right"] <= audit.facts["guesses"]


@pytest.mark.slow
def test_sampled_batches_and_weaker_adversaries_see_less(digits: Data) -> None:
    recipe = private(8.0, batch_size=100)
    found = {sees: epsilon_audit(recipe, *digits, sees=sees, claimed=8.0) for sees in ("steps", "weights", "values")}  # type: ignore[arg-type]
    assert found["steps"].epsilon > 0.3 * 8
    assert found["steps"].epsilon > found["weights"].epsilon > 0
    assert found["values"].epsilon < 8
    assert found["values"].canaries == 100  # half of the records
    assert all(not audit.contradicts for audit in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["noise", "clipping", "sampling"])
def test_broken_private_training_is_found_out(digits: Data, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "noise":  # a quarter of what is accounted for
        add = trainer._add_noise
        monkeypatch.setattr(trainer, "_add_noise", lambda gradients, deviation, s: add(gradients, deviation / 4, s))
    elif fault == "clipping":
        monkeypatch.setattr(canaries, "factors", lambda norms, clip: torch.ones_like(norms))
    else:  # every record in every step, accounted for as samples
        source = trainer.SeededRandomness
        monkeypatch.setattr(source, "sample", lambda self, n, rate: torch.arange(n))
    sampled = fault == "sampling"
    audit = epsilon_audit(private(1.0, batch_size=20 if sampled else None), *digits, claimed=1.0 if sampled else None)
    assert audit.contradicts
    assert "contradicts the claim" in str(audit)


def test_a_seed_fixes_everything_where_the_noise_has_one(digits: Data) -> None:
    first, second = (epsilon_audit(private(4.0), *digits, canaries=500, seed=3).as_dict() for _ in range(2))
    assert first | {"seconds": 0} == second | {"seconds": 0}


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_planned_limit_covers_randomised_response(epsilon: float) -> None:
    """Randomised response has this epsilon exactly, so a limit above it is an error: 5 % of them at most."""
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))

    def respond(rng: np.random.Generator) -> tuple[Any, Any]:
        truth = rng.random(300) < 0.5
        said = np.where(rng.random(300) < keep, truth, ~truth) + 0.0
        return said[truth], said[~truth]

    plan = planned_guesses(respond, delta=0.0, confidence=0.95)
    limits = np.array([
        planned_epsilon(*respond(np.random.default_rng(seed)), plan, delta=0.0, confidence=0.95, seed=seed)[0]
        for seed in range(400)
    ])  # fmt: skip
    assert (limits > epsilon).mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
    assert np.median(limits) > 0.4 * epsilon


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_limit_from_many_runs_covers_randomised_response(epsilon: float) -> None:
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    limits = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        inside, outside = (rng.random(200) < keep) + 0.0, (rng.random(200) >= keep) + 0.0
        limits.append(many_run_epsilon(inside, outside, delta=0.0))
    assert (np.array(limits) > epsilon).mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)
    assert np.median(limits) > (0.4 * epsilon if epsilon > 1 else 0)


@pytest.mark.slow
def test_many_runs_with_one_canary(digits: Data) -> None:
    recipe = divulge.Recipe(widths=[64, 10], epochs=1, privacy=Privacy(noise_multiplier=0.6, noise_seed=0))
    audit = epsilon_audit(recipe, *digits, runs=150)
    assert (audit.canaries, audit.runs, audit.scores.shape) == (1, 150, (150,))
    assert audit.claimed is not None
    assert 0.5 < audit.epsilon < audit.claimed


def test_every_way_to_train_is_audited_by_its_answers(digits: Data) -> None:
    recalls = epsilon_audit(KNeighborsClassifier(1), *digits)  # recalls every wrong label
    assert (recalls.method, recalls.claimed) == ("values", None)
    assert recalls.epsilon > 2
    assert not recalls.contradicts
    assert epsilon_audit(KNeighborsClassifier(1), *digits, claimed=1.0).contradicts

    def ignores(X: Any, y: Any, seed: int) -> object:
        return RandomForestClassifier(5, max_depth=2, random_state=0).fit(digits[0], digits[1])

    assert epsilon_audit(ignores, *digits).epsilon == 0.0
    X, y = divulge.datasets.load("diabetes").train
    assert epsilon_audit(KNeighborsRegressor(1), X, y.double() + 0.5).epsilon > 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"train": 3}, "a Recipe, an estimator"),
        ({"sees": "steps"}, "Recipe with privacy"),
        ({"sees": "everything"}, "sees is one of"),
        ({"runs": 5}, "5 runs say nothing"),
        ({"canaries": 3}, "canaries is a whole number"),
        ({"delta": 2}, "delta"),
        ({"rows": 12}, "room for 10 canaries"),
        ({"one_class": True}, "the same label"),
    ],
)
def test_what_does_not_fit_is_one_sentence(digits: Data, options: dict[str, Any], sentence: str) -> None:
    X, y = digits[0][: options.pop("rows", 200)], digits[1][: len(digits[0])]
    y = torch.zeros(len(X)).long() if options.pop("one_class", False) else y[: len(X)]
    with pytest.raises(DivulgeError, match=sentence) as caught:
        epsilon_audit(options.pop("train", KNeighborsClassifier(1)), X, y, **options)
    assert str(caught.value).count("\n") == 0
