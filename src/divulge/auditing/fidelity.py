"""How alike a copy and the model are: by the decisions they share, or, of a model that predicts a quantity, by the
variance that the copy explains. What counts as a copy follows the written rule in docs/severity.md.

Shares of decisions say little where one decision is common, so the balanced share stands beside them: the mean over
the decisions of the model of the share that the copy repeats.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from divulge.auditing.target import JUDGING_NUMBERS, Target, drawn_rows
from divulge.oracles import oracle
from divulge.oracles.base import decide
from divulge.report.findings import Outcome

FAITHFUL, USEFUL = 0.98, 0.9
"""Likeness from which a copy counts as taken, and as partly taken."""
ROWS = 1000
"""Rows that judge a copy, at most."""


@dataclass(frozen=True, eq=False)
class Judge:
    """Inputs with what the model answers, to compare copies with."""

    rows: Tensor
    decisions: Tensor
    values: Tensor | None
    """The answers of the model where it predicts a quantity; decisions mean nothing there."""
    labels: Tensor | None = None
    """The true classes, where they are known."""
    unseen: bool = False
    """Whether the model never saw these rows."""
    eps: float = 0.0
    """Relative size of one rounding error in the answers."""

    @property
    def quantity(self) -> bool:
        """Whether the model predicts a quantity."""
        return self.values is not None

    def of_decisions(self) -> Judge:
        """The judge of a copy that has nothing but decisions: it compares these, whatever the values are."""
        return replace(self, values=None)

    @property
    def constant(self) -> bool:
        """Whether the model answers all the rows alike; of a quantity, but for rounding in sums over the inputs."""
        if self.values is not None:
            eps = min(self.eps, torch.finfo(torch.float32).eps)  # coarser answers are rounded after the sum
            rounding = eps * self.rows.shape[1] * float(self.values.abs().max())
            return bool(((self.values - self.values[0]).abs() <= rounding).all())
        return bool((self.decisions == self.decisions[0]).all())

    def likeness(self, copy: nn.Module) -> float:
        """Share of equal decisions, or of variance explained."""
        if self.values is None:
            return float((oracle(copy).label(self.rows) == self.decisions).double().mean())
        error = (oracle(copy).value(self.rows).double() - self.values).square().sum()
        spread = (self.values - self.values.mean(dim=0)).square().sum()
        return float(1 - error / spread) if float(spread) > 0 else float(error == 0)

    @property
    def chance(self) -> float:
        """The likeness of a copy that always answers the same."""
        if self.values is not None:
            return 0.0
        [(_, most)] = Counter(self.decisions.tolist()).most_common(1)
        return most / len(self.decisions)

    def outcome(self, likeness: float) -> Outcome:
        """What such a copy means. One that is hardly better than a constant answer means nothing."""
        if self.constant or 1 - likeness > (1 - self.chance) / 2 or likeness < USEFUL:
            return "failed"
        return "succeeded" if likeness >= FAITHFUL else "partly"

    def measures(self, copy: nn.Module) -> dict[str, float]:
        """What else there is to say of a copy: balanced shares, and correct answers with the area under the curve."""
        if self.values is not None:
            return {}
        answers = oracle(copy)
        decisions = answers.label(self.rows)
        said = {"balanced_same_decision": balanced(decisions, self.decisions)}
        if self.labels is not None:
            said["right_answers_of_the_copy"] = float((decisions == self.labels).double().mean())
            said["balanced_accuracy_of_the_copy"] = balanced(decisions, self.labels)
            said["right_answers_of_the_model"] = float((self.decisions == self.labels).double().mean())
            said["balanced_accuracy_of_the_model"] = balanced(self.decisions, self.labels)
            area = _area(answers.value(self.rows), self.labels)
            if area is not None:
                said["auc_of_the_copy"] = area
        return said


def balanced(decisions: Tensor, truth: Tensor) -> float:
    """The mean over the true classes of the share of their rows that are decided correctly."""
    right = (decisions == truth).double()
    shares = [right[truth == one].mean() for one in set(truth.tolist())]
    return float(torch.stack(shares).mean())


def _area(values: Tensor, labels: Tensor) -> float | None:
    """The area under the ROC curve of a two-class copy; None for more classes, or where only one is there."""
    from sklearn.metrics import roc_auc_score

    if len(set(labels.tolist())) != 2 or values.shape[1] > 2:
        return None
    score = values[:, -1] - values[:, 0] if values.shape[1] == 2 else values[:, 0]
    return float(roc_auc_score((labels == labels.max()).numpy(), score.double().cpu().numpy()))


def judge_of(target: Target, rows: Tensor, labels: Tensor | None = None, *, unseen: bool = False) -> Judge:
    """Query the model about the rows that copies are compared on. The ledger of the attacker is not touched."""
    rows = rows[: target.affordable(len(rows))]
    classes = labels is not None and not labels.is_floating_point()
    truth = labels[: len(rows)].long() if labels is not None and classes else None
    quantity = target.labels is not None and target.labels.is_floating_point()
    if not target.grants("value") or (target.output_dim > 1 and not quantity):
        return Judge(rows, target.oracle("label").label(rows), None, truth, unseen)
    view = target.oracle("value")
    values = view.value(rows).to(torch.float64)
    decisions = decide(values, view.threshold)
    if quantity or _is_no_decision(values, decisions):
        return Judge(rows, decisions, values, None, unseen, view.eps)
    return Judge(rows, decisions, None, truth, unseen)


def _is_no_decision(values: Tensor, decisions: Tensor) -> bool:
    """Whether the decision is the sign of one answer that never changes it; a share that underflows to 0 has none."""
    if bool((decisions == decisions[0]).all()):
        return True
    return bool((values >= 0).all()) and bool(((values[:, 0] > 0) == decisions.bool()).all())


def judging_rows(target: Target) -> tuple[Tensor, Tensor | None, bool]:
    """Rows that an exact copy is compared on, their labels, and whether the model never saw them.

    Unseen inputs where there are any, otherwise training inputs, otherwise drawn ones.
    """
    if target.unseen is not None:
        labels = target.unseen_labels
        return target.unseen[:ROWS], None if labels is None else labels[:ROWS], True
    if target.inputs is not None:
        return target.inputs[:ROWS], None if target.labels is None else target.labels[:ROWS], False
    generator = torch.Generator().manual_seed(target.seed + 2)
    rows = min(ROWS, max(1, JUDGING_NUMBERS // target.input_dim))
    return drawn_rows(rows, target.input_dim, target.vocabulary, generator), None, True


def data_mismatch(target: Target) -> str:
    """A warning if the model predicts the data no better than a constant does: the data may be in other units."""
    if target.inputs is None or target.labels is None:
        return ""
    rows = target.inputs[: target.affordable(ROWS)]
    labels = target.labels[: len(rows)].flatten()
    if len(rows) == 0 or bool((labels == labels[0]).all()):
        return ""
    if labels.is_floating_point():
        if target.output_dim != 1 or not target.grants("value"):
            return ""
        error = (target.oracle("value").value(rows).double().flatten() - labels).square().mean()
        wrong = float(error) >= float(labels.double().var(correction=0))
        said = "The model predicts the training data no better than its mean does"
    else:
        decisions = target.oracle("label").label(rows).cpu().numpy()
        _, numbers, counts = np.unique(labels.cpu().numpy(), return_inverse=True, return_counts=True)
        right = max(float((decisions == named).mean()) for named in (labels.cpu().numpy(), numbers))  # 1, 2 for 0, 1
        common = float(counts.max()) / len(labels)
        wrong = right <= common
        said = f"The model is right about {right:.1%} of the training data, a constant answer about {common:.1%}"
    return f"{said}: is this the data as the model takes it, in units and order of columns?" if wrong else ""
