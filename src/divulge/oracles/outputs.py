"""What a target shows, logits or probabilities, and the logits behind probabilities.

Probabilities are recognised by one rule, used wherever it matters: no answer is negative, and the k answers of every
row sum to one within k times the precision of a single answer. The precision is that of the number format in which the
answers fit, or half of the decimal step that all of them are multiples of. Log-probabilities are recognised by their
exponentials. A single output is a probability if its oracle says so (a threshold of one half).

A network that shows probabilities is not piecewise linear, but its logits are, and they follow from the answers up to
a number that all classes share: log p_i less its mean over the classes (Milli 2019, footnote 2). ``LogitOracle`` gives
an attack those logits. Where a probability rounds to 0 or 1 its logit is lost, so the oracle also tells which logits
are precise and how far from the centre rows may lie (``reach``). A sigmoid computes small probabilities precisely and
loses those near one, so one side of its logits is precise at any size.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from divulge.core.validation import checked_choice
from divulge.oracles.base import Oracle
from divulge.oracles.guards.base import Guard
from divulge.oracles.local.torch_module import Probabilities

Outputs = Literal["logits", "log-probabilities", "probabilities"]
Coarse = Literal["none", "first", "last", "both"]
"""Of which of two classes small probabilities are coarse, because they are one less a large one."""
OUTPUTS: tuple[Outputs, ...] = ("logits", "log-probabilities", "probabilities")
LARGEST_STEP = 0.01
"""Answers that are multiples of more than this are not rounded probabilities; one-hot rows sum to one as they are."""
ROUNDINGS = 4
"""Rounding errors allowed for each answer of a softmax: exponential, sum, quotient and the conversion of its input."""


# -- one test of "are these probabilities?" ---------------------------------------------------------------------------


def rounding_step(values: NDArray[Any], eps: float = 2.0**-52) -> float:
    """The largest power of ten, from 1 to 1e-9, that all values are multiples of; 0 if there is none.

    ``eps`` is the relative precision of the values' number format. A constant has no step.
    """
    seen = np.abs(values[values != 0.0])
    if values.min() == values.max():
        return 0.0
    for digits in range(0, 10):
        scaled = seen * 10.0**digits
        allowed = 1e-9 + 4 * eps * scaled
        fine = allowed < 0.1  # larger numbers are too coarse themselves to tell
        off = np.abs(scaled - np.round(scaled))
        if fine.sum() >= min(16, len(seen)) > 0 and scaled.max() >= 1.0 and (off <= allowed)[fine].all():
            return float(10.0**-digits)
    return 0.0


def answer_precision(values: Tensor) -> float:
    """Largest absolute rounding error of answers of order one, as their number format and decimals show it."""
    values = values.detach().cpu().to(torch.float64)
    single = bool((values == values.float().double()).all())
    eps = float(torch.finfo(torch.float32 if single else torch.float64).eps)
    step = rounding_step(values.numpy(), eps)
    return max(ROUNDINGS * eps, 0.5 * step if step <= LARGEST_STEP else 0.0)


def are_probabilities(values: Tensor, precision: float | None = None) -> bool:
    """Whether every row of several answers [n, k] is a distribution: none negative, and their sum one.

    Parameters
    ----------
    values : Tensor
        Answers of shape [n, k] with k of at least 2. A single column is never enough evidence: False.
    precision : float, optional
        Largest rounding error of one answer. By default it is derived from the values (``answer_precision``).

    Returns
    -------
    bool

    Examples
    --------
    >>> import torch
    >>> from divulge.oracles.outputs import are_probabilities
    >>> are_probabilities(torch.tensor([[0.25, 0.75], [0.5, 0.5]]))
    True
    >>> are_probabilities(torch.tensor([[0.25, 0.70], [0.5, 0.5]]))
    False
    """
    if values.shape[1] < 2:
        return False
    return bool(rows_of_probabilities(values, precision).all())


def rows_of_probabilities(values: Tensor, precision: float | None = None) -> Tensor:
    """The rows [n] of answers [n, k] that are distributions."""
    precision = answer_precision(values) if precision is None else precision
    total = values.detach().to(torch.float64).sum(dim=1)
    return (values >= -precision).all(dim=1) & ((total - 1).abs() <= values.shape[1] * precision)


def are_log_probabilities(values: Tensor) -> bool:
    """Whether the exponentials of the answers [n, k] are probabilities."""
    if values.shape[1] < 2 or not bool((values <= 0).all()):
        return False
    precision = min(answer_precision(values) * max(1.0, float(values.abs().max())), LARGEST_STEP)
    return are_probabilities(values.detach().to(torch.float64).exp(), precision)


def outputs_shown(values: Tensor, threshold: float = 0.0) -> Outputs:
    """What answers [n, k] are: "probabilities", "log-probabilities", or else "logits".

    Parameters
    ----------
    values : Tensor
        Answers of shape [n, k].
    threshold : float, default 0.0
        The oracle's threshold for a single output: a positive one is that of a probability.

    Returns
    -------
    {"logits", "log-probabilities", "probabilities"}

    Examples
    --------
    >>> import torch
    >>> from divulge.oracles.outputs import outputs_shown
    >>> outputs_shown(torch.tensor([[2.0, -1.0], [0.3, 0.4]]).log_softmax(dim=1))
    'log-probabilities'
    """
    if values.shape[1] == 1:
        return "probabilities" if threshold > 0 else "logits"
    if are_probabilities(values):
        return "probabilities"
    return "log-probabilities" if are_log_probabilities(values) else "logits"


def label_probabilities(values: Tensor, threshold: float = 0.0) -> Tensor:
    """Answers [n, k] as probabilities of the labels [n, max(k, 2)], by softmax or sigmoid where they are logits."""
    shown = outputs_shown(values, threshold)
    if values.shape[1] == 1:
        chance = values if shown == "probabilities" else torch.sigmoid(values)
        return torch.cat([1 - chance, chance], dim=1)
    if shown == "probabilities":
        return values
    return values.exp() if shown == "log-probabilities" else torch.softmax(values, dim=1)


def output_layer(outputs: Outputs, count: int) -> nn.Module | None:
    """The layer that turns ``count`` logits into what the target shows; None for logits."""
    if outputs == "logits":
        return None
    if count == 1:
        return nn.Sigmoid() if outputs == "probabilities" else nn.LogSigmoid()
    return Probabilities(log=outputs == "log-probabilities")


def checked_outputs(outputs: str | None) -> None:
    if outputs is not None:
        checked_choice("outputs", outputs, OUTPUTS)


# -- logits behind probabilities --------------------------------------------------------------------------------------

PROBES = 4
DISTANCES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3)
"""How far out the growth of the logits is measured, in lengths of a typical input; the first distance where
probabilities can be distinguished from zero counts."""
COMPLEMENT_BITS = 2.0**53
"""1 - p is a multiple of 2^-53 for every float64 p between one half and one."""


class LogitOracle(Guard):
    """An oracle for the logits behind an oracle that shows probabilities or log-probabilities.

    Several logits are centred: their mean over the classes is zero. The logits of answers that rounded to 0 or 1 are
    cut off at the largest size that the number format can show.
    """

    def __init__(self, oracle: Oracle, outputs: Outputs = "probabilities", *, coarse: Coarse | None = None) -> None:
        super().__init__(oracle)
        self.outputs = outputs
        self.threshold = 0.0
        unknown: Coarse = "both" if oracle.output_dim == 1 and outputs == "probabilities" else "none"
        self.coarse: Coarse = unknown if coarse is None else coarse
        """Of which class small probabilities have the absolute error of one; of a single one, 1 - p is the first."""

    @property
    def smallest(self) -> float:
        """The smallest probability whose logit is precise enough to be used, where small ones are coarse."""
        limits = torch.finfo(self.dtype)
        return float(limits.tiny**0.4) if self.coarse == "none" else float(self.oracle.eps ** (1 / 7))

    @property
    def eps(self) -> float:
        """The error of a logit at the largest size that is used, relative to that size."""
        if self.coarse == "none":
            return 4 * self.oracle.eps
        return self.oracle.eps / (self.smallest * self.largest_logit)

    @property
    def largest_logit(self) -> float:
        return -math.log(self.smallest)

    def precise(self, logits: Tensor) -> Tensor:
        """Rows [n] whose logits are known precisely."""
        size = logits.abs().amax(dim=1) if logits.shape[1] == 1 else logits.amax(dim=1) - logits.amin(dim=1)
        if self.coarse in ("none", "both"):
            return size <= self.largest_logit
        odds = logits[:, -1] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
        inside = odds <= self.largest_logit if self.coarse == "first" else odds >= -self.largest_logit
        return inside & (size <= -math.log(torch.finfo(self.dtype).tiny ** 0.4))

    def _value(self, X: Tensor) -> Tensor:
        return self.logits_of(super()._value(X))

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        shown, gradient = super()._gradient(X)
        if self.outputs == "log-probabilities" and self.output_dim > 1:
            slope = torch.ones_like(shown)
        elif self.outputs == "log-probabilities":
            slope = 1 / -torch.expm1(self._clamped(shown))
        else:
            p = self._clamped(shown)
            slope = 1 / (p * (1 - p)) if self.output_dim == 1 else 1 / p
        logits = self.logits_of(shown)
        return logits, self._finite(_centred(gradient * slope[:, :, None]), "gradient")

    def _clamped(self, shown: Tensor) -> Tensor:
        limits = torch.finfo(shown.dtype)
        if self.outputs == "log-probabilities":
            return shown.clamp(math.log(limits.tiny), -limits.eps / 2 if self.output_dim == 1 else 0.0)
        return shown.clamp(limits.tiny, 1 - limits.eps / 2 if self.output_dim == 1 else 1.0)

    def logits_of(self, shown: Tensor) -> Tensor:
        """The logits behind answers [n, k]."""
        shown = self._clamped(shown)
        if self.output_dim == 1:
            if self.outputs == "probabilities":
                return torch.logit(shown)
            return shown - torch.log(-torch.expm1(shown))
        return _centred(shown if self.outputs == "log-probabilities" else shown.log())

    def reach(self, generator: torch.Generator) -> float:
        """How far out, in lengths of a typical input, logits are precise.

        Asks four rows at each of one to nine distances.
        """
        for distance in DISTANCES:
            X = torch.randn(PROBES, self.input_dim, generator=generator, dtype=torch.float64)
            span = logit_span(self.value(distance * X))
            if span < 2.5 * self.largest_logit:
                break
        return distance * self.largest_logit / min(max(span, 1e-3), 2.5 * self.largest_logit)


def logit_span(logits: Tensor) -> float:
    """Largest difference between two logits of one row; of a single one, twice its size."""
    logits = logits.to(torch.float64)
    if logits.shape[1] == 1:
        return float(2 * logits.abs().max())
    return float((logits.amax(dim=1) - logits.amin(dim=1)).max())


def coarse_class(p: Tensor) -> Coarse:
    """Of which class small probabilities are coarse, from probabilities [n, 1] or [n, 2].

    A probability that was computed as one less another is a multiple of 2^-53; one of a softmax or sigmoid is none, if
    it is small. A class of which no small probability was seen may be coarse.
    """
    if p.shape[1] > 2:
        return "none"
    if p.dtype != torch.float64:
        return "both"
    scaled = p * COMPLEMENT_BITS
    fine = ((scaled != scaled.round()) & (p < 0.5)).any(dim=0).tolist()
    if p.shape[1] == 1:
        return "first" if fine[0] else "both"
    known: dict[tuple[bool, bool], Coarse] = {(True, True): "none", (False, True): "first", (True, False): "last"}
    return known.get((fine[0], fine[1]), "both")


def _centred(z: Tensor) -> Tensor:
    return z if z.shape[1] == 1 else z - z.mean(dim=1, keepdim=True)
