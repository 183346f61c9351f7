"""How far a student is from a target's answers: in values, and in gradients.

``Printed`` is the loss of Milli 2019, section 4: squared error of the gradients of what the target shows, plus lambda
times the cross-entropy of the values, all terms as they come. ``Normalised`` is ours: both terms in units of the
target's own spread, so that one weight fits every target; logits rather than probabilities, whose gradients vanish
where the target is sure; and random combinations of the outputs instead of every output at every step, which is an
unbiased estimate of the same sum for the price of one backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from divulge.extraction.students.answers import Answers
from divulge.extraction.students.relu_gates import Gates
from divulge.oracles.outputs import Outputs

Logits = Callable[[Tensor], Tensor]


class MatchingLoss(Protocol):
    def __call__(self, logits: Logits, batch: Answers, generator: torch.Generator) -> Tensor: ...


@dataclass(frozen=True)
class Normalised:
    """weight_gradients * |J - J*|^2 / mean |J*|^2 + weight_values * |z - z*|^2 / var z*.

    ``combinations`` is how many random combinations of the outputs are matched a step; None matches every one.
    """

    weight_gradients: float
    weight_values: float
    gradient_scale: float
    value_scale: float
    combinations: int | None
    sharpness: float

    def __call__(self, logits: Logits, batch: Answers, generator: torch.Generator) -> Tensor:
        if batch.gradients is None or batch.combine is None or not self.weight_gradients:
            return self.weight_values * self._values(logits(batch.X), batch)
        onto, wanted = self._matched(batch, batch.combine, batch.gradients, generator)  # [r, n, k], [r, n, d]
        count, n, k = onto.shape
        X = (batch.X if count == 1 else batch.X.repeat(count, 1)).detach().requires_grad_()
        with Gates(self.sharpness):
            z = logits(X)
        (slope,) = torch.autograd.grad(z, X, onto.reshape(count * n, k), create_graph=True)
        difference = (slope.abs() if batch.absolute else slope) - wanted.reshape(count * n, -1)
        if batch.known is not None:
            difference = difference * batch.known.repeat(count, 1)
        parts = batch.combine.shape[1] if self._mixed(batch) else 1
        loss = self.weight_gradients * difference.square().sum() / (count * n * parts * self.gradient_scale)
        return loss + self.weight_values * self._values(z[:n], batch)

    def _mixed(self, batch: Answers) -> bool:
        """Whether combinations are matched, and not the outputs one by one: the sizes of a combination's entries do
        not follow from those of its parts, where only these are known."""
        assert batch.combine is not None
        return self.combinations is not None and self.combinations < batch.combine.shape[1] and not batch.absolute

    def _matched(
        self, batch: Answers, combine: Tensor, gradients: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """What to project the Jacobian on, r times for each row, and what should come out."""
        n, m = combine.shape[:2]
        if self.combinations is None or self.combinations >= m:
            return combine.transpose(0, 1), gradients.transpose(0, 1)
        if not self._mixed(batch):
            pick = torch.randint(m, (self.combinations, n), generator=generator)
            every = torch.arange(n)
            return combine[every, pick], gradients[every, pick]
        signs = torch.randint(2, (n, self.combinations, m), generator=generator).to(combine) * 2 - 1
        return (signs @ combine).transpose(0, 1), (signs @ gradients).transpose(0, 1)

    def _values(self, z: Tensor, batch: Answers) -> Tensor:
        return value_error(z, batch, self.value_scale)


@dataclass(frozen=True)
class Printed:
    """Milli 2019: |grad f - grad f^|^2 + lambda * cross-entropy, on whatever the target shows, with hard gates."""

    gradients: bool
    weight_values: float
    outputs: Outputs

    def __call__(self, logits: Logits, batch: Answers, generator: torch.Generator) -> Tensor:
        if not self.gradients or batch.raw_gradients is None:
            return self.weight_values * self._cross_entropy(logits(batch.X), batch)
        n, k = batch.raw_values.shape
        X = batch.X.repeat(k, 1).requires_grad_()
        z = logits(X)
        onto = torch.eye(k).to(X).repeat_interleave(n, dim=0)
        (slope,) = torch.autograd.grad((self._shown(z) * onto).sum(), X, create_graph=True)
        wanted = batch.raw_gradients.transpose(0, 1).reshape(k * n, -1)
        return (slope - wanted).square().sum() / n + self.weight_values * self._cross_entropy(z[:n], batch)

    def _shown(self, z: Tensor) -> Tensor:
        if self.outputs == "logits":
            return z
        if z.shape[1] == 1:
            return torch.sigmoid(z) if self.outputs == "probabilities" else functional.logsigmoid(z)
        return torch.softmax(z, dim=1) if self.outputs == "probabilities" else torch.log_softmax(z, dim=1)

    def _cross_entropy(self, z: Tensor, batch: Answers) -> Tensor:
        if batch.shares is not None:
            return cross_entropy(z, batch.shares)
        return cross_entropy(z, torch.sigmoid(batch.logits) if z.shape[1] == 1 else torch.softmax(batch.logits, dim=1))


def value_error(z: Tensor, answers: Answers, scale: float) -> Tensor:
    """Squared error of the logits; of rows that hide some of them, cross-entropy with what they show instead."""
    off = (answers.centred(z) - answers.logits).square() / scale
    hidden = (answers.shown == 0).any(dim=1)
    if answers.shares is None or not bool(hidden.any()):
        return off.mean()
    return off[~hidden].sum() / off.numel() + cross_entropy(z[hidden], answers.shares[hidden]) * hidden.double().mean()


def spread_of(answers: Answers) -> float:
    """The variance of the logits, or one where they do not vary."""
    spread = float(answers.logits.var(unbiased=False)) if answers.logits.numel() > 1 else 1.0
    return spread or 1.0


def cross_entropy(z: Tensor, shares: Tensor) -> Tensor:
    """Of a student's logits [n, k] with the probability of each class, or of "yes" where there is one output."""
    if z.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(z, shares)
    return functional.cross_entropy(z, shares)


def normalised(
    answers: Answers, *, gradients: float, values: float, combinations: int | None, sharpness: float
) -> Normalised:
    """The normalised loss with its units taken from all the answers."""
    scale = 1.0
    if answers.gradients is not None:
        scale = float(answers.gradients.square().sum(dim=2).mean())
    return Normalised(gradients, values, scale or 1.0, spread_of(answers), combinations, sharpness)
