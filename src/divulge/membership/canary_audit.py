"""``membership.epsilon_audit``: how much epsilon does training spend at least? By canaries, beside what is claimed.

One run (Steinke, Nasr and Jagielski 2023): each of many canaries is put into the training set by a coin of its own, one
model is trained, and whoever sees it guesses the coins. Many runs (Jagielski, Ullman and Oprea 2020): one canary, and a
coin for each run. The limits are in ``epsilon``. Three adversaries:

``steps`` sees the noisy sum of every step of private training. The canaries are gradients along one parameter each
(``training.private.canaries``). How many guesses are made is planned from the claimed privacy before training.
``weights`` sees only the trained weights, moved from their start along each canary's parameter.
``values`` asks the trained model. The canaries are records of the data with a wrong label, and the score is by how much
the model fits it better than a model that was trained without any canary. This fits every way to train.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from divulge.core import workers as pool_of_workers
from divulge.core.errors import InvalidInput, MissingPackage
from divulge.core.result import AttackResult
from divulge.core.validation import checked_choice, checked_number, checked_seed, checked_whole
from divulge.membership.epsilon import epsilon_of_scores, many_run_epsilon, planned_epsilon, planned_guesses
from divulge.membership.records import Records, checked_records
from divulge.membership.reference_models import Train, check_train, fit_of, targets_of, trained_on
from divulge.oracles.record_scores import Task
from divulge.training import Recipe
from divulge.training.private import accounting, trainer
from divulge.training.private.canaries import GradientCanaries, log_ratio

Sees = Literal["auto", "steps", "weights", "values"]
SEES: tuple[Sees, ...] = get_args(Sees)
FEWEST = 10
"""Canaries of one run: with fewer no limit comes out."""
FEWEST_RUNS = 20
WRONG_BY = 3.0
"""A quantity's canary is wrong by so many standard deviations."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class EpsilonAudit(AttackResult):
    """A lower limit on the epsilon of a training procedure, beside the one that is claimed.

    Attributes
    ----------
    epsilon : float
        The lower limit; 0 if the canaries contradict nothing.
    claimed : float or None
        The epsilon that the accountant computes or the caller names: an upper limit, if it is right.
    delta : float
        The delta at which both hold.
    confidence : float
        With which the lower limit holds.
    canaries, runs : int
        Canaries of a run, and training runs.
    scores : ndarray [canaries] or [runs]
        How much each canary, or each run, looks as if the canary was in.
    included : ndarray of bool
        What the coins said.
    """

    epsilon: float
    claimed: float | None
    delta: float
    confidence: float
    canaries: int
    runs: int
    scores: Array = field(repr=False)
    included: NDArray[np.bool_] = field(repr=False)

    @property
    def contradicts(self) -> bool:
        """Whether the lower limit lies above the claim: the training is not as private as it says."""
        return self.claimed is not None and self.epsilon > self.claimed

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; scores are left out."""
        return super().as_dict() | {
            "epsilon": self.epsilon, "claimed": self.claimed, "contradicts": self.contradicts, "delta": self.delta,
            "confidence": self.confidence, "canaries": self.canaries, "runs": self.runs,
        }  # fmt: skip

    def __str__(self) -> str:
        limit = f"epsilon is at least {self.epsilon:.2f} at delta {self.delta:g}, with {self.confidence:.0%} confidence"
        if self.claimed is None:
            return f"{limit}; none is claimed."
        verdict = "which contradicts the claim" if self.contradicts else "which does not contradict it"
        return f"{limit}; {self.claimed:.2f} is claimed, {verdict}."


def epsilon_audit(
    train: Train,
    X: object,
    y: object,
    *,
    sees: Sees = "auto",
    canaries: int = 5_000,
    runs: int = 1,
    claimed: float | None = None,
    delta: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    workers: pool_of_workers.Workers = None,
) -> EpsilonAudit:
    """A lower limit on the epsilon that a training procedure spends, by canaries that a coin puts in.

    Parameters
    ----------
    train : Recipe, estimator or callable
        How models are trained: a recipe (with ``privacy`` for ``"steps"`` and ``"weights"``), an estimator to clone, or
        a function from ``(X, y, seed)`` to a model.
    X, y : array [n, d], array [n]
        Training records and their labels or targets.
    sees : {"auto", "steps", "weights", "values"}, default "auto"
        What the adversary sees: the noisy sum of every step, the trained weights, or the model's answers. ``"auto"``
        takes steps for a recipe with ``privacy``, and values otherwise.
    canaries : int, default 5000
        Canaries of one run; no more than the model has parameters, or half of the records.
    runs : int, default 1
        Training runs. Above 1 each run has one canary: this takes hundreds of runs, and no assumption on how canaries
        act on each other.
    claimed : float, optional
        The epsilon that is claimed; computed by the accountant for a recipe with ``privacy``.
    delta : float, optional
        The delta at which the limit holds; that of the recipe's privacy, or 1e-5, by default.
    confidence : float, default 0.95
        With which the limit holds.
    seed : int, default 0
        Fixes the coins and the canaries. The noise of private training is what the recipe says: it comes from the
        operating system, and differs from run to run, unless the recipe has a seed for it.
    workers : int, str or None, default None
        Where many runs are trained, as in ``divulge.workers``.

    Returns
    -------
    EpsilonAudit
        The limit and the claim.

    Raises
    ------
    InvalidInput
        If the adversary does not fit the training, or records or runs are too few.

    Examples
    --------
    >>> import divulge
    >>> from divulge.training import Privacy
    >>> X, y = divulge.datasets.load("iris").train
    >>> private = Privacy(noise_multiplier=6.0, noise_seed=0)
    >>> recipe = divulge.Recipe(widths=[4, 64, 3], epochs=30, privacy=private)
    >>> audit = divulge.membership.epsilon_audit(recipe, X, y)
    >>> 0 < audit.epsilon < audit.claimed, audit.contradicts
    (True, False)
    """
    started = time.perf_counter()
    check_train(train)
    seed, runs = checked_seed(seed), checked_whole("runs", runs, at_least=1)
    confidence = checked_number("confidence", confidence, above=0, below=1)
    records = checked_records((X, y), "training records")
    privacy = train.privacy if isinstance(train, Recipe) else None
    delta = checked_number("delta", delta or (1e-5 if privacy is None else privacy.delta), above=0, below=1)
    seen = _checked_sees(sees, train)
    if 1 < runs < FEWEST_RUNS:
        raise InvalidInput(f"{runs} runs say nothing; give runs=1 for many canaries in one run, or {FEWEST_RUNS} runs.")
    count = 1 if runs > 1 else _checked_count(canaries, seen, train, records)
    spent, notes = _claimed(train, len(records), delta) if claimed is None else (claimed, ())
    run = partial(_run, train, records, seen, count, seed)
    if runs > 1:
        done = pool_of_workers.run(run, range(runs), workers=workers, stage="training with and without the canary")
    else:
        done = [run(0)]
    scores, included = (np.concatenate([one[part] for one in done]) for part in (0, 1))
    epsilon, facts = _limit(train, len(records), seen, runs, scores, included, delta, confidence, seed)
    return EpsilonAudit(
        epsilon, spent, delta, confidence, count, runs, scores, included, method=seen, seed=seed, notes=notes,
        facts=facts, seconds=time.perf_counter() - started,
        reason="" if epsilon > 0 else "The guesses about the canaries are no better than chance explains.",
    )  # fmt: skip


def _limit(
    train: Train, rows: int, seen: str, runs: int, scores: Array, included: NDArray[np.bool_], delta: float,
    confidence: float, seed: int,
) -> tuple[float, dict[str, Any]]:  # fmt: skip
    inside, outside = scores[included], scores[~included]
    if runs > 1:
        if min(len(inside), len(outside)) < 2:
            raise InvalidInput("The coins put the canary into nearly all runs or none; take more runs.")
        return many_run_epsilon(inside, outside, delta=delta, confidence=confidence), {}
    if seen != "steps":
        return epsilon_of_scores(inside, outside, delta=delta, confidence=confidence, seed=seed, coins=True), {}
    assert isinstance(train, Recipe)
    plan = planned_guesses(partial(_ideal, train, rows, len(scores)), delta=delta, confidence=confidence)
    epsilon, right, guesses = planned_epsilon(inside, outside, plan, delta=delta, confidence=confidence, seed=seed)
    return epsilon, {"guesses": guesses, "right": right}


def _ideal(recipe: Recipe, rows: int, canaries: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Scores as the recipe's noise allows them at best, of canaries that were in and of others."""
    assert recipe.privacy is not None
    steps, rate = trainer.schedule(recipe, rows)
    noise = recipe.privacy.noise_multiplier
    included = rng.random(canaries) < 0.5
    if rate == 1:  # the steps add up to one
        steps, noise = 1, noise / np.sqrt(steps)
    scores = np.zeros(canaries)
    for _ in range(steps):
        drawn = included & (rng.random(canaries) < rate)
        scores += log_ratio(drawn + noise * rng.normal(size=canaries), noise, rate)
    return scores[included], scores[~included]


