"""The learning curve: how good a copy is against the number of queries, for values and for gradients.

The paper's headline (Milli 2019, figures 2 to 4) is the ratio of the two at equal accuracy: how many times fewer
queries an explanation endpoint needs than a prediction endpoint.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from divulge.core import plots
from divulge.core.errors import DivulgeError, InvalidInput
from divulge.core.progress import report
from divulge.core.validation import checked_choice, checked_whole
from divulge.core.workers import Workers
from divulge.extraction.by_training import Options, gather, rows_of
from divulge.extraction.students.student import Student, logits_of
from divulge.extraction.students.task import Learned, StudentTask, learn_all
from divulge.oracles.base import Oracle, decide
from divulge.oracles.rows import as_rows

KINDS: dict[str, dict[str, Any]] = {
    "gradients": {"match": "both"},
    "values": {"match": "values"},
    "gradients, as printed": {"match": "both", "method": "paper"},
    "values, as printed": {"match": "values", "method": "paper"},
}
Z95 = 1.96


@dataclass(frozen=True)
class Point:
    """One copy: what it was made from and how good it is. ``accuracy`` is None where there are no true labels."""

    kind: str
    queries: int
    seed: int
    agreement: float
    accuracy: float | None
    seconds: float

    def as_dict(self) -> dict[str, object]:
        return dict(self.__dict__)


@dataclass(frozen=True)
class LearningCurve:
    """Every copy made, and what they say together."""

    points: tuple[Point, ...]
    """One for each copy."""
    test_rows: int
    """Rows on which copies were judged."""

    def mean(self, kind: str, queries: int, what: str = "agreement") -> tuple[float, float]:
        """The mean over repeats, and half the width of its 95 % confidence band (normal; 0 for a single repeat)."""
        got = [getattr(p, what) for p in self.points if p.kind == kind and p.queries == queries]
        if not got or None in got:
            raise InvalidInput(f"There is no {what} of {kind} at {queries} queries in this curve.")
        band = Z95 * statistics.stdev(got) / math.sqrt(len(got)) if len(got) > 1 else 0.0
        return statistics.fmean(got), band

    def needed(self, kind: str, level: float, what: str = "agreement") -> float | None:
        """Queries at which the mean reaches ``level``, between measured numbers along the logarithm; None if never."""
        before: tuple[int, float] | None = None
        for q in sorted({p.queries for p in self.points if p.kind == kind}):
            reached, _ = self.mean(kind, q, what)
            if reached >= level:
                if before is None:
                    return float(q)
                share = (level - before[1]) / (reached - before[1])
                return float(before[0] * (q / before[0]) ** share)
            before = q, reached
        return None

    def ratio(
        self, level: float, *, fewer: str = "gradients", more: str = "values", what: str = "agreement"
    ) -> float | None:
        """How many times more queries of one kind are needed to reach ``level``; None where one of them never does."""
        few, many = self.needed(fewer, level, what), self.needed(more, level, what)
        return None if few is None or many is None else many / few

    def table(self, what: str = "agreement") -> list[dict[str, object]]:
        places = sorted({(p.kind, p.queries) for p in self.points})
        rows = []
        for kind, q in places:
            mean, band = self.mean(kind, q, what)
            rows.append({"kind": kind, "queries": q, "mean": mean, "band": band})
        return rows

    def plot(self, path: str | Path, what: str = "agreement") -> Path:
        """A picture of the curve with its bands, as the file's suffix says (.png, .svg, .pdf)."""
        figure, axes = plots.new_axes(6, 4)
        for kind in dict.fromkeys(p.kind for p in self.points):
            rows = [row for row in self.table(what) if row["kind"] == kind]
            q = [float(str(row["queries"])) for row in rows]
            mean, band = ([100 * float(str(row[name])) for row in rows] for name in ("mean", "band"))
            axes.plot(q, mean, marker="o", label=kind)
            low, high = ([m + sign * b for m, b in zip(mean, band, strict=True)] for sign in (-1, 1))
            axes.fill_between(q, low, high, alpha=0.2)
        axes.set(xscale="log", xlabel="queries", ylabel=f"{what} (%)", ylim=(0, 101))
        axes.grid(alpha=0.3)
        axes.legend()
        return plots.save(figure, path)

    def as_dict(self) -> dict[str, object]:
        return {"points": [point.as_dict() for point in self.points], "test_rows": self.test_rows}


