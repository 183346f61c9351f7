"""Can they copy my model? A student fitted to its answers, where exact extraction does not reach.

Which inputs are asked, and the first weights of the student, are drawn. The curve is measured over several draws, as
many as the time allows, and given with an interval. What is claimed follows the lower end of that interval.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from divulge.auditing import commands
from divulge.auditing.fidelity import Judge, judge_of
from divulge.auditing.probes.probe import Probe, TimeUp, deadline, too_short
from divulge.auditing.sentences import copies
from divulge.auditing.severity import severity_of
from divulge.auditing.students import LearnedAccess, StudentPlan, answering, learned, plan_for
from divulge.auditing.target import JUDGING_NUMBERS, Target, drawn_rows
from divulge.auditing.wording import percent
from divulge.core.errors import BudgetExhausted
from divulge.core.plots import curve
from divulge.core.statistics import clopper_pearson
from divulge.oracles.ledger import Spent
from divulge.report.findings import ADVERSARIES, STOPPED_SHORT, Finding, Outcome, Picture, Table

QUERIES = (30, 100, 300, 1000, 3000, 10000)
"""Numbers of queries, up to the budget and to half of the inputs that are known."""
LONGER = 1.25
"""The curve also ends at the budget, or at all inputs, where these are so many times more than the last number."""
MOST = 50_000
"""Queries at most, where there is no budget: a student of more takes longer than most audits."""
GRADIENTS = 300
"""Gradients that a student is fitted to, at most: such a fit takes long, and one says as much as many values."""
SAYS, SAYS_IF_STOPPED = 100, 300
"""Queries below which a student that failed says nothing; more where time or budget ended the attack."""
DRAWN = 20_000
"""Rows of drawn tokens, where there is no data: half of them may be asked about."""
DRAWS = 5
"""Draws of the queries and of the student's first weights."""


@dataclass(frozen=True)
class Point:
    """What students of one number of queries got, over the draws."""

    queries: int
    likeness: tuple[float, ...]
    measures: dict[str, float]
    ledger: Spent

    @property
    def mean(self) -> float:
        """The mean likeness."""
        return sum(self.likeness) / len(self.likeness)

    @property
    def interval(self) -> tuple[float, float]:
        """A 95 % interval of the mean over draws, by Student's t; the mean itself for one draw."""
        from scipy.stats import t

        n = len(self.likeness)
        if n == 1:
            return self.mean, self.mean
        spread = math.sqrt(sum((share - self.mean) ** 2 for share in self.likeness) / (n - 1) / n)
        half = float(t.ppf(0.975, n - 1)) * spread
        return self.mean - half, min(1.0, self.mean + half)

    def interval_beyond(self, rows: int) -> tuple[float, float]:
        """The interval for decisions on all inputs, of which ``rows`` were judged: Clopper and Pearson's beside it."""
        low, high = self.interval
        least, most = clopper_pearson(round(self.mean * rows), rows)
        return (
            self.mean - math.hypot(self.mean - low, max(0.0, self.mean - least)),
            self.mean + math.hypot(high - self.mean, max(0.0, most - self.mean)),
        )


def _obstacle(target: Target) -> str:
    if not target.grants("value"):
        return f"the access granted ({target.access}) does not include values."
    exact = target.kind == "linear" or (target.kind == "one hidden ReLU layer" and target.model is not None)
    if exact and target.kind_is_known:
        return f"it is {target.description}; exact extraction does better."
    return _no_data(target)


def _labels_obstacle(target: Target) -> str:
    if target.labels is not None and target.labels.is_floating_point():
        return "it predicts a quantity, and makes no decisions to learn from."
    return _no_data(target)


def _no_data(target: Target) -> str:
    known = _known(target)
    if known is None:
        return "no data was given to ask about; give inputs like the model's own."
    if len(known) < 2 * QUERIES[0]:
        return f"{len(known)} inputs are too few to learn from and judge by; give at least {2 * QUERIES[0]}."
    return ""


def _gradient_obstacle(target: Target) -> str:
    if not target.grants("gradient"):
        return f"the access granted ({target.access}) does not include gradients."
    return _obstacle(target)


def _run(target: Target, seconds: float) -> Finding:
    return _learned(target, seconds, "value", "copy-by-learning")


def _run_gradients(target: Target, seconds: float) -> Finding:
    return _learned(target, seconds, "gradient", "copy-by-learning-from-gradients")


def _run_labels(target: Target, seconds: float) -> Finding:
    return _learned(target, seconds, "label", "copy-by-learning-from-labels")


