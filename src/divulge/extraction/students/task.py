"""A task: what a target answered and how students are to learn from it. It needs no oracle, so a worker can do it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from divulge.core.errors import AttackFailed, DivulgeError
from divulge.core.workers import Workers, run
from divulge.extraction.result import Extraction
from divulge.extraction.students import solved_hidden_layer
from divulge.extraction.students.answers import EXPLAINED, Answers, explained, logit_answers
from divulge.extraction.students.fitting import FitSettings, Fitter, as_one_model
from divulge.extraction.students.matching_loss import normalised
from divulge.extraction.students.solved_linear import Solved, is_linear, solve
from divulge.extraction.students.student import Student, compare, logits_of
from divulge.extraction.verification import spread
from divulge.oracles.ledger import Spent
from divulge.oracles.local.torch_module import input_shape_of
from divulge.oracles.outputs import Outputs, output_layer

ENOUGH_TO_HOLD_OUT = 50
"""Queries from which on a tenth of them is held out by default; with fewer, every one is needed."""
FEW = 10
"""Queries on which gradients are compared at the end: every output of one costs a step."""

Learned = tuple[Extraction, DivulgeError | None]
"""A copy, and what went wrong on the way to it, if anything did."""


@dataclass(frozen=True)
class StudentTask:
    """Queries and answers in the target's own precision, and how to learn from them."""

    fitter: Fitter
    X: Tensor
    values: Tensor
    gradients: Tensor | None
    integrated: bool
    """Whether the gradients are integrated gradients."""
    hold_out: float | None
    ensemble: int
    asked: Spent
    seconds: float
    """What asking took."""
    stopped: DivulgeError | None = None
    """What ended the queries before all were asked."""

    def answers(self) -> Answers:
        settings = self.fitter.settings
        return logit_answers(
            self.X, self.values, self.gradients, outputs=settings.outputs, classes=settings.classes,
            integrated=self.integrated,
        )  # fmt: skip

    def with_answers(
        self, X: Tensor, values: Tensor, gradients: Tensor | None, stopped: DivulgeError | None
    ) -> StudentTask:
        """The task with more answers."""
        more = None if self.gradients is None or gradients is None else torch.cat([self.gradients, gradients])
        return replace(
            self, X=torch.cat([self.X, X]), values=torch.cat([self.values, values]), gradients=more, stopped=stopped
        )

    def learn(self, unlabelled: Tensor | None = None, workers: Workers = None) -> Learned:
        """The copy: solved if the queries determine it, else fitted, several students at once on the workers."""
        made, answers = _ResultBuilder(self), self.answers()
        made.notes += _notes(answers)
        fitter, settings = self.fitter, self.fitter.settings
        if answers.gradients is not None and not bool(answers.gradients.any()):
            return made.from_values_only(answers)
        kept, held = _split(answers, self.hold_out, settings)
        if settings.match != "values" and settings.classes == "all" and settings.method == "default":
            student = fitter.new(0)
            layer = solve(student, answers, fitter.target.eps) if is_linear(student) else None
            if layer is not None:
                return made.solved(layer, answers), self.stopped
            solvable = solved_hidden_layer.fits(student)
            network = solved_hidden_layer.solve(student, kept, settings.generator(4)) if solvable else None
            if network is not None:
                return made.rebuilt(network.to(settings.device, fitter.target.dtype), kept, held), self.stopped
        students = fitter.several(kept, held, range(self.ensemble), workers=workers)
        if unlabelled is not None:
            students = fitter.self_trained(students, kept, held, unlabelled, workers)
        return made.fitted(as_one_model(students), kept, held), self.stopped


def learn_all(
    tasks: Sequence[StudentTask],
    *,
    unlabelled: Tensor | None = None,
    workers: Workers = None,
    on_done: Callable[[int, Learned], None] | None = None,
) -> list[Learned]:
    """A copy from each task, each on a worker of its own; a single task has its students shared out instead."""
    if len(tasks) == 1:
        learned = [tasks[0].learn(unlabelled, workers)]
        if on_done is not None:
            on_done(0, learned[0])
        return learned
    return run(partial(_learned, unlabelled), tasks, workers=workers, on_done=on_done, stage="copies")


def _learned(unlabelled: Tensor | None, task: StudentTask) -> Learned:
    return task.learn(unlabelled)


def _split(answers: Answers, hold_out: float | None, settings: FitSettings) -> tuple[Answers, Answers | None]:
    """The answers to learn from, and those held out for choices, if any."""
    share = hold_out if hold_out is not None else (0.1 if len(answers) >= ENOUGH_TO_HOLD_OUT else 0.0)
    aside = math.ceil(share * len(answers))
    if not aside or aside >= len(answers):
        return answers, None
    order = torch.randperm(len(answers), generator=settings.generator(3))
    return answers[order[aside:]], answers[order[:aside]]


