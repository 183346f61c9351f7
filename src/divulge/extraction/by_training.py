"""Learning a copy: a student network fitted to a target's values and gradients (Milli 2019, sections 4 to 6).

``method="paper"`` is the joint loss l_G + lambda l_M as printed. The default departs from it where it was measured to
learn more from the same queries: gradients of logits, both terms in units of the target's spread (matching_loss.py),
gates that the gradient loss can move (gates.py), random combinations of the outputs for convolutional students, and,
if asked for, several students together, self-training on unlabelled inputs and chosen queries. Choices are made on a
held-out part of the queries, never on true labels. A student of one linear layer is solved in closed form, and one with
one hidden ReLU layer is solved where the queries determine it (hidden_student.py).

The queries are asked here; what is learned from the answers (lesson.py) needs no oracle and may be done on workers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from divulge.errors import AccessDenied, DivulgeError, InvalidInput
from divulge.extraction import choosing
from divulge.extraction.answers import EXPLAINED, Classes, Outputs, are_integrated, ask, explained, told_outputs
from divulge.extraction.fitting import Fitter, Match, Method, Settings
from divulge.extraction.lesson import Lesson
from divulge.extraction.linear_student import is_linear
from divulge.extraction.result import Extraction
from divulge.extraction.students import Outline, Student, logits_of
from divulge.oracles.base import Oracle, Spent, as_rows, at_the_door, check_finite_rows
from divulge.workers import Workers

ACTIVE_ROUNDS = 3
DEEP = 5
"""Convolutions from which on a student counts as deep."""


def by_training(
    oracle: Oracle,
    student: Student,
    inputs: Any,
    *,
    queries: int | None = None,
    choose: choosing.Choice = "random",
    match: Match = "both",
    weight: float | None = None,
    method: Method = "default",
    target_output: Outputs | None = None,
    classes: Classes = "all",
    unlabelled: Any = None,
    ensemble: int = 1,
    steps: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    combinations: int | None = None,
    sharpness: float | None = None,
    hold_out: float | None = None,
    input_shape: Sequence[int] | None = None,
    device: str = "cpu",
    seed: int = 0,
    workers: Workers = None,
) -> Extraction:
    """Fit a student to what the oracle answers on ``inputs``.

    ``student`` is an nn.Module (its weights are where the first student starts), an architecture's name or its
    description. ``inputs`` are rows [n, d], all of which are asked; with ``queries`` that many are taken from them,
    by ``choose``: at random, at the centres of k-means clusters, or actively, where two students disagree most.
    ``inputs="gaussian"`` draws ``queries`` inputs from N(0, I).

    ``match`` says what is fitted: values alone, gradients alone (the values that come with them only set the level of
    each output), or both, with ``weight`` (lambda) on the values. ``target_output`` is what the target shows; None
    tells it from the answers. ``classes="predicted"`` uses the gradient of the predicted class only. ``ensemble``
    students are fitted and their logits averaged. ``unlabelled`` rows are labelled by them and learned from again.
    ``combinations`` of the outputs' gradients are matched at each step: by default all, one for a student with
    convolutions. ``sharpness`` is that of the gates. ``hold_out`` is the share of the queries kept for choices.
    ``workers`` are where the students of an ensemble are fitted (divulge.workers).

    If the budget ends or the target fails in the middle, the error carries in ``partial`` the copy learned so far.
    """
    seed = at_the_door(oracle, seed)
    options = Options(
        queries, choose, match, weight, method, target_output, classes, ensemble, steps, batch_size, learning_rate,
        combinations, sharpness, hold_out, input_shape, device, seed,
    )  # fmt: skip
    again = None if unlabelled is None else rows_of(oracle, unlabelled)
    copy, stopped = gather(oracle, student, inputs, options, workers).learn(again, workers)
    if stopped is not None:
        stopped.partial = copy
        raise stopped
    return copy


@dataclass(frozen=True)
class Options:
    """How a copy is made; ``by_training`` says what each means."""

    queries: int | None = None
    choose: choosing.Choice = "random"
    match: Match = "both"
    weight: float | None = None
    method: Method = "default"
    target_output: Outputs | None = None
    classes: Classes = "all"
    ensemble: int = 1
    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    combinations: int | None = None
    sharpness: float | None = None
    hold_out: float | None = None
    input_shape: Sequence[int] | None = None
    device: str = "cpu"
    seed: int = 0

    def check(self, oracle: Oracle) -> None:
        chosen = {"match": (self.match, Match), "method": (self.method, Method), "classes": (self.classes, Classes),
                  "choose": (self.choose, choosing.Choice),
                  "target_output": (self.target_output or "logits", Outputs)}  # fmt: skip
        for name, (value, kind) in chosen.items():
            if value not in get_args(kind):
                raise InvalidInput(f"{name} is one of {', '.join(get_args(kind))}; got {value!r}.")
        for name in ("ensemble", "steps", "batch_size", "queries", "combinations"):
            number = getattr(self, name)
            if number is not None and (number != int(number) or number < 1):
                raise InvalidInput(f"{name} is a whole number of at least 1; got {number!r}.")
        if self.hold_out is not None and not 0 <= self.hold_out < 1:
            raise InvalidInput(
                f"hold_out is the share of the queries kept for choices, from 0 to below 1; got {self.hold_out}."
            )
        needed = "value" if self.match == "values" else "gradient"
        if not oracle.allows(needed):  # type: ignore[arg-type]
            hint = 'match="values" needs values' if oracle.allows("value") else "labels alone are not matched"
            raise AccessDenied(
                f"match={self.match!r} needs {needed} access and this oracle grants {oracle.access} access only; "
                f"{hint}."
            )

    def settings(self) -> Settings:
        """How students are fitted, as far as it depends neither on them nor on the answers; 0 is not yet decided."""
        return Settings(
            match=self.match, method=self.method, outputs=self.target_output or "logits", classes=self.classes,
            weight=0.0 if self.weight is None else self.weight,
            steps=self.steps or 0, batch_size=self.batch_size or 0,
            learning_rate=self.learning_rate or 0.0, combinations=self.combinations, sharpness=self.sharpness or 0.0,
            seed=self.seed, device=self.device,
        )  # fmt: skip


def gather(oracle: Oracle, student: Student, inputs: Any, options: Options, workers: Workers = None) -> Lesson:
    """Choose the queries and ask them: all that a copy is learned from. Bad input is refused before anything is asked.

    Where queries are chosen by students of their own, ``workers`` fit these.
    """
    began, before = time.perf_counter(), oracle.ledger.snapshot()
    options.check(oracle)
    pool, count = _pool(oracle, inputs, options.queries, options.seed)
    fitter = _for_student(Fitter(Outline.of(oracle), student, options.input_shape, options.settings()), count)
    if count < oracle.output_dim and not (is_linear(fitter.new(0)) and options.match != "values"):
        raise InvalidInput(
            f"{count} queries are fewer than the target's {oracle.output_dim} outputs, too few to learn them; ask at "
            f'least {oracle.output_dim}. One gradient is enough only for a single linear layer, student="softmax".'
        )
    first, pool = _first(pool, count, oracle.output_dim, options)
    X, values, maps, stopped = _asked(oracle, first, gradients=options.match != "values")
    outputs = options.target_output or told_outputs(values, oracle.threshold)
    integrated = options.method == "default" and are_integrated(values, maps, outputs)
    fitter = replace(fitter, settings=replace(fitter.settings, outputs=outputs))
    lesson = Lesson(fitter, X, values, maps, integrated, options.hold_out, options.ensemble, Spent(), 0.0, stopped)
    if options.weight is None:
        settings = replace(fitter.settings, weight=_default_weight(lesson, options, inputs))
        lesson = replace(lesson, fitter=replace(fitter, settings=settings))
    if options.choose == "active":
        lesson = _actively(lesson, oracle, pool, count, workers)
    spent = oracle.ledger.snapshot() - before
    return replace(lesson, asked=spent, seconds=time.perf_counter() - began)


def rows_of(oracle: Oracle, X: Any) -> Tensor:
    """Rows for this oracle, or what is wrong with them."""
    return check_finite_rows(as_rows(X, oracle.input_dim, torch.float64, torch.device("cpu")))


# -- queries ----------------------------------------------------------------------------------------------------------


def _pool(oracle: Oracle, inputs: Any, queries: int | None, seed: int) -> tuple[Tensor, int]:
    """The inputs to choose from, and how many to ask."""
    if isinstance(inputs, str):
        if inputs != "gaussian":
            raise InvalidInput(f'inputs are rows [n, d] or "gaussian", not {inputs!r}.')
        if queries is None:
            raise InvalidInput("Say how many Gaussian inputs to ask, with queries=.")
        generator = torch.Generator().manual_seed(1_000_003 * seed + 1)
        return choosing.gaussian(queries, oracle.input_dim, generator), queries
    pool = rows_of(oracle, inputs)
    if queries is not None:
        choosing.check_pool(pool, queries)
    return pool, len(pool) if queries is None else queries


def _first(pool: Tensor, count: int, outputs: int, options: Options) -> tuple[Tensor, Tensor]:
    """What to ask first, which is all unless queries are chosen actively, and the rest of the pool."""
    if options.choose == "k-means":
        return choosing.k_means(pool, count, seed=options.seed), pool
    generator = options.settings().generator(2)
    order = torch.randperm(len(pool), generator=generator) if count < len(pool) else torch.arange(len(pool))
    start = count if options.choose == "random" else max(outputs, count // 2)
    return pool[order[:start]], pool[order[start:]]


def _asked(oracle: Oracle, X: Tensor, *, gradients: bool) -> tuple[Tensor, Tensor, Tensor | None, DivulgeError | None]:
    """The rows that were answered, as the target saw them, and what it answered; and what stopped the rest."""
    values, maps, stopped = ask(oracle, X, gradients=gradients)
    return X[: len(values)].to(oracle.dtype), values, maps, stopped


def _actively(lesson: Lesson, oracle: Oracle, pool: Tensor, count: int, workers: Workers) -> Lesson:
    """More queries in rounds, each where two students fitted to those so far disagree."""
    settings = lesson.fitter.settings
    for turn in range(ACTIVE_ROUNDS):
        more = math.ceil((count - len(lesson.X)) / (ACTIVE_ROUNDS - turn))
        if lesson.stopped is not None or more < 1:
            break
        two = lesson.fitter.several(
            lesson.answers(), None, (1, 2), steps=max(1, settings.steps // 3), stage="choosing queries", workers=workers
        )
        chosen = choosing.where_they_disagree(pool.to(settings.device, torch.float32), more, *map(logits_of, two))
        rest = torch.ones(len(pool), dtype=torch.bool)
        rest[chosen] = False
        try:
            X, values, maps, stopped = _asked(oracle, pool[chosen], gradients=lesson.gradients is not None)
        except DivulgeError as error:
            return replace(lesson, stopped=error)
        lesson, pool = lesson.followed_by(X, values, maps, stopped), pool[rest]
    return lesson


# -- choices ----------------------------------------------------------------------------------------------------------


def _for_student(fitter: Fitter, count: int) -> Fitter:
    """Settings that depend on the student and on how many queries it has: convolutions make every output's gradient
    dear, gates sharper and steps shorter; one linear layer takes long steps."""
    student, settings = fitter.new(0), fitter.settings
    convolutions = _convolutions(student)
    shallow = 0 < convolutions < DEEP
    rate = 2e-3 if convolutions else 5e-2 if is_linear(student) else 1e-2
    batch = settings.batch_size or _default_batch(count, settings.match, shallow)
    return replace(
        fitter,
        settings=replace(
            settings,
            batch_size=batch,
            steps=settings.steps or _default_steps(count, batch, settings.match, shallow),
            combinations=settings.combinations or (1 if convolutions else None),
            sharpness=settings.sharpness or (3.0 if shallow else 1.0),
            learning_rate=settings.learning_rate or rate,
        ),
    )


def _convolutions(student: nn.Module) -> int:
    return sum(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in student.modules())


def _default_weight(lesson: Lesson, options: Options, inputs: Any) -> float:
    """What the values weigh beside the gradients: little, unless gradients tell less than usual. A student is led by
    the values if gradients do not tell how these differ, because they were averaged over points far away; and a deep
    one always, since far from its target it does best on gradients by having none at all."""
    answers = lesson.answers()
    deep = _convolutions(lesson.fitter.new(0)) >= DEEP
    if options.method == "default" and (deep or explained(answers) < EXPLAINED):
        return 30.0
    known = isinstance(inputs, str) or options.method == "paper" or options.classes == "predicted"
    return 1.0 if known or answers.absolute else 0.1


def _default_batch(count: int, match: Match, shallow: bool) -> int:
    """A convolutional student that is not deep carries over better from gradients in small batches."""
    if match != "values" and shallow:
        return min(count, 12)
    return count if count <= 30 else 25 if match != "values" else min(128, max(25, count // 20))


def _default_steps(count: int, batch: int, match: Match, shallow: bool) -> int:
    """Enough for a small set to be fitted, and at least 20 passes over a large one of values, 5 over gradients."""
    if match == "values":
        return max(1200, 20 * count // batch)
    enough = 1200 * math.sqrt(count / min(batch, count)) if shallow else 1200
    return max(int(enough), 5 * count // batch)