def learning_curve(
    oracle: Oracle,
    student: Student,
    inputs: Any,
    *,
    test: tuple[Tensor, Tensor] | Tensor,
    queries: Sequence[int] = (10, 100, 1000),
    kinds: Sequence[str] = ("gradients", "values"),
    repeats: int = 5,
    seed: int = 0,
    unlabelled: Any = None,
    workers: Workers = None,
    **options: Any,
) -> LearningCurve:
    """How good a copy is against the number of queries, for values and for gradients.

    Everything is asked first; then the copies are learned, each on one of the workers.

    Parameters
    ----------
    oracle : Oracle
        The target.
    student : nn.Module, str or dict
        The student, as ``by_training`` takes it.
    inputs : array [n, d] or "gaussian"
        Rows to choose queries from.
    test : Tensor [m, d] or (Tensor [m, d], Tensor [m])
        Rows, or rows and true labels, on which copies are judged. The target's own labels on them are asked once. True
        labels only judge; nothing is learned from them.
    queries : sequence of int, default (10, 100, 1000)
        Numbers of queries.
    kinds : sequence of {"gradients", "values"}, default both
        What is matched.
    repeats : int, default 5
        Copies of each kind and number, with other queries.
    seed : int, default 0
        Fixes every random choice.
    unlabelled : array [k, d], optional
        Rows that students label themselves and learn from again.
    workers : int or str, optional
        A number of processes, or a Dask scheduler.
    **options
        Of ``by_training``.

    Returns
    -------
    LearningCurve
        A point for every copy.

    Raises
    ------
    BudgetExhausted
        The budget ended. ``partial`` holds the curve of what was answered until then.
    InvalidInput
        A kind or an option is not one of its choices.

    Examples
    --------
    >>> import divulge
    >>> data = divulge.datasets.load("iris")
    >>> model = divulge.Recipe(widths=[4, 8, 3], learning_rate=0.5, epochs=100).train(*data.train)
    >>> curve = divulge.extraction.learning_curve(
    ...     divulge.oracle(model), divulge.models.MLP([4, 8, 3]), data.train.X, test=data.test.X, queries=[10, 30],
    ...     kinds=["values"], repeats=2, steps=50,
    ... )
    >>> len(curve.points)
    4
    """
    for kind in kinds:
        checked_choice("A kind of the curve", kind, KINDS)
    checked_whole("repeats", repeats, at_least=1, hint="A curve is a mean over repeats.")
    if not queries or min(queries) < 1:
        raise InvalidInput("A curve takes numbers of queries of at least 1.")
    X, y = test if isinstance(test, tuple) else (test, None)
    rows = as_rows(X, oracle.input_dim, torch.float32, torch.device("cpu"))
    again = None if unlabelled is None else rows_of(oracle, unlabelled)
    said = oracle.label(rows).cpu()
    jobs = [(kind, q, seed + number) for kind in kinds for q in sorted(set(queries)) for number in range(repeats)]
    tasks, stopped = _gathered(oracle, student, inputs, jobs, options, workers)
    points: dict[int, Point] = {}

    def judge(index: int, learned: Learned) -> None:
        kind, q, number = jobs[index]
        model = learned[0].model.to("cpu", torch.float32)
        with torch.no_grad():
            got = torch.cat([decide(logits_of(model)(part), oracle.threshold) for part in torch.split(rows, 500)])
        agreement = float((got == said).double().mean())
        accuracy = None if y is None else float((got == y).double().mean())
        points[index] = Point(kind, q, number, agreement, accuracy, learned[0].seconds)
        report("learning curve", len(points), len(jobs), queries=q, agreement=f"{100 * agreement:.1f} %")

    learned = learn_all(tasks, unlabelled=again, workers=workers, on_done=judge)
    whole = LearningCurve(tuple(points[index] for index in range(len(tasks))), len(rows))
    wrong = next((error for _, error in learned if error is not None), stopped)
    if wrong is not None:
        wrong.partial = whole
        raise wrong
    return whole


def _gathered(
    oracle: Oracle,
    student: Student,
    inputs: Any,
    jobs: Sequence[tuple[str, int, int]],
    options: dict[str, Any],
    workers: Workers,
) -> tuple[list[StudentTask], DivulgeError | None]:
    """One task for each job, and what stopped them before the last; an error at the very first is raised."""
    tasks: list[StudentTask] = []
    for kind, q, seed in jobs:
        wanted = Options(**{"queries": q, "seed": seed, **KINDS[kind], **options})
        try:
            task = gather(oracle, student, inputs, wanted, workers)
        except DivulgeError as error:
            if not tasks:
                raise
            return tasks, error
        if task.stopped is not None:  # fewer queries than the point would say
            return tasks, task.stopped
        tasks.append(task)
    return tasks, None