class _ResultBuilder:
    """Turns a fitted student into a result."""

    def __init__(self, task: StudentTask) -> None:
        self.task, self.fitter, self.began = task, task.fitter, time.perf_counter()
        self.notes: list[str] = []

    def fitted(self, student: nn.Module, kept: Answers, held: Answers | None) -> Extraction:
        return self._judged(student, kept, held, "A fitted student agrees with the target; it is not equal to it.")

    def from_values_only(self, answers: Answers) -> Learned:
        self.fitter = replace(self.fitter, settings=replace(self.fitter.settings, match="values"))
        error = AttackFailed(
            f"Every gradient of {len(answers)} queries is zero: the endpoint is saturated or masks its explanations. "
            'Ask it for values alone (match="values", --access value); what was learned from those is kept.'
        )
        return self.fitted(self.fitter.fitted(answers), answers, None), error

    def rebuilt(self, network: nn.Module, kept: Answers, held: Answers | None) -> Extraction:
        """A network of one hidden layer that was solved: exact if queries that did not make it say so."""
        self.notes.append("The student has one hidden layer, and the queries determine it: it was solved, not fitted.")
        if held is None:
            return self._judged(network, kept, held, "Every query went into solving it, and none is left to verify it.")
        result = self._judged(network, kept, held, "")
        single = torch.finfo(torch.float32).eps  # what is coarser, by a guard, is never exact for that
        still = solved_hidden_layer.unswitched(network, kept.X)
        if result.worst_error <= max(1e-9, 1e3 * min(self.fitter.target.eps, single)) * result.scale:
            reason = (
                f"Held-out queries agree, but {still} of its neurons never switched at the queries: elsewhere they may."
            )
            return replace(result, exact=False, reason=reason) if still else result
        reason = (
            f"Held-out queries differ by up to {result.worst_error / result.scale:.1e} of the outputs' standard "
            "deviation: neurons that no query switched on are missing, or answers were averaged or rounded."
        )
        return replace(result, exact=False, reason=reason)

    def _judged(self, student: nn.Module, kept: Answers, held: Answers | None, reason: str) -> Extraction:
        settings = self.fitter.settings
        dtype = next(student.parameters()).dtype
        seen = (kept if held is None else held).to(dtype, settings.device)
        error, agreement = compare(student, seen)
        with torch.no_grad():
            z = logits_of(student)(seen.X)
            worst = float((seen.centred(z) - seen.logits).abs().max())
        learned = kept.to(dtype, settings.device)
        facts: dict[str, object] = {
            "agreement_on_held_out_queries": None if held is None else agreement,
            "agreement_on_queries": compare(student, learned)[1],
            "held_out_queries": 0 if held is None else len(held),
            "mean_squared_error": error,
            "gradient_error_on_held_out_queries": None if held is None else gradient_error(student, seen),
            "gradient_error_on_queries": gradient_error(student, learned),
        }
        if held is None:
            return self._result(student, facts, math.inf, 0, spread(kept.logits), reason)
        return self._result(student, facts, worst, len(held), spread(kept.logits), reason)

    def solved(self, solved: Solved, answers: Answers) -> Extraction:
        reason = "" if solved.points else "One query makes the layer and leaves none to verify it; ask one more."
        self.notes.append("The student is one linear layer, solved in closed form from the first query.")
        facts: dict[str, object] = {"closed_form": True, "agreement_on_queries": compare(solved.model, answers)[1]}
        return self._result(solved.model, facts, solved.worst, solved.points, spread(answers.logits), reason)

    def _result(
        self, student: nn.Module, facts: dict[str, object], worst: float, points: int, scale: float, reason: str
    ) -> Extraction:
        settings = self.fitter.settings
        described = {
            "student": _name(self.fitter.student), "match": settings.match, "target_output": settings.outputs,
            "classes": settings.classes, "weight": settings.weight, "steps": settings.steps,
        }  # fmt: skip
        return Extraction(
            model=_as_shown(student, settings.outputs), width=0, exact=not reason, worst_error=worst, scale=scale,
            ledger=self.task.asked, seed=settings.seed,
            seconds=self.task.seconds + time.perf_counter() - self.began, method=f"training ({settings.method})",
            reason=reason, verified_points=points, notes=tuple(self.notes), facts={**described, **facts},
        )  # fmt: skip


def gradient_error(student: nn.Module, answers: Answers) -> float | None:
    """What a student misses of the first few gradients, as a share of their squared length; None if there are none."""
    some = answers[:FEW]
    if some.gradients is None or not bool(some.gradients.any()):
        return None
    loss = normalised(some, gradients=1.0, values=0.0, combinations=None, sharpness=1.0)
    return float(loss(logits_of(student), some, torch.Generator()).detach())


def _as_shown(student: nn.Module, outputs: Outputs) -> nn.Module:
    """The student followed by what turns its logits into what the target shows."""
    if outputs == "logits":
        return student.eval()
    shape = input_shape_of(student)
    with torch.no_grad():
        parameter = next(student.parameters())
        single = student(torch.zeros(1, *shape, dtype=parameter.dtype, device=parameter.device)).numel() == 1
    last = output_layer(outputs, 1 if single else 2)
    assert last is not None
    shown = nn.Sequential(student, last)
    shown.input_shape = shape  # type: ignore[assignment]
    return shown.eval()


def _notes(answers: Answers) -> list[str]:
    notes = []
    if answers.absolute:
        notes.append("No gradient has a negative entry: taken for absolute values, whose signs the student must find.")
    if answers.known is not None:
        share = 100 * float(answers.known.mean())
        notes.append(
            "Every explanation adds up to its value: taken for integrated gradients from zero, which divided by the "
            f"input tell {share:.0f} % of the gradients."
        )
    if (share := explained(answers)) < EXPLAINED:
        notes.append(
            f"The gradients tell {max(0, round(100 * share))} % of how the values differ from query to query: they "
            "were averaged over points far away, or the target bends much in between."
        )
    if answers.raw_gradients is not None:
        dead = int((answers.raw_gradients == 0).flatten(1).all(dim=1).sum())
        if 0 < dead < len(answers):
            notes.append(f"{dead} of {len(answers)} queries came back with a gradient of zero.")
    hidden = float(1 - answers.shown.mean())
    if hidden:
        notes.append(f"{100 * hidden:.2g} % of the probabilities are exactly 0, which hides their logits.")
    return notes


def _name(student: Student) -> str:
    if isinstance(student, nn.Module):
        spec = getattr(student, "spec", None) or {}
        return str(spec.get("architecture", type(student).__name__))
    return student if isinstance(student, str) else str(student.get("architecture"))