def _learned(target: Target, seconds: float, access: LearnedAccess, name: str) -> Finding:
    started = time.perf_counter()
    pool, rows, labels = pool_of(target)
    judge = judge_of(target, rows, labels, unseen=target.unseen is not None or target.inputs is None)
    judge = judge.of_decisions() if access == "label" else judge
    plan = plan_for(target, pool, access)
    points, ended = _curve(target, seconds, access, name, pool, judge, plan)
    best = max(points, key=lambda point: (point.interval[0], point.mean))
    draws = len(best.likeness)
    outcome = _outcome(judge, best)
    return Finding(
        name=name,
        question="copy",
        adversary=ADVERSARIES[access],
        title=_title(outcome, access, judge, best),
        outcome=outcome,
        severity=severity_of("copy", ADVERSARIES[access], outcome),
        meaning=copies.constant(len(judge.rows), access) if judge.constant else copies.student_meaning(outcome),
        certainty=copies.student_certainty(len(judge.rows), _which(target), draws, plan.words),
        measures={
            "variance_explained" if judge.quantity else "same_decision": best.mean,
            "interval": " to ".join(map(percent, _stated(outcome, judge, best))) if draws > 1 else None,
            "draws": draws,
            "by_always_answering_the_same": judge.chance,
            **best.measures,
            "student": plan.words,
            **_too_short(points, ended is not None),
        },
        ledger=best.ledger,
        seconds=time.perf_counter() - started,
        seed=target.seed,
        untested=(copies.labels_slow_down(),) if outcome in ("succeeded", "partly") and access != "label" else (),
        command=commands.audit(target, access=access),
        pictures=(_picture(points, access, judge),) if len(points) > 1 else (),
        tables=(_table(points, judge, target.options.price),),
        notes=(copies.curve_ended(ended),) if ended is not None else (),
    )


def _which(target: Target) -> copies.Judging:
    """What the rows are that judge a copy."""
    return "unseen" if target.unseen is not None else "training" if target.inputs is not None else "drawn"


def _outcome(judge: Judge, point: Point) -> Outcome:
    """What the lower end of the interval over draws supports.

    Where only the upper end makes a copy, more draws would tell; after the last one the mean decides.
    """
    low, high = point.interval
    outcome = judge.outcome(low)
    if outcome != "failed" or judge.outcome(high) == "failed":
        return outcome
    return judge.outcome(point.mean) if len(point.likeness) >= DRAWS else "inconclusive"


def _stated(outcome: Outcome, judge: Judge, point: Point) -> tuple[float, float]:
    """The interval that is printed: over draws, and where decisions are judged over the judging rows too."""
    beyond = outcome != "inconclusive" and not judge.quantity
    return point.interval_beyond(len(judge.rows)) if beyond else point.interval


def _title(outcome: Outcome, access: LearnedAccess, judge: Judge, point: Point) -> str:
    if judge.constant:
        return copies.constant_title(len(judge.rows), access)
    low, high = _stated(outcome, judge, point)
    return copies.student_title(
        outcome, point.queries, access, point.mean, judge.quantity, low, high, len(point.likeness), judge.chance
    )


def _curve(
    target: Target, seconds: float, access: LearnedAccess, name: str, pool: Tensor, judge: Judge, plan: StudentPlan
) -> tuple[list[Point], Literal["time", "budget"] | None]:
    """Students for each number of queries, draw after draw while the time lasts; and what ended the first round."""
    started = time.perf_counter()
    counts = _counts(target, len(pool), access)
    fitted: dict[int, list[dict[str, Any]]] = {}
    pace = 0.0  # how long the last fit took, relative to what was expected
    for draw in range(DRAWS):
        for count in counts:
            left = seconds - (time.perf_counter() - started)
            try:
                if fitted and pace * plan.seconds(count) > left:
                    raise TimeUp(too_short(seconds))
                before = time.perf_counter()
                with deadline(left):
                    [one] = target.kept(partial(_student, target, access, pool, judge, plan), [[count, draw]], name)
            except (TimeUp, BudgetExhausted) as error:
                if not fitted:
                    raise
                ended: Literal["time", "budget"] = "time" if isinstance(error, TimeUp) else "budget"
                return _points(fitted), ended if draw == 0 else None
            fitted.setdefault(count, []).append(one)
            pace = (time.perf_counter() - before) / plan.seconds(count)
    return _points(fitted), None


def _too_short(points: list[Point], ended: bool) -> dict[str, int]:
    """How many queries would have to be tried before a copy that failed says anything; nothing where they were."""
    most = max(point.queries for point in points)
    wanted = SAYS_IF_STOPPED if ended else SAYS
    return {STOPPED_SHORT: wanted} if most < wanted else {}


def _points(fitted: dict[int, list[dict[str, Any]]]) -> list[Point]:
    """The students of each number of queries together."""
    return [
        Point(
            count,
            tuple(one["likeness"] for one in students),
            {name: sum(one["measures"][name] for one in students) / len(students) for name in students[0]["measures"]},
            Spent(**students[0]["ledger"]),
        )
        for count, students in fitted.items()
    ]


