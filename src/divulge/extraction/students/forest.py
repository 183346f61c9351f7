"""A forest as the student: what learns a model of trees from few answers, since it has steps where its target has."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from divulge.core.errors import InvalidInput
from divulge.extraction.result import Extraction
from divulge.extraction.students.answers import ask
from divulge.oracles.base import Oracle
from divulge.oracles.outputs import Outputs, outputs_shown

NAME = "trees"
TREES = 200
"""Trees of a student. More change little: scikit-learn's default is 100."""


class Forest(nn.Module):
    """A fitted forest as a torch module: rows [n, d] to the values [n, k] that it predicts.

    Parameters
    ----------
    trees : fitted estimator
        A regressor of scikit-learn.
    width, outputs : int
        Numbers in a row and in an answer.

    Examples
    --------
    >>> import torch
    >>> from sklearn.ensemble import ExtraTreesRegressor
    >>> from divulge.extraction.students.forest import Forest
    >>> trees = ExtraTreesRegressor(5, random_state=0).fit([[0.0], [1.0]], [2.0, 4.0])
    >>> Forest(trees, 1, 1)(torch.tensor([[0.0]])).tolist()
    [[2.0]]
    """

    def __init__(self, trees: Any, width: int, outputs: int) -> None:
        super().__init__()
        self.trees, self.input_shape, self.outputs = trees, (width,), outputs

    def forward(self, X: Tensor) -> Tensor:
        """The predictions of the forest."""
        answers = self.trees.predict(X.detach().reshape(len(X), -1).cpu().double().numpy())
        return torch.from_numpy(np.asarray(answers)).reshape(len(X), self.outputs).to(X.dtype)


def learn(oracle: Oracle, rows: Tensor, *, outputs: Outputs | None, seed: int) -> Extraction:
    """A forest fitted to the values of these rows; a sixth of them is held out to say how far it misses."""
    from sklearn.ensemble import ExtraTreesRegressor

    began, before = time.perf_counter(), oracle.ledger.snapshot()
    values, _, stopped = ask(oracle, rows, gradients=False)
    answered = values.double().cpu().numpy()
    X = rows[: len(answered)].double().cpu().numpy()
    if len(X) < 2:
        raise stopped or InvalidInput("A forest is fitted to at least two answers; ask more.")
    held = max(1, len(X) // 6)
    tried = ExtraTreesRegressor(TREES, random_state=seed).fit(X[held:], answered[held:])
    off = np.abs(np.asarray(tried.predict(X[:held])).reshape(held, -1) - answered[:held])
    trees = ExtraTreesRegressor(TREES, random_state=seed).fit(X, answered)
    copy = Extraction(
        model=Forest(trees, X.shape[1], answered.shape[1]).eval(), width=0, exact=False, worst_error=float(off.max()),
        scale=float(answered.std()), ledger=oracle.ledger.snapshot() - before, seed=seed,
        seconds=time.perf_counter() - began, method="training (trees)", verified_points=held,
        reason="a forest repeats the answers that it saw and averages between them",
        facts={"student": NAME, "match": "values", "target_output": outputs or outputs_shown(values, oracle.threshold)},
    )  # fmt: skip
    if stopped is not None:
        stopped.partial = copy
        raise stopped
    return copy
