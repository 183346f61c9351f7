"""What a target answered, put in the form that a student is fitted to.

A student computes logits. Of probabilities only their logarithm tells the logits, up to a number that all classes
share, so probabilities p with Jacobian J become log p and J / p, and both sides are compared after their mean over the
classes is taken away. Every gradient that is matched is thus a fixed combination of the logits' gradients:
``combine @ jacobian`` [n, m, d], with all classes shown (m = k), or the predicted one alone (m = 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from divulge.core.errors import BudgetExhausted, DivulgeError, InvalidInput, TargetError
from divulge.core.progress import report
from divulge.oracles.base import Oracle, decide
from divulge.oracles.outputs import Outputs

Classes = Literal["all", "predicted"]
ROWS_AT_ONCE = 256
"""Rows asked in one request, so that a target that fails in the middle has answered those before."""
COMPLETE = 1e-2
"""Share of the values' variance that integrated gradients, made of a finite sum, may leave unexplained."""
EXPLAINED = 0.3
"""Share of the differences between values from which on gradients are taken to belong to them."""
PAIRED = 100
"""Queries whose differences are compared with their gradients."""


@dataclass(frozen=True)
class Answers:
    """Queries, the target's answers as it gave them, and the same as statements about logits, all in float64."""

    X: Tensor
    raw_values: Tensor
    raw_gradients: Tensor | None
    logits: Tensor
    """[n, k]; zero where hidden. Centred over the shown classes unless the target shows logits."""
    shown: Tensor
    """[n, k]: one where the answer tells the logit, zero where not (a probability of exactly 0)."""
    free: bool
    """Whether a number that all classes of a row share is not known, so that logits are compared without their mean."""
    combine: Tensor | None
    """[n, m, k]: which combinations of the logits' gradients are known."""
    gradients: Tensor | None
    """[n, m, d]: those combinations."""
    absolute: bool = False
    """Only the size of every entry of a gradient is known, not its sign."""
    shares: Tensor | None = None
    """[n, k]: the probability of each class, of "yes" where there is one output; None where the target shows logits."""
    known: Tensor | None = None
    """[n, d]: one where the explanations, integrated gradients, tell a gradient, zero where they hide it; or None."""

    def __len__(self) -> int:
        return len(self.X)

    def centred(self, z: Tensor) -> Tensor:
        """A student's logits [n, k] as they are compared: those that are shown, less their mean where that is free."""
        return _centred(z, self.shown, free=self.free)

    @property
    def centre(self) -> Tensor:
        """What ``centred`` does to each row, as matrices [n, k, k]."""
        return _centring(self.shown, free=self.free)

    def __getitem__(self, rows: Tensor | slice) -> Answers:
        def part(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[rows]

        return Answers(
            self.X[rows], self.raw_values[rows], part(self.raw_gradients), self.logits[rows], self.shown[rows],
            self.free, part(self.combine), part(self.gradients), self.absolute, part(self.shares), part(self.known),
        )  # fmt: skip

    def to(self, dtype: torch.dtype, device: torch.device | str) -> Answers:
        def cast(tensor: Tensor) -> Tensor:
            return tensor.to(device=device, dtype=dtype)

        def maybe(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else cast(tensor)

        return Answers(
            cast(self.X), cast(self.raw_values), maybe(self.raw_gradients), cast(self.logits), cast(self.shown),
            self.free, maybe(self.combine), maybe(self.gradients), self.absolute, maybe(self.shares),
            maybe(self.known),
        )  # fmt: skip


def ask(oracle: Oracle, X: Tensor, *, gradients: bool) -> tuple[Tensor, Tensor | None, DivulgeError | None]:
    """Values [n, k] and gradients [n, k, d] for as many rows as could be had, as they came, and what stopped the rest.

    If nothing could be had, the error is raised.
    """
    values: list[Tensor] = []
    maps: list[Tensor] = []
    stopped: DivulgeError | None = None
    left = oracle.ledger.remaining
    affordable = len(X) if left is None else max(1, min(left, len(X)))
    for batch in torch.split(X[:affordable], ROWS_AT_ONCE):
        try:
            if gradients:
                value, jacobian = oracle.gradient(batch)
                maps.append(jacobian.cpu())
            else:
                value = oracle.value(batch)
        except (BudgetExhausted, TargetError) as error:
            if not values:
                raise
            stopped = error
            break
        values.append(value.cpu())
        report("asking", sum(map(len, values)), len(X))
    if stopped is None and affordable < len(X):
        stopped = BudgetExhausted(
            f"The budget of {oracle.ledger.budget:,} rows ended after {affordable:,} of {len(X):,} queries; the copy "
            "learned from those is kept. Raise the budget or ask for fewer."
        )
    return torch.cat(values), torch.cat(maps) if maps else None, stopped


def are_integrated(values: Tensor, gradients: Tensor | None, outputs: Outputs) -> bool:
    """Whether explanations [n, k, d] are integrated gradients from some baseline: each adds up to its value, but for a
    number that all rows share. Those of probabilities tell no logit's gradient, and are left as they are."""
    if gradients is None or len(values) < 2 or outputs != "logits":
        return False
    left = values - gradients.sum(dim=2)
    return float(left.var(dim=0).mean()) < COMPLETE * float(values.var(dim=0).mean())


def explained(answers: Answers) -> float:
    """The share of the differences between the queries' logits that the mean of the gradients at both ends tells.

    Most of it if the gradients are the target's own and it is nearly linear from query to query; little if it is not,
    or if they were averaged over points far away. One where gradients are hidden in part or all zero, and
    it cannot be computed.
    """
    some = answers[:PAIRED]
    if some.gradients is None or some.absolute or some.known is not None or not bool(some.gradients.any()):
        return 1.0
    if some.gradients.shape[1] < some.logits.shape[1]:
        return 1.0
    there = torch.einsum("imd,jd->ijm", some.gradients, some.X)
    here = torch.diagonal(there, dim1=0, dim2=1).T
    predicted = (there - here[:, None] + here[None] - there.transpose(0, 1)) / 2
    differ = some.logits[None] - some.logits[:, None]
    return 1 - float(
        (differ - predicted).square().sum() / differ.square().sum().clamp_min(torch.finfo(differ.dtype).tiny)
    )


def logit_answers(
    X: Tensor,
    values: Tensor,
    gradients: Tensor | None,
    *,
    outputs: Outputs,
    classes: Classes = "all",
    integrated: bool = False,
) -> Answers:
    """Answers in the form that a student is fitted to.

    Integrated gradients from a baseline of zero, the usual one, are divided by the input: the mean gradient on the way,
    wherever the input is not zero.
    """
    X, values = X.to("cpu", torch.float64), values.to(torch.float64)
    gradients = None if gradients is None else gradients.to(torch.float64)
    k = values.shape[1]
    shown = torch.ones_like(values, dtype=torch.bool)
    slope = torch.ones_like(values)  # d logit / d answer
    logits = values
    if outputs == "probabilities":
        logits, slope, shown = _from_probabilities(values)
    elif outputs == "log-probabilities":
        logits, slope, shown = _from_log_probabilities(values)
    free = outputs != "logits" and k > 1  # a number shared by all classes is not known
    seen = shown.to(torch.float64)
    logits = _centred(torch.where(shown, logits, 0.0), seen, free=free)
    shares = _shares(values, outputs)
    if gradients is None:
        return Answers(X, values, None, logits, seen, free, None, None, shares=shares)
    visible = None
    if integrated:
        visible = (X != 0).to(torch.float64)
        gradients = torch.where(X[:, None, :] != 0, gradients / torch.where(X == 0, 1.0, X)[:, None, :], 0.0)
    known = torch.where(shown[:, :, None], gradients * slope[:, :, None], 0.0)
    if classes == "all":
        combine = _centring(seen, free=free)
        known = combine @ known
    else:
        combine = torch.nn.functional.one_hot(decide(values), k).to(torch.float64) if k > 1 else torch.ones_like(values)
        known = combine[:, None, :] @ known
        if free:  # the gradient of log p_i is that of z_i less the mean of all, weighted by p
            combine = combine - torch.softmax(torch.where(shown, logits, -torch.inf), dim=1)
        combine = combine[:, None, :]
    absolute = bool((gradients >= 0).all()) and bool((gradients > 0).any()) and k > 1
    absolute = absolute and outputs == "logits"
    return Answers(X, values, gradients, logits, seen, free, combine, known, absolute, shares, visible)


def _centred(z: Tensor, shown: Tensor, *, free: bool) -> Tensor:
    seen = z * shown
    return seen - shown * (seen.sum(dim=1) / shown.sum(dim=1).clamp_min(1))[:, None] if free else seen


def _centring(shown: Tensor, *, free: bool) -> Tensor:
    matrices = torch.diag_embed(shown)
    if free:
        matrices -= shown[:, :, None] * shown[:, None, :] / shown.sum(dim=1).clamp_min(1)[:, None, None]
    return matrices


def _from_probabilities(p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    _expect(bool(((p >= 0) & (p <= 1 + 1e-6)).all()), "probabilities", "outside [0, 1]")
    if p.shape[1] == 1:  # the probability of "yes"
        shown = (p > 0) & (p < 1)
        inside = torch.where(shown, p, 0.5)
        return torch.logit(inside), 1 / (inside * (1 - inside)), shown
    shown = p > 0
    inside = torch.where(shown, p, 1.0)
    return inside.log(), 1 / inside, shown


def _from_log_probabilities(log_p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    _expect(bool((log_p <= 1e-6).all()), "log-probabilities", "above 0")
    if log_p.shape[1] == 1:
        shown = (log_p < 0) & log_p.isfinite()
        inside = torch.where(shown, log_p, -1.0)
        no = -torch.expm1(inside)
        return inside - no.log(), 1 / no, shown
    return log_p, torch.ones_like(log_p), log_p.isfinite()


def _shares(values: Tensor, outputs: Outputs) -> Tensor | None:
    """The probability of each class, whose sum rounding may have moved away from one."""
    if outputs == "logits":
        return None
    p = values.exp() if outputs == "log-probabilities" else values
    return p.clamp(0, 1) if p.shape[1] == 1 else p / p.sum(dim=1, keepdim=True)


def _expect(holds: bool, what: str, instead: str) -> None:
    if not holds:
        raise InvalidInput(f"The target was said to show {what}, but it answered numbers {instead}; set target_output.")
