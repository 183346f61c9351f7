"""A student of one linear layer, solved and not fitted: the Jacobian is its weight matrix (Milli 2019, section 5.1).

One gradient query is enough; the others verify it. If they contradict it, the target is not linear.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from divulge.extraction.students.answers import Answers


@dataclass(frozen=True)
class Solved:
    """The layer in float64, its worst error on the queries that did not make it, and how many those are."""

    model: nn.Module
    worst: float
    points: int


def is_linear(student: nn.Module) -> bool:
    """Whether the student is one linear layer with a bias, behind nothing that computes."""
    leaves = [layer for layer in student.modules() if not any(layer.children())]
    linear = [layer for layer in leaves if isinstance(layer, nn.Linear)]
    idle = all(isinstance(layer, nn.Linear | nn.Flatten | nn.Identity) for layer in leaves)
    return idle and len(linear) == 1 and linear[0].bias is not None


def solve(student: nn.Module, answers: Answers, eps: float) -> Solved | None:
    """The layer that the first query with every class shown tells, or None if there is none or others contradict it."""
    complete = answers.shown.all(dim=1)
    if answers.known is not None:
        complete = complete & answers.known.all(dim=1)
    whole = complete.nonzero()[:, 0]
    if answers.gradients is None or answers.absolute or not len(whole):
        return None
    first = int(whole[0])
    weight = answers.gradients[first]
    bias = answers.logits[first] - weight @ answers.X[first]
    model = copy.deepcopy(student).to(torch.float64)
    layer = next(layer for layer in model.modules() if isinstance(layer, nn.Linear))
    with torch.no_grad():
        layer.weight.copy_(weight)
        assert layer.bias is not None
        layer.bias.copy_(bias)
        said = answers.X @ weight.T + bias
    off = (answers.centred(said) - answers.logits).abs()
    size = float(answers.logits.abs().max()) + float((answers.X.abs() @ weight.abs().T).max())
    if float(off.max()) > max(1e-9, 1e3 * eps) * max(size, 1e-300):
        return None
    return Solved(model, float(off.max()), len(answers) - 1)