def _student(
    target: Target, access: LearnedAccess, pool: Tensor, judge: Judge, plan: StudentPlan, job: list[int]
) -> dict[str, Any]:
    """One student of so many queries and one draw, compared with the model."""
    count, draw = job
    view = target.oracle(access)
    asked = answering(view, access)
    before = view.ledger.snapshot()  # finding out the shape of the answers is no part of the attack
    copy = learned(plan, asked, access, pool, count, target.seed + draw)
    return {
        "likeness": judge.likeness(copy),
        "measures": judge.measures(copy),
        "ledger": asdict(view.ledger.snapshot() - before),
    }


def _counts(target: Target, rows: int, access: LearnedAccess) -> list[int]:
    """Numbers of queries: those that the inputs, the budget and the access allow."""
    most = min(rows, MOST if target.options.budget is None else target.options.budget)
    most = min(most, GRADIENTS) if access == "gradient" else most
    counts = [count for count in QUERIES if count <= most] or [min(QUERIES)]
    return [*counts, most] if most >= LONGER * counts[-1] else counts


def _picture(points: list[Point], access: LearnedAccess, judge: Judge) -> Picture:
    counts = [float(point.queries) for point in points]
    lines = [("fidelity: as the model", counts, [point.mean for point in points])]
    if "right_answers_of_the_copy" in points[0].measures:
        right = [point.measures["right_answers_of_the_copy"] for point in points]
        lines.append(("accuracy: as the labels", counts, right))
    label = "variance explained" if judge.quantity else "same decision"
    png = curve(lines, x_label=f"{access} queries", y_label=f"{label} on other inputs", log_x=True)
    first, last = points[0], points[-1]
    words = copies.curve_words(first.mean, first.queries, last.mean, last.queries)
    return Picture(png, words, "How good a copy is against what it cost.")


def _table(points: list[Point], judge: Judge, price: float | None) -> Table:
    name = "variance explained" if judge.quantity else "same decisions"
    shown = [key for key in ("balanced_same_decision", "right_answers_of_the_copy", "balanced_accuracy_of_the_copy",
                             "auc_of_the_copy") if key in points[0].measures]  # fmt: skip
    columns = ("queries", name, "lowest draw", "highest draw", *(key.replace("_", " ") for key in shown))
    rows = tuple(
        (p.queries, p.mean, min(p.likeness), max(p.likeness), *(p.measures[key] for key in shown)) for p in points
    )
    if price is not None:
        columns = (*columns, "price")
        rows = tuple((*row, round(price * p.queries / 1000, 4)) for row, p in zip(rows, points, strict=True))
    return Table("Copies against queries", columns, rows)


def _known(target: Target) -> Tensor | None:
    """Inputs to ask about and to judge by: unseen ones, training inputs, or drawn tokens; None where there are none."""
    known = target.unseen if target.unseen is not None else target.inputs
    if known is not None or target.vocabulary is None:
        return known
    most = max(2 * QUERIES[0], min(DRAWN, JUDGING_NUMBERS // target.input_dim))
    generator = torch.Generator().manual_seed(target.seed)
    return drawn_rows(most, target.input_dim, target.vocabulary, generator)


def pool_of(target: Target) -> tuple[Tensor, Tensor, Tensor | None]:
    """Inputs to ask about, and others to judge by with their labels: unseen ones where there are any."""
    known = _known(target)
    labels = target.labels if target.unseen is None else target.unseen_labels
    assert known is not None
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(target.seed))
    half = len(known) // 2
    rows = order[half : half + 1000]
    most = MOST if target.options.budget is None else target.options.budget
    return known[order[: min(half, max(most, QUERIES[0]))]], known[rows], None if labels is None else labels[rows]


def _seconds(target: Target, access: LearnedAccess) -> float:
    """One round of students, and another of the smaller ones."""
    known = _known(target)
    if known is None:
        return 1.0
    plan = plan_for(target, known[:100], access)
    counts = _counts(target, len(known) // 2, access)
    round_one = sum(plan.seconds(count) + count * target.seconds_per_row for count in counts)
    return 1.5 * (3 if access == "gradient" else 1) * round_one + 1000 * target.seconds_per_row


def _early(target: Target) -> bool:
    """Whether a learned copy is the best that there is: no exact attack fits such a model."""
    return target.kind in ("smooth", "piecewise constant", "unknown") or (
        target.kind == "piecewise linear" and target.shape is not None
    )


PROBES = (
    Probe("copy-by-learning", "A copy by learning from answers", _obstacle, _run, partial(_seconds, access="value"),
          "high", _early),
    Probe("copy-by-learning-from-labels", "A copy by learning from decisions", _labels_obstacle, _run_labels,
          partial(_seconds, access="label"), "high"),
    Probe("copy-by-learning-from-gradients", "A copy by learning from explanations", _gradient_obstacle,
          _run_gradients, partial(_seconds, access="gradient"), "high"),
)  # fmt: skip
