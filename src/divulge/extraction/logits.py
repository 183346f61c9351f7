"""Logits behind probabilities: log p_i less its mean over the classes is the logit, up to what softmax cannot see.

A network that shows probabilities is no piecewise linear function, but the logarithms of its answers are, up to a
number shared by all classes (Milli 2019, footnote 2, inverts a single one likewise). So exact extraction asks
through ``Logits`` and hands back the copy with its softmax on top. Where a probability underflows to zero its logit is
lost, so lines are searched no farther out than probabilities can be told from zero.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from divulge.errors import InvalidInput
from divulge.extraction.result import Extraction
from divulge.oracles.base import Oracle
from divulge.oracles.guards import Guard
from divulge.oracles.torch_model import Probabilities

Outputs = Literal["logits", "probabilities"]
PROBES = 4
DISTANCE = 10.0
"""How far out, in lengths of a typical input, the growth of the logits is measured."""
NEARLY = 1e-6


class Logits(Guard):
    """An oracle for the centred logits of an oracle that shows probabilities."""

    @property
    def eps(self) -> float:
        return 4 * self.oracle.eps  # probabilities and their logarithms are rounded too

    def _value(self, X: Tensor) -> Tensor:
        return self._finite(_centred(super()._value(X).log()), "logit")

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        p, slope = super()._gradient(X)
        return self._finite(_centred(p.log()), "logit"), self._finite(_centred(slope / p[:, :, None]), "gradient")

    def reach(self, generator: torch.Generator) -> float:
        """How far out, in lengths of a typical input, probabilities can still be told from zero. Asks four rows."""
        X = torch.randn(PROBES, self.input_dim, generator=generator, dtype=torch.float64)
        p = self.oracle.value(DISTANCE * X).to(torch.float64)
        span = float((p.amax(dim=1) / p.amin(dim=1)).log().max())
        most = -0.4 * math.log(torch.finfo(self.dtype).tiny)
        return DISTANCE * most / min(max(span, 1e-3), 2.5 * most)


def beneath(oracle: Oracle, outputs: Outputs | None, seed: int) -> Oracle:
    """The oracle itself if it shows logits, or ``Logits`` if it shows probabilities; None asks two rows to tell."""
    if outputs not in (None, "logits", "probabilities"):
        raise InvalidInput(f'outputs is "logits" or "probabilities", not {outputs!r}.')
    if outputs == "probabilities" and oracle.output_dim == 1:
        raise InvalidInput(
            "A single probability hides its logit where it rounds to one, so no exact copy can be had; ask a target "
            "that shows the probabilities of all classes, or use softmax_regression if it is linear."
        )
    if outputs is None and oracle.output_dim > 1:
        rows = torch.randn(2, oracle.input_dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        p = oracle.value(rows).to(torch.float64)
        if bool((p > 0).all()) and bool(((p.sum(dim=1) - 1).abs() < NEARLY).all()):
            outputs = "probabilities"
    return Logits(oracle) if outputs == "probabilities" else oracle


def on_top(stolen: Extraction, oracle: Oracle) -> Extraction:
    """The copy as the target shows itself: with its softmax, if that was taken off."""
    if not isinstance(oracle, Logits):
        return stolen
    note = "The target shows probabilities: errors are those of its logits, which are known up to a shared number."
    model = nn.Sequential(stolen.model, Probabilities()).eval()
    model.input_shape = stolen.model.input_shape
    return replace(
        stolen,
        model=model,
        notes=(*stolen.notes, note),
        facts={**stolen.facts, "outputs": "probabilities"},
    )


def _centred(z: Tensor) -> Tensor:
    return z - z.mean(dim=1, keepdim=True)
