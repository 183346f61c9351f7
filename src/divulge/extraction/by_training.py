"""Learning a copy: a student network fitted to a target's values and gradients (Milli 2019, sections 4 to 6).

``method="paper"`` is the joint loss l_G + lambda l_M as printed. The default departs from it where it was measured to
learn more from the same queries: gradients of logits, both terms in units of the target's spread (matching_loss.py),
gates that the gradient loss can move (relu_gates.py), random combinations of the outputs for convolutional students.
If asked for, there are several students together, self-training on unlabelled inputs and chosen queries. Choices are
made on a held-out part of the queries, never on true labels. A student of one linear layer is solved in closed form,
and one with one hidden ReLU layer is solved where the queries determine it (students/solved_hidden_layer.py).

The queries are asked here; what is learned from the answers (task.py) needs no oracle and may be done on workers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from divulge.core.errors import AccessDenied, DivulgeError, InvalidInput
from divulge.core.validation import checked_choice, checked_number, checked_whole
from divulge.core.workers import Workers
from divulge.extraction.result import Extraction
from divulge.extraction.students import forest, query_selection
from divulge.extraction.students.answers import (
    EXPLAINED,
    Classes,
    are_integrated,
    ask,
    explained,
)
from divulge.extraction.students.fitting import FitSettings, Fitter, Match, Method
from divulge.extraction.students.solved_linear import is_linear
from divulge.extraction.students.student import Student, TargetInfo, logits_of
from divulge.extraction.students.task import StudentTask
from divulge.oracles.base import Oracle, check_oracle_and_seed
from divulge.oracles.ledger import Spent
from divulge.oracles.outputs import Outputs, outputs_shown
from divulge.oracles.rows import as_rows, check_finite_rows

ACTIVE_ROUNDS = 3
MANY_OUTPUTS = 30
"""Queries that are enough to begin with, however many outputs there are."""
DEEP = 5
"""Convolutions from which on a student counts as deep."""


def by_training(
    oracle: Oracle,
    student: Student,
    inputs: Any,
    *,
    queries: int | None = None,
    choose: query_selection.Choice = "random",
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
    train_norms: bool = False,
    device: str = "cpu",
    seed: int = 0,
    workers: Workers = None,
) -> Extraction:
    """Learn a copy: a student network fitted to what the oracle answers (Milli 2019, sections 4 to 6).

    Parameters
    ----------
    oracle : Oracle
        The target, with value access or, to match gradients, gradient access.
    student : nn.Module, str or dict
        A network (its weights are where the first student starts), an architecture's name or its description; or
        "trees", a forest, for targets that answer in steps.
    inputs : array [n, d] or "gaussian"
        Rows to ask, or to choose from with ``queries``. "gaussian" draws ``queries`` rows from N(0, I).
    queries : int, optional
        How many of the inputs are asked; all by default.
    choose : {"random", "k-means", "active"}, default "random"
        How they are taken: at random, at the centres of k-means clusters, or where two students disagree most.
    match : {"both", "gradients", "values"}, default "both"
        What is fitted. With "gradients" the values that come with them only set the level of each output.
    weight : float, optional
        Weight of the values against the gradients.
    method : {"default", "paper"}, default "default"
        Our loss, or the one that is printed.
    target_output : {"logits", "probabilities", "log-probabilities"}, optional
        What the target shows. By default the answers decide.
    classes : {"all", "predicted"}, default "all"
        Whose gradients are used.
    unlabelled : array [m, d], optional
        Rows that the students label themselves and learn from again.
    ensemble : int, default 1
        Students that are fitted and averaged.
    steps, batch_size : int, optional
        Of the optimiser; chosen for the student and the number of queries by default.
    learning_rate : float, optional
        Of the optimiser.
    combinations : int, optional
        Random combinations of the outputs' gradients that are matched at each step: by default all outputs, and one
        combination for a student with convolutions.
    sharpness : float, optional
        Of the smooth gates that stand for ReLU's derivative.
    hold_out : float, optional
        The share of the queries that is kept for choices.
    input_shape : sequence of int, optional
        The shape of one row as the student takes it.
    train_norms : bool, default False
        Whether normalisation layers of the student follow their batches, which fits values better. By default they
        keep the statistics of all queries, so that a row's gradient is its own.
    device : str, default "cpu"
        Where students are fitted.
    seed : int, default 0
        Fixes every random choice.
    workers : int or str, optional
        Where the students of an ensemble are fitted: a number of processes, or a Dask scheduler.

    Returns
    -------
    Extraction
        The copy, its cost, and how far it misses answers that were held out.

    Raises
    ------
    AccessDenied
        The oracle does not grant what ``match`` needs.
    BudgetExhausted
        The budget ended. ``partial`` holds the copy learned so far.
    InvalidInput
        An option is not one of its choices.

    Examples
    --------
    >>> import divulge
    >>> data = divulge.datasets.load("iris")
    >>> model = divulge.Recipe(widths=[4, 8, 3], learning_rate=0.5, epochs=100).train(*data.train)
    >>> oracle = divulge.oracle(model, access="gradient")
    >>> stolen = divulge.extraction.by_training(oracle, divulge.models.MLP([4, 8, 3]), data.train.X[:40], steps=200)
    >>> stolen.queries
    40
    """
    seed = check_oracle_and_seed(oracle, seed)
    options = Options(
        queries, choose, match, weight, method, target_output, classes, ensemble, steps, batch_size, learning_rate,
        combinations, sharpness, hold_out, input_shape, device, seed, train_norms,
    )  # fmt: skip
    if isinstance(student, str) and student == forest.NAME:
        return _forest(oracle, inputs, options)
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
    choose: query_selection.Choice = "random"
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
    train_norms: bool = False

    def check(self, oracle: Oracle) -> None:
        chosen = {"match": (self.match, Match), "method": (self.method, Method), "classes": (self.classes, Classes),
                  "choose": (self.choose, query_selection.Choice),
                  "target_output": (self.target_output or "logits", Outputs)}  # fmt: skip
        for name, (value, kind) in chosen.items():
            checked_choice(name, value, get_args(kind))
        for name in ("ensemble", "steps", "batch_size", "queries", "combinations"):
            number = getattr(self, name)
            if number is not None:
                checked_whole(name, number, at_least=1)
        if self.hold_out is not None:
            checked_number("hold_out", self.hold_out, at_least=0, below=1)
        if self.train_norms and self.match != "values":
            raise InvalidInput('train_norms=True makes a row\'s gradient depend on its batch; use match="values".')
        needed = "value" if self.match == "values" else "gradient"
        if not oracle.allows(needed):  # type: ignore[arg-type]
            hint = 'match="values" needs values' if oracle.allows("value") else "labels alone are not matched"
            raise AccessDenied(
                f"match={self.match!r} needs {needed} access and this oracle grants {oracle.access} access only; "
                f"{hint}."
            )

    def settings(self) -> FitSettings:
        """How students are fitted, as far as it depends neither on them nor on the answers; 0 is not yet decided."""
        return FitSettings(
            match=self.match, method=self.method, outputs=self.target_output or "logits", classes=self.classes,
            weight=0.0 if self.weight is None else self.weight,
            steps=self.steps or 0, batch_size=self.batch_size or 0,
            learning_rate=self.learning_rate or 0.0, combinations=self.combinations, sharpness=self.sharpness or 0.0,
            seed=self.seed, device=self.device, train_norms=self.train_norms,
        )  # fmt: skip


def _forest(oracle: Oracle, inputs: Any, options: Options) -> Extraction:
    """A forest as the student: it has no gradients to match."""
    if options.match != "values":
        raise InvalidInput(f'A student of trees has no gradients; use match="values" instead of {options.match!r}.')
    options.check(oracle)
    pool, count = _pool(oracle, inputs, options.queries, options.seed)
    rows, _ = _first(pool, count, oracle.output_dim, replace(options, choose="random"))
    return forest.learn(oracle, rows, outputs=options.target_output, seed=options.seed)


def gather(oracle: Oracle, student: Student, inputs: Any, options: Options, workers: Workers = None) -> StudentTask:
    """Choose the queries and ask them: all that a copy is learned from. Bad input is refused before anything is asked.

    Where queries are chosen by students of their own, ``workers`` fit these.
    """
    began, before = time.perf_counter(), oracle.ledger.snapshot()
    options.check(oracle)
    pool, count = _pool(oracle, inputs, options.queries, options.seed)
    fitter = _for_student(Fitter(TargetInfo.of(oracle), student, options.input_shape, options.settings()), count)
    least = min(oracle.output_dim, MANY_OUTPUTS)
    if count < least and not (is_linear(fitter.new(0)) and options.match != "values"):
        raise InvalidInput(
            f"{count} queries are fewer than the target's {oracle.output_dim} outputs, too few to learn them; ask at "
            f'least {least}. One gradient is enough only for a single linear layer, student="softmax".'
        )
    first, pool = _first(pool, count, oracle.output_dim, options)
    X, values, maps, stopped = _asked(oracle, first, gradients=options.match != "values")
    outputs = options.target_output or outputs_shown(values, oracle.threshold)
    integrated = options.method == "default" and are_integrated(values, maps, outputs)
    fitter = replace(fitter, settings=replace(fitter.settings, outputs=outputs))
    task = StudentTask(fitter, X, values, maps, integrated, options.hold_out, options.ensemble, Spent(), 0.0, stopped)
    if options.weight is None:
        settings = replace(fitter.settings, weight=_default_weight(task, options, inputs))
        task = replace(task, fitter=replace(fitter, settings=settings))
    if options.choose == "active":
        task = _actively(task, oracle, pool, count, workers)
    spent = oracle.ledger.snapshot() - before
    return replace(task, asked=spent, seconds=time.perf_counter() - began)


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
        return query_selection.gaussian(queries, oracle.input_dim, generator), queries
    pool = rows_of(oracle, inputs)
    if queries is not None:
        query_selection.check_pool(pool, queries)
    return pool, len(pool) if queries is None else queries


def _first(pool: Tensor, count: int, outputs: int, options: Options) -> tuple[Tensor, Tensor]:
    """What to ask first, which is all unless queries are chosen actively, and the rest of the pool."""
    if options.choose == "k-means":
        return query_selection.k_means(pool, count, seed=options.seed), pool
    generator = options.settings().generator(2)
    order = torch.randperm(len(pool), generator=generator) if count < len(pool) else torch.arange(len(pool))
    start = count if options.choose == "random" else max(outputs, count // 2)
    return pool[order[:start]], pool[order[start:]]


def _asked(oracle: Oracle, X: Tensor, *, gradients: bool) -> tuple[Tensor, Tensor, Tensor | None, DivulgeError | None]:
    """The rows that were answered, as the target saw them, and what it answered; and what stopped the rest."""
    values, maps, stopped = ask(oracle, X, gradients=gradients)
    return X[: len(values)].to(oracle.dtype), values, maps, stopped


def _actively(task: StudentTask, oracle: Oracle, pool: Tensor, count: int, workers: Workers) -> StudentTask:
    """More queries in rounds, each where two students fitted to those so far disagree."""
    settings = task.fitter.settings
    for turn in range(ACTIVE_ROUNDS):
        more = math.ceil((count - len(task.X)) / (ACTIVE_ROUNDS - turn))
        if task.stopped is not None or more < 1:
            break
        two = task.fitter.several(
            task.answers(), None, (1, 2), steps=max(1, settings.steps // 3), stage="choosing queries", workers=workers
        )
        chosen = query_selection.where_they_disagree(
            pool.to(settings.device, torch.float32), more, *map(logits_of, two)
        )
        rest = torch.ones(len(pool), dtype=torch.bool)
        rest[chosen] = False
        try:
            X, values, maps, stopped = _asked(oracle, pool[chosen], gradients=task.gradients is not None)
        except DivulgeError as error:
            return replace(task, stopped=error)
        task, pool = task.with_answers(X, values, maps, stopped), pool[rest]
    return task


# -- choices ----------------------------------------------------------------------------------------------------------


def _for_student(fitter: Fitter, count: int) -> Fitter:
    """FitSettings that depend on the student and on how many queries it has: with convolutions
    each output's gradient is costly, gates are sharper and steps shorter; one linear layer takes long steps."""
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


def _default_weight(task: StudentTask, options: Options, inputs: Any) -> float:
    """What the values weigh beside the gradients: little, unless gradients tell less than usual. A student is led by
    the values if gradients do not tell how these differ, because they were averaged over points far away; and a deep
    one always, since far from its target it does best on gradients by having none at all."""
    answers = task.answers()
    deep = _convolutions(task.fitter.new(0)) >= DEEP
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
    """Steps that fit a small set: at least 1,200, and 20 passes over a large set of values or 5 over gradients."""
    if match == "values":
        return max(1200, 20 * count // batch)
    steps = 1200 * math.sqrt(count / min(batch, count)) if shallow else 1200
    return max(int(steps), 5 * count // batch)