# -- one run ----------------------------------------------------------------------------------------------------------


def _run(
    train: Train, records: Records, seen: str, canaries: int, seed: int, run: int
) -> tuple[Array, NDArray[np.bool_]]:
    """Train once with the canaries that the coins put in: how much each looks as if it was in, and whether it was."""
    included = np.random.default_rng([seed, 12, run]).random(canaries) < 0.5
    if seen == "values":
        return _by_answers(train, records, included, seed, run), included
    assert isinstance(train, Recipe)
    recipe = _of_run(train, run)
    assert recipe.privacy is not None
    start = recipe.initial_model()
    steps = trainer.schedule(recipe, len(records))
    inserted = GradientCanaries(
        included, _parameters(recipe), noise_multiplier=recipe.privacy.noise_multiplier, sampling_rate=steps[1],
        seed=seed,
    )  # fmt: skip
    model = trainer.train(recipe, records.X, targets_of(records.y), start=start, canaries=inserted)
    if seen == "steps":
        return inserted.scores, included
    moved = _flat(start) - _flat(model)  # descent goes against the gradient
    return moved[inserted.coordinates].double().numpy(), included


def _by_answers(train: Train, records: Records, included: NDArray[np.bool_], seed: int, run: int) -> Array:
    rng = np.random.default_rng([seed, 13])  # the same canaries in every run
    order = rng.permutation(len(records))
    chosen, rest = order[: len(included)], np.sort(order[len(included) :])
    wrong, task = _wrong_labels(records.y[chosen], records.y, rng)
    canaries, others = Records(records.X[torch.as_tensor(chosen)], wrong), records.at(rest)
    added = canaries.at(np.flatnonzero(included))
    together = Records(torch.cat([others.X, added.X]), np.concatenate([others.y, added.y]))
    models = [trained_on(_of_run(train, run), part, _run_seed(seed, run)) for part in (together, others)]
    own, without = (fit_of(model, canaries, task) for model in models)
    return own - without


