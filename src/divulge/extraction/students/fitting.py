"""From answers to fitted students: one, several, and several that learn again from what they agree on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from divulge.core.workers import Workers, run
from divulge.extraction.students.answers import Answers, Classes
from divulge.extraction.students.matching_loss import MatchingLoss, Printed, normalised
from divulge.extraction.students.student import (
    Student,
    TargetInfo,
    distillation,
    fit,
    logits_of,
    make_student,
    set_level,
    soft_labels,
)
from divulge.models.ensemble import Ensemble
from divulge.oracles.local.torch_module import input_shape_of
from divulge.oracles.outputs import Outputs

Match = Literal["values", "gradients", "both"]
Method = Literal["default", "paper"]
CONFIDENT = (0.5, 0.8)
"""The share of unlabelled rows that each round of self-training believes."""
DISTIL_WEIGHT = 0.3
FAR_FROM_TARGETS = 6_364_136_223_846_793
"""Added to every student's seed: a target trained from seed 0 must not meet a student with its own initial weights."""
UNLABELLED_ROWS = 64
"""Unlabelled rows learned from at each step."""


@dataclass(frozen=True)
class FitSettings:
    """How students are fitted; ``by_training`` says what each means."""

    match: Match
    method: Method
    outputs: Outputs
    classes: Classes
    weight: float
    steps: int
    batch_size: int
    learning_rate: float
    combinations: int | None
    sharpness: float
    seed: int
    device: str
    train_norms: bool = False

    def generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(1_000_003 * self.seed + stream)

    def loss(self, answers: Answers) -> MatchingLoss:
        if self.method == "paper":
            return Printed(self.match != "values", 0.0 if self.match == "gradients" else self.weight, self.outputs)
        return normalised(
            answers,
            gradients=0.0 if self.match == "values" else 1.0,
            values={"values": 1.0, "gradients": 0.0, "both": self.weight}[self.match],
            combinations=self.combinations,
            sharpness=self.sharpness,
        )


@dataclass(frozen=True)
class PseudoLabels:
    """Unlabelled rows, what the students said of them together, and the round of self-training it was said in."""

    X: Tensor
    wanted: Tensor
    scale: float
    turn: int


@dataclass(frozen=True)
class Fitter:
    """Makes students for one target and fits them by one set of settings."""

    target: TargetInfo
    student: Student
    input_shape: Sequence[int] | None
    settings: FitSettings

    def new(self, number: int) -> nn.Module:
        """Student ``number``, not yet fitted; the first starts from the weights of a module that was handed in."""
        seed = (FAR_FROM_TARGETS + 1_000_003 * self.settings.seed + number) % 2**63
        made = make_student(self.student, self.target, seed=seed, fresh=number > 0, input_shape=self.input_shape)
        return made.to(self.settings.device)

    def fitted(
        self,
        answers: Answers,
        held_out: Answers | None = None,
        *,
        number: int = 0,
        steps: int | None = None,
        pseudo_labels: PseudoLabels | None = None,
        stage: str = "learning a copy",
    ) -> nn.Module:
        """A new student fitted to the answers."""
        settings = self.settings
        student = self.new(number)
        dtype = next(student.parameters()).dtype
        rows = answers.to(dtype, settings.device)
        held = None if held_out is None else held_out.to(dtype, settings.device)
        extra = None
        if pseudo_labels is not None:
            extra = distillation(
                pseudo_labels.X, pseudo_labels.wanted, weight=DISTIL_WEIGHT, batch_size=UNLABELLED_ROWS,
                scale=pseudo_labels.scale, generator=settings.generator(100 + 10 * pseudo_labels.turn + number),
            )  # fmt: skip
        fit(
            student, rows, settings.loss(answers), steps=steps or settings.steps, batch_size=settings.batch_size,
            learning_rate=settings.learning_rate, generator=settings.generator(10 + number), held_out=held,
            extra=extra, train_norms=settings.train_norms, stage=stage,
        )  # fmt: skip
        if settings.match == "gradients":
            set_level(student, rows)
        return student

    def several(
        self,
        answers: Answers,
        held_out: Answers | None,
        numbers: Sequence[int],
        *,
        steps: int | None = None,
        pseudo_labels: PseudoLabels | None = None,
        stage: str = "learning a copy",
        workers: Workers = None,
    ) -> list[nn.Module]:
        """Students of these numbers, each on a worker of its own if there are any."""
        made = partial(_numbered, self, answers, held_out, steps, pseudo_labels, stage)
        return run(made, numbers, workers=workers if len(numbers) > 1 else None, stage="students")

    def self_trained(
        self,
        students: Sequence[nn.Module],
        answers: Answers,
        held_out: Answers | None,
        unlabelled: Tensor,
        workers: Workers = None,
    ) -> list[nn.Module]:
        """The students learn anew, from the answers and from what they said together about unlabelled rows."""
        scale = float(answers.logits.var(unbiased=False)) or 1.0
        dtype = next(students[0].parameters()).dtype
        rows = unlabelled.to(self.settings.device, dtype)
        for turn, confident in enumerate(CONFIDENT):
            X, wanted = soft_labels(logits_of(as_one_model(students)), rows, confident=confident)
            students = self.several(
                answers, held_out, range(len(students)), pseudo_labels=PseudoLabels(X, wanted, scale, turn),
                stage=f"learning from itself, round {turn + 1}", workers=workers,
            )  # fmt: skip
        return list(students)


def _numbered(
    fitter: Fitter,
    answers: Answers,
    held_out: Answers | None,
    steps: int | None,
    pseudo_labels: PseudoLabels | None,
    stage: str,
    number: int,
) -> nn.Module:
    return fitter.fitted(answers, held_out, number=number, steps=steps, pseudo_labels=pseudo_labels, stage=stage)


def as_one_model(students: Sequence[nn.Module]) -> nn.Module:
    """The one student, or all of them as an ensemble."""
    return students[0] if len(students) == 1 else Ensemble(students, input_shape_of(students[0]))
