"""The part of ``divulge extract`` that learns a copy: ``--method training``, or ``training-paper`` as printed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divulge.cli.common import jobs_of, show
from divulge.core.errors import DivulgeError, InvalidInput
from divulge.core.progress import report
from divulge.core.storage import write_json

if TYPE_CHECKING:
    from divulge.datasets import Dataset
    from divulge.extraction import Extraction
    from divulge.extraction.by_training import Options
    from divulge.extraction.students.task import StudentTask
    from divulge.oracles import Oracle


@dataclass(frozen=True)
class Asked:
    """What the command line asked for."""

    student: str | None
    queries: str
    data: str
    target: str | None
    unlabelled: str | None
    choose: str
    ensemble: int
    steps: int | None
    guard: str
    access: str
    method: str
    checks: int
    seed: int
    workers: str | None

    def options(self, queries: int) -> Options:
        from divulge.extraction.by_training import Options

        return Options(
            queries=queries, match="values" if self.access == "value" else "both",
            method="paper" if self.method == "training-paper" else "default", choose=self.choose,  # type: ignore[arg-type]
            ensemble=self.ensemble, steps=self.steps, seed=self.seed,
        )  # fmt: skip


def _in_own_units(data: str, target: str | None) -> Dataset:
    """A data set by name, or a table of the user's own with its values as the model takes them."""
    from divulge import datasets

    dataset = datasets.load(data, target=target)
    return dataset if data in datasets.names() else dataset.unscaled()


def learn(oracle: Oracle, asked: Asked, *, out: Path | None, json: bool, quiet: bool) -> None:
    """One copy for each number of queries, the last of them kept; shows how well each agrees with the target.

    Everything is asked first; then the copies are learned, each on a worker if there are any. Fewer queries are the
    first of more, so that with a journal each row is sent once, in this run and in the next.
    """
    from divulge.extraction.by_training import rows_of
    from divulge.extraction.students.task import Learned, learn_all

    if asked.student is None:
        raise InvalidInput("--method training needs --student: softmax, one-hidden, two-conv, vgg11 or resnet18.")
    counts = _counts(asked.queries)
    data = None if asked.data == "gaussian" else _in_own_units(asked.data, asked.target)
    again = None if asked.unlabelled is None else rows_of(oracle, _in_own_units(asked.unlabelled, asked.target).train.X)
    judge = _Judge(oracle, data, asked.checks)
    inputs = "gaussian" if data is None else data.train.X
    tasks, stopped = _gathered(oracle, asked.student, inputs, counts, asked)
    points: dict[int, dict[str, Any]] = {}

    def keep(index: int, learned: Learned) -> None:
        copy = learned[0]
        facts: Any = copy.as_dict()["facts"]
        points[index] = {"queries": copy.queries, "seconds": copy.seconds, **judge(copy), **facts}
        shown = {name: f"{100 * points[index][name]:.1f} %" for name in _Judge.NAMES if name in points[index]}
        report("copies", len(points), len(tasks), queries=copy.queries, **shown)

    learned = learn_all(tasks, unlabelled=again, workers=jobs_of(asked.workers), on_done=keep)
    _deliver(learned[-1][0], [points[index] for index in range(len(tasks))], out, json=json, quiet=quiet)
    wrong = next((error for _, error in learned if error is not None), stopped)
    if wrong is not None:
        raise wrong


def _gathered(
    oracle: Oracle, student: str, inputs: Any, counts: list[int], asked: Asked
) -> tuple[list[StudentTask], DivulgeError | None]:
    """A task for each number of queries until something stops it; an error at the very first is raised."""
    from divulge.extraction.by_training import gather
    from divulge.oracles import guards

    front = guards.guard(asked.guard, seed=asked.seed)(oracle) if asked.guard else oracle
    tasks: list[StudentTask] = []
    for count in counts:
        try:
            tasks.append(gather(front, student, inputs, asked.options(count), jobs_of(asked.workers)))
        except DivulgeError as error:
            if not tasks:
                raise
            return tasks, error
        if tasks[-1].stopped is not None:
            break
    return tasks, None


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidInput(f"--queries takes numbers such as 10,100,1000; got {text!r}.") from error
    if min(counts) < 1:
        raise InvalidInput(f"--queries takes numbers of at least 1; got {text!r}.")
    return sorted(set(counts))


class _Judge:
    """How good a copy is on the data set's test part, from which nothing is learned: how many of its labels it gets
    right, and how often it says what the target says of ``checks`` rows, whose labels are asked once."""

    NAMES = ("accuracy", "agreement")

    def __init__(self, oracle: Oracle, data: Dataset | None, checks: int) -> None:
        self.threshold = oracle.threshold
        self.test = None if data is None else data.test
        self.labelled = data is not None and len(data.classes) == max(2, oracle.output_dim)
        self.said = oracle.label(self.test.X[:checks]).cpu() if self.test is not None and checks else None

    def __call__(self, copy: Extraction) -> dict[str, float]:
        import torch

        from divulge.extraction.students.student import logits_of
        from divulge.oracles.base import decide

        if self.test is None or (not self.labelled and self.said is None):
            return {}
        X = self.test.X.to(next(copy.model.parameters()).dtype)
        with torch.no_grad():
            got = torch.cat([decide(logits_of(copy.model)(part), self.threshold) for part in torch.split(X, 500)])
        judged = {"accuracy": float((got == self.test.y).double().mean())} if self.labelled else {}
        if self.said is not None:
            judged["agreement"] = float((got[: len(self.said)] == self.said).double().mean())
        return judged


def _deliver(copy: Extraction, points: list[dict[str, Any]], out: Path | None, *, json: bool, quiet: bool) -> None:
    result = {**copy.as_dict(), "points": points}
    if out is not None:
        copy.save(out)
        write_json(out / "extraction.json", result)
        _picture(points, out / "curve.png")
        result["out"] = str(out)
    show(result, json_wanted=json, quiet=quiet, text="\n".join([*map(_line, points), *_rest(copy, out)]))


def _picture(points: list[dict[str, Any]], path: Path) -> None:
    """The curve over the numbers of queries, if there are several and the copies were judged."""
    from divulge.extraction.students.learning_curve import LearningCurve, Point

    judged = [what for what in _Judge.NAMES if what in points[0]]
    if len(points) > 1 and judged:
        kind = "values" if points[0]["match"] == "values" else "gradients"
        made = [Point(kind, point["queries"], 0, point.get("agreement", 0.0), point.get("accuracy"), point["seconds"])
                for point in points]  # fmt: skip
        LearningCurve(tuple(made), 0).plot(path, judged[0])


def _line(point: dict[str, Any]) -> str:
    held = point.get("agreement_on_held_out_queries")
    said = [f"{100 * point['accuracy']:.1f} % of the test labels right"] if "accuracy" in point else []
    said += [f"{100 * point['agreement']:.1f} % agreement on test rows"] if "agreement" in point else []
    said += (
        [f"{100 * held:.1f} % agreement on {point['held_out_queries']} held-out queries"] if held is not None else []
    )
    return f"{point['queries']:,} queries: {', '.join(said) or 'learned; no data to judge it by'}"


def _rest(copy: Extraction, out: Path | None) -> list[str]:
    notes = [f"note: {note}" for note in copy.notes]
    return [*notes, *([f"the last copy is written to {out}"] if out is not None else [])]