def _wrong_labels(own: NDArray[Any], y: NDArray[Any], rng: np.random.Generator) -> tuple[NDArray[Any], Task]:
    """Another label for each record at random, or a target that is far off."""
    if y.dtype.kind == "f" and bool((y != np.round(y)).any()):
        return own + WRONG_BY * y.std(axis=0) * rng.choice([-1.0, 1.0], own.shape), "regression"
    values = np.unique(y)
    if len(values) < 2:
        raise InvalidInput("All records have the same label; canaries with a wrong label need at least two.")
    place = np.searchsorted(values, own) + rng.integers(1, len(values), len(own))
    return values[place % len(values)], "classification"


def _of_run(train: Any, run: int) -> Any:
    """The same training with other noise, where the recipe has a seed for it."""
    if not isinstance(train, Recipe) or train.privacy is None or train.privacy.noise_seed is None or run == 0:
        return train
    return replace(train, privacy=replace(train.privacy, noise_seed=train.privacy.noise_seed + run))


def _run_seed(seed: int, run: int) -> int:
    return int(np.random.SeedSequence([seed, 14, run]).generate_state(1)[0])


# -- what is handed in ------------------------------------------------------------------------------------------------


def _checked_sees(sees: Sees, train: Train) -> str:
    chosen = checked_choice("sees", sees, SEES)
    private = isinstance(train, Recipe) and train.privacy is not None
    if chosen == "auto":
        return "steps" if private else "values"
    if chosen != "values" and not private:
        raise InvalidInput(
            f'sees="{chosen}" puts gradients into private training; it takes a Recipe with privacy. For other ways to '
            'train choose sees="values".'
        )
    return chosen


def _checked_count(canaries: int, seen: str, train: Train, records: Records) -> int:
    count = checked_whole("canaries", canaries, at_least=FEWEST)
    room = len(records) // 2 if seen == "values" else _parameters(train)
    if room < FEWEST:
        what = "records to spare" if seen == "values" else "parameters"
        raise InvalidInput(f"An audit needs room for {FEWEST} canaries; there are {room} {what}.")
    return min(count, room)


def _claimed(train: Train, rows: int, delta: float) -> tuple[float | None, tuple[str, ...]]:
    if not isinstance(train, Recipe) or train.privacy is None or train.privacy.noise_multiplier == 0:
        return None, ()
    steps, rate = trainer.schedule(train, rows)
    try:
        return accounting.epsilon_spent(
            noise_multiplier=train.privacy.noise_multiplier, steps=steps, sampling_rate=rate, delta=delta
        ), ()
    except MissingPackage as error:
        return None, (str(error),)


def _parameters(train: Any) -> int:
    return sum(parameter.numel() for parameter in train.initial_model().parameters())


def _flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
