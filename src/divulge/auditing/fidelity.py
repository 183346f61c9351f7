"""How alike is a copy? By the decisions it shares with the model, or, of a model that predicts a quantity, by the
variance it explains. What counts as a copy follows the written rule in docs/severity.md."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from divulge.auditing.finding import Outcome
from divulge.auditing.target import Target

FAITHFUL, USEFUL = 0.98, 0.9
"""Likeness from which a copy counts as taken, and as partly taken."""


@dataclass(frozen=True)
class Judge:
    """Inputs with what the model says of them, to hold copies against."""

    rows: Tensor
    decisions: Tensor
    values: Tensor | None
    """The model's answers, where it predicts a quantity; there decisions mean nothing."""

    def likeness(self, copy: nn.Module) -> float:
        """Share of equal decisions, or of variance explained."""
        from divulge.oracles import oracle

        if self.values is None:
            return float((oracle(copy).label(self.rows) == self.decisions).double().mean())
        error = (oracle(copy).value(self.rows).double() - self.values).square().sum()
        spread = (self.values - self.values.mean(dim=0)).square().sum()
        return float(1 - error / spread) if float(spread) > 0 else float(error == 0)

    @property
    def chance(self) -> float:
        """What a copy scores that always says the same."""
        if self.values is not None:
            return 0.0
        [(_, most)] = Counter(self.decisions.tolist()).most_common(1)
        return most / len(self.decisions)

    def outcome(self, likeness: float) -> Outcome:
        """What such a copy means; one that is hardly better than always saying the same means nothing."""
        if self.chance == 1 or 1 - likeness > (1 - self.chance) / 2 or likeness < USEFUL:
            return "failed"
        return "succeeded" if likeness >= FAITHFUL else "partly"

    def told(self, likeness: float) -> str:
        """The likeness in words."""
        return f"{likeness:.1%} of its " + ("decisions" if self.values is None else "variance")


def judge_of(target: Target, rows: Tensor) -> Judge:
    """Ask the model what copies are held against; the attacker's ledger is not touched."""
    rows = rows[: target.affordable(len(rows))]
    decisions = target.oracle("label").label(rows)
    quantity = target.labels is not None and target.labels.is_floating_point()
    if target.output_dim == 1 and bool((decisions == decisions[0]).all()):
        quantity = True  # the sign of such an answer is no decision
    if quantity and target.grants("value"):
        return Judge(rows, decisions, target.oracle("value").value(rows).to(torch.float64))
    return Judge(rows, decisions, None)


def misread(target: Target) -> str:
    """A warning if the model knows no more of the data than its most common answer: it may be in other units."""
    if target.inputs is None or target.labels is None:
        return ""
    rows = target.inputs[: target.affordable(1000)]
    labels = target.labels[: len(rows)].flatten()
    if len(rows) == 0 or bool((labels == labels[0]).all()):
        return ""
    if labels.is_floating_point():
        if target.output_dim != 1 or not target.grants("value"):
            return ""
        error = (target.oracle("value").value(rows).double().flatten() - labels).square().mean()
        wrong = float(error) >= float(labels.double().var(correction=0))
        told = "The model predicts the training data no better than its mean does"
    else:
        decisions = target.oracle("label").label(rows).cpu().numpy()
        _, numbers, counts = np.unique(labels.cpu().numpy(), return_inverse=True, return_counts=True)
        right = max(float((decisions == named).mean()) for named in (labels.cpu().numpy(), numbers))  # 1, 2 for 0, 1
        common = float(counts.max()) / len(labels)
        wrong = right <= common
        told = f"The model is right about {right:.1%} of the training data, always saying the same about {common:.1%}"
    return f"{told}: is this the data as the model takes it, in units and order of columns?" if wrong else ""
