"""Functions that are constant on boxes of their inputs: one decision tree, or a sum of tables over a few columns each.

Extraction from the values of trees rebuilds its targets as these. A row goes to the left, or to the lower cell, where
its number is not above the threshold, as in scikit-learn; ``single`` rounds the rows to float32 first, as
scikit-learn and XGBoost do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class DecisionTree(nn.Module):
    """A decision tree on rows [n, d] in float64.

    Parameters
    ----------
    inputs, outputs : int
        Numbers in a row and in an answer.
    nodes : int
        Inner nodes and leaves together.
    single : bool, default False
        Whether rows are rounded to float32 first.

    Examples
    --------
    >>> import torch
    >>> from divulge.models.step_functions import DecisionTree
    >>> tree = DecisionTree(2, 1, 3)
    >>> tree.feature[0], tree.threshold[0], tree.left[0], tree.right[0] = 1, 0.5, 1, 2
    >>> tree.value[1:, 0] = torch.tensor([3.0, 4.0])
    >>> tree(torch.tensor([[9.0, 0.5], [9.0, 0.6]])).tolist()
    [[3.0], [4.0]]
    """

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor

    def __init__(self, inputs: int, outputs: int, nodes: int, *, single: bool = False) -> None:
        super().__init__()
        self.spec = {"architecture": "decision-tree", "inputs": inputs, "outputs": outputs, "nodes": nodes,
                     "single": single}  # fmt: skip
        self.input_shape, self.single = (inputs,), single
        self.register_buffer("feature", torch.full((nodes,), -1, dtype=torch.long))
        self.register_buffer("threshold", torch.zeros(nodes, dtype=torch.float64))
        self.register_buffer("left", torch.zeros(nodes, dtype=torch.long))
        self.register_buffer("right", torch.zeros(nodes, dtype=torch.long))
        self.register_buffer("value", torch.zeros(nodes, outputs, dtype=torch.float64))

    @property
    def leaves(self) -> int:
        """Leaves of the tree."""
        return int((self.feature < 0).sum())

    def leaf(self, X: Tensor) -> Tensor:
        """The number of the leaf that each row reaches [n]."""
        rows = _rows(X, self.single)
        at = torch.zeros(len(rows), dtype=torch.long)
        while True:
            feature = self.feature[at]
            inner = feature >= 0
            if not bool(inner.any()):
                return at
            entry = rows.gather(1, feature.clamp_min(0)[:, None])[:, 0]
            at = torch.where(inner, torch.where(entry <= self.threshold[at], self.left[at], self.right[at]), at)

    def forward(self, X: Tensor) -> Tensor:
        """The values of the leaves [n, k]."""
        return self.value[self.leaf(X)]


class StepTables(nn.Module):
    """A sum of tables, each over the cells of a few columns.

    Parameters
    ----------
    inputs, outputs : int
        Numbers in a row and in an answer.
    thresholds : sequence of int
        How many thresholds each column has.
    sets : sequence of sequence of int
        The columns of each table.
    single : bool, default False
        Whether rows are rounded to float32 first.
    link : {"", "logistic", "softmax"}, default ""
        What turns the sum into the answer.

    Examples
    --------
    >>> import torch
    >>> from divulge.models.step_functions import StepTables
    >>> model = StepTables(2, 1, [1, 0], [[], [0]])
    >>> model.thresholds[0] = 0.5
    >>> model.table_0[:], model.table_1[:, 0] = 1.0, torch.tensor([0.0, 2.0])
    >>> model(torch.tensor([[0.2, 7.0], [0.7, 7.0]])).tolist()
    [[1.0], [3.0]]
    """

    thresholds: Tensor

    def __init__(
        self,
        inputs: int,
        outputs: int,
        thresholds: Sequence[int],
        sets: Sequence[Sequence[int]],
        *,
        single: bool = False,
        link: str = "",
    ) -> None:
        super().__init__()
        self.spec = {"architecture": "step-tables", "inputs": inputs, "outputs": outputs, "single": single,
                     "thresholds": list(thresholds), "sets": [list(one) for one in sets], "link": link}  # fmt: skip
        self.input_shape, self.outputs, self.single, self.link = (inputs,), outputs, single, link
        self.counts, self.sets = list(thresholds), [tuple(one) for one in sets]
        self.register_buffer("thresholds", torch.zeros(sum(thresholds), dtype=torch.float64))
        for number, columns in enumerate(self.sets):
            cells = math.prod(self.counts[j] + 1 for j in columns)
            self.register_buffer(f"table_{number}", torch.zeros(cells, outputs, dtype=torch.float64))

    def cells(self, X: Tensor) -> Tensor:
        """The cell of each number of the rows [n, d]."""
        rows = _rows(X, self.single)
        parts = torch.split(self.thresholds, self.counts)
        found = [torch.searchsorted(part, rows[:, j].contiguous()) for j, part in enumerate(parts)]
        return torch.stack(found, dim=1)

    def forward(self, X: Tensor) -> Tensor:
        """The sum of the tables [n, k], behind the link."""
        cells = self.cells(X)
        total = torch.zeros(len(X), self.outputs, dtype=torch.float64)
        for number, columns in enumerate(self.sets):
            place = torch.zeros(len(X), dtype=torch.long)
            for j in columns:
                place = place * (self.counts[j] + 1) + cells[:, j]
            total += getattr(self, f"table_{number}")[place]
        if self.link == "logistic":
            return torch.sigmoid(total)
        return torch.softmax(total, dim=1) if self.link == "softmax" else total


def _rows(X: Tensor, single: bool) -> Tensor:
    rows = X.reshape(len(X), -1).to(torch.float64)
    return rows.to(torch.float32).to(torch.float64) if single else rows
