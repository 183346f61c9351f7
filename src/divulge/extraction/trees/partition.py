"""One decision tree from values (Tramèr et al. 2016, "Stealing machine learning models via prediction APIs", 4.2).

Their path finding walks from leaf to leaf: it takes the answer of a leaf for its identity, and finds the box of a leaf
by line searches along every column. Pure leaves of a classifier share their answers, so identities alone do not tell
leaves apart. Here a box is split wherever two rows in it are answered differently: a path between them that exchanges
one column at a time meets a step, and bisection gives its threshold to the last bit. A box that is answered alike, on
rows all over it, on lines along every column and in every cell between thresholds found so far, is a leaf. Of several
steps in a box the one that changes most of its answers comes first: that is the root of a tree, so that the copy is
about as large as the target.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from divulge.core.progress import report
from divulge.extraction.trees.domain import Array
from divulge.extraction.trees.steps import Asker, Step
from divulge.models.step_functions import DecisionTree

ANYWHERE, ON_LINES = 64, 3
"""Rows that test a box in each round: anywhere in it, and along each column."""
ROUNDS = 2
"""Rounds in which a box is answered alike before it counts as a leaf."""
PAIRS = 4
"""Pairs of rows from which steps are found in a box at once."""
CANDIDATES = 16
"""Thresholds that a box may be split at."""
TRIALS = ((4, 4), (12, 1))
"""Rows that each is tried on, and how many of the thresholds stay, in two rounds."""


class TooManyLeaves(Exception):
    """The function has more boxes than were allowed."""


@dataclass
class Box:
    """A box [low, high] with the rows asked in it and the steps found in it; as a node it has children instead."""

    low: Array
    high: Array
    X: Array
    y: Array
    steps: list[Step] = field(default_factory=list)
    clean: int = 0
    """Rounds without a difference."""
    split: Step | None = None
    left: Box | None = None
    right: Box | None = None

    def holds(self, X: Array) -> NDArray[np.bool_]:
        """Which rows [n, d] lie in the box."""
        return np.asarray(((self.low <= X) & (self.high >= X)).all(axis=1))


class Partition:
    """Grows a tree of boxes until every leaf is answered alike."""

    def __init__(self, asker: Asker, first: Array, answers: Array, *, most: int, rng: np.random.Generator) -> None:
        self.asker, self.most, self.rng = asker, most, rng
        d = first.shape[1]
        self.root = Box(np.full(d, -np.inf), np.full(d, np.inf), first, answers)
        self.thresholds: list[dict[float, float]] = [{} for _ in range(d)]  # below -> above, by column
        self.leaves = [self.root]

    def grow(self) -> None:
        """Split and test until nothing is left to test; TooManyLeaves if there are too many."""
        self._settle(self.leaves)
        while open_ := [leaf for leaf in self.leaves if leaf.clean < ROUNDS]:
            asked = [self._tests(leaf) for leaf in open_]
            answers = np.split(self.asker.value(np.concatenate(asked)), np.cumsum([len(part) for part in asked])[:-1])
            for leaf, X, y in zip(open_, asked, answers, strict=True):
                leaf.X, leaf.y, leaf.clean = np.concatenate([leaf.X, X]), np.concatenate([leaf.y, y]), leaf.clean + 1
            self._settle(open_)
            done = sum(leaf.clean >= ROUNDS for leaf in self.leaves)
            report("finding leaves", done, len(self.leaves), rows=self.asker.oracle.ledger.total)

    def learn(self, X: Array, y: Array) -> None:
        """Rows that a copy got wrong: their boxes are split and tested again."""
        wrong = [leaf for leaf in self.leaves if leaf.holds(X).any()]
        for leaf in wrong:
            inside = leaf.holds(X)
            leaf.X, leaf.y = np.concatenate([leaf.X, X[inside]]), np.concatenate([leaf.y, y[inside]])
        self._settle(wrong)

    # -- splitting ----------------------------------------------------------------------------------------------------

    def _settle(self, boxes: list[Box]) -> None:
        """Split these boxes until all leaves under them are answered alike on the rows known in them."""
        while boxes:
            mixed = [box for box in boxes if self.asker.differ(box.y, box.y[:1]).any()]
            if len(self.leaves) + len(mixed) > self.most:  # each of them is at least two leaves
                raise TooManyLeaves
            self._find_steps([box for box in mixed if not box.steps])
            chosen = self._choose(mixed)
            boxes = [child for box, step in zip(mixed, chosen, strict=True) for child in self._divided(box, step)]
            mixed_now = set(map(id, mixed))
            self.leaves = [leaf for leaf in self.leaves if id(leaf) not in mixed_now] + boxes

    def _find_steps(self, boxes: list[Box]) -> None:
        """A few steps in each box, between a row and others that are answered differently."""
        pairs = []
        for box in boxes:
            start = int(self.rng.integers(len(box.X)))
            others = np.flatnonzero(self.asker.differ(box.y, box.y[start : start + 1]))
            if not len(others):  # answers about a tolerance apart: this one lies between the others
                start, others = 0, np.flatnonzero(self.asker.differ(box.y, box.y[:1]))
            pairs += [(box, start, int(other)) for other in self.rng.permutation(others)[:PAIRS]]
        if not pairs:
            return
        known, other = (np.stack([box.X[pair[i]] for box, *pair in pairs]) for i in (0, 1))
        answers = np.stack([box.y[i] for box, i, _ in pairs])
        found = self.asker.steps(known, other, answers, self.rng.permutation(known.shape[1]))
        for (box, *_), (step, below, above) in zip(pairs, found, strict=True):
            box.steps.append(step)
            box.X = np.concatenate([box.X, step.below[None], step.above[None]])
            box.y = np.concatenate([box.y, below[None], above[None]])
            self.thresholds[step.feature][float(step.below[step.feature])] = float(step.above[step.feature])

    def _choose(self, boxes: list[Box]) -> list[Step]:
        """The step of each box that changes the answers of most rows in it: the root of a tree changes nearly all."""
        candidates = [self._candidates(box) for box in boxes]
        for trials, kept in TRIALS:
            shares = self._changed(boxes, candidates, trials)
            for place, (box, steps) in enumerate(zip(boxes, candidates, strict=True)):
                kinds = _kinds(box.y, self.asker.tolerance)
                gains = [float(_gains(box.X[:, s.feature], [s.below[s.feature]], kinds)[0]) for s in steps]
                order = sorted(range(len(steps)), key=lambda i: (shares[place][i], gains[i]), reverse=True)
                candidates[place] = [steps[i] for i in order[:kept]]
        return [steps[0] for steps in candidates]

    def _changed(self, boxes: list[Box], candidates: list[list[Step]], trials: int) -> list[list[float]]:
        """The share of rows of each box whose answer changes across each step. What is asked goes into the box too."""
        rows = [self._both_sides(box, steps, trials) for box, steps in zip(boxes, candidates, strict=True)]
        if not rows:
            return []
        ends = np.cumsum([len(part) for part in rows])[:-1]
        answers = np.split(self.asker.value(np.concatenate(rows)), ends)
        shares = []
        for box, steps, X, y in zip(boxes, candidates, rows, answers, strict=True):
            shares.append([float(self.asker.differ(*one).mean()) for one in y.reshape(len(steps), 2, trials, -1)])
            box.X, box.y = np.concatenate([box.X, X]), np.concatenate([box.y, y])
        return shares

    def _candidates(self, box: Box) -> list[Step]:
        """Steps found in the box, and thresholds known elsewhere that separate its answers well."""
        kinds = _kinds(box.y, self.asker.tolerance)
        low, high = self._bounds(box)
        found = {(step.feature, float(step.below[step.feature])) for step in box.steps}
        elsewhere = []
        for j, pairs in enumerate(self.thresholds):
            inside = [
                (below, above)
                for below, above in pairs.items()
                if low[j] <= below and above <= high[j] and (j, below) not in found
            ]
            gains = _gains(box.X[:, j], [below for below, _ in inside], kinds)
            elsewhere += [(gain, j, *pair) for gain, pair in zip(gains.tolist(), inside, strict=True)]
        best = sorted(elsewhere, reverse=True)[: max(0, CANDIDATES - len(box.steps))]
        more = []
        for _, j, below, above in best:
            step = Step(j, below, box.X[0].copy(), box.X[0].copy())
            step.below[j], step.above[j] = below, above
            more.append(step)
        return [*box.steps, *more]

    def _both_sides(self, box: Box, steps: list[Step], trials: int) -> Array:
        """Rows of the box moved to both sides of each step [steps * 2 * trials, d]."""
        base = self._anywhere(box, trials)
        rows = np.repeat(base[None], 2 * len(steps), axis=0)
        for number, step in enumerate(steps):
            rows[2 * number, :, step.feature] = step.below[step.feature]
            rows[2 * number + 1, :, step.feature] = step.above[step.feature]
        return rows.reshape(-1, base.shape[1])

    def _divided(self, box: Box, step: Step) -> list[Box]:
        """The two halves of a box at a step."""
        j = step.feature
        low, high = box.low.copy(), box.high.copy()
        high[j], low[j] = step.below[j], step.above[j]
        halves = []
        for a, b in ((box.low, high), (low, box.high)):
            half = Box(a, b, box.X[:0], box.y[:0])
            inside = half.holds(box.X)
            half.X, half.y = box.X[inside], box.y[inside]
            half.steps = [one for one in box.steps if half.holds(np.stack([one.below, one.above])).all()]
            halves.append(half)
        box.split, (box.left, box.right) = step, halves
        box.X, box.y, box.steps = box.X[:0], box.y[:1], []
        return halves

    def tree(self) -> DecisionTree:
        """The boxes as a decision tree, without splits between equal leaves."""
        boxes, values = [self.root], [self.root.y[0]]  # parents before their children
        children: list[tuple[int, int] | None] = []
        for place, box in enumerate(boxes):  # it grows on the way
            if box.split is None or box.left is None or box.right is None:
                children.append(None)
                continue
            children.append((len(boxes), len(boxes) + 1))
            for child in (box.left, box.right):  # one without a row is answered as its parent
                boxes.append(child)
                values.append(child.y[0] if len(child.y) else values[place])
        for place, pair in reversed(list(enumerate(children))):
            if pair is None or any(children[child] is not None for child in pair):
                continue
            if not self.asker.differ(values[pair[0]][None], values[pair[1]][None]).any():
                children[place], values[place] = None, values[pair[0]]
        kept = [0]
        for place in kept:
            kept += children[place] or ()
        tree = DecisionTree(len(self.thresholds), len(values[0]), len(kept), single=self.asker.domain.single)
        number = {place: node for node, place in enumerate(kept)}
        for node, place in enumerate(kept):
            step, pair = boxes[place].split, children[place]
            tree.value[node] = torch.from_numpy(values[place])
            if step is not None and pair is not None:
                tree.feature[node], tree.threshold[node] = step.feature, step.threshold
                tree.left[node], tree.right[node] = number[pair[0]], number[pair[1]]
        return tree

    # -- testing ------------------------------------------------------------------------------------------------------

    def beside(self, n: int, rng: np.random.Generator) -> Array:
        """Rows [n, d] of leaves, each as often, moved to a face of their box, inside or just outside."""
        rows = np.zeros((n, len(self.thresholds)))
        for i, number in enumerate(rng.integers(len(self.leaves), size=n)):
            leaf = self.leaves[number]
            low, high = self._bounds(leaf)
            rows[i] = rng.uniform(low, high)
            faces = [(j, low[j]) for j in np.flatnonzero(np.isfinite(leaf.low))]
            faces += [(j, high[j]) for j in np.flatnonzero(np.isfinite(leaf.high))]
            if faces:
                j, inside = faces[rng.integers(len(faces))]
                outside = self.thresholds[j].get(float(leaf.high[j]), inside) if inside == high[j] else inside
                rows[i, j] = outside if rng.random() < 0.5 else inside
        return rows

    def _bounds(self, box: Box) -> tuple[Array, Array]:
        """The corners of a box in the domain."""
        domain = self.asker.domain
        return np.maximum(domain.rounded(box.low), domain.low), np.minimum(domain.rounded(box.high), domain.high)

    def _tests(self, box: Box) -> Array:
        """Rows that test whether a box is answered alike."""
        d, rng = len(box.low), self.rng
        low, high = self._bounds(box)
        known = box.X if len(box.X) else self._anywhere(box, ON_LINES)  # the other half may hold all rows
        lines = np.repeat(known[rng.integers(len(known), size=ON_LINES)], d, axis=0)
        chosen = np.stack([self._in_cells(j, low[j], high[j], ON_LINES) for j in range(d)], axis=1)
        lines[np.arange(len(lines)), np.tile(np.arange(d), ON_LINES)] = chosen.reshape(-1)
        lines = np.clip(self.asker.domain.rounded(lines), low, high)
        return np.concatenate([self._anywhere(box, ANYWHERE), lines])

    def _anywhere(self, box: Box, n: int) -> Array:
        """Rows of the box: some uniform, most in cells between known thresholds, whatever their width."""
        low, high = self._bounds(box)
        uniform = self.rng.uniform(low, high, (n // 3, len(low)))
        cells = np.stack([self._in_cells(j, low[j], high[j], n - n // 3) for j in range(len(low))], axis=1)
        return np.clip(self.asker.domain.rounded(np.concatenate([uniform, cells])), low, high)

    def _in_cells(self, j: int, low: float, high: float, n: int) -> Array:
        """Numbers of a column, as many in each cell between known thresholds, whatever its width."""
        inner = sorted(below for below in self.thresholds[j] if low <= below < high)
        starts = np.array([low, *(self.thresholds[j][below] for below in inner)])
        ends = np.array([*inner, high])
        cell = self.rng.integers(len(starts), size=n)
        share = self.rng.choice([0.0, 1.0, np.nan], size=n, p=[0.15, 0.15, 0.7])  # ends of the cell, or inside
        share = np.where(np.isnan(share), self.rng.random(n), share)
        return np.asarray(starts[cell] + share * (ends - starts)[cell])


def _kinds(y: Array, tolerance: float) -> NDArray[np.int64]:
    """Numbers that stand for equal answers [n]."""
    steps = np.round(y / tolerance / 4) if tolerance > 0 else y
    return np.unique(steps, axis=0, return_inverse=True)[1].reshape(-1)


def _gains(column: Array, thresholds: list[float], kinds: NDArray[np.int64]) -> Array:
    """How much two halves of the rows, up to each threshold and beyond, are purer than the whole: the Gini index."""
    if not thresholds:
        return np.zeros(0)
    order = np.argsort(column, kind="stable")
    counts = np.zeros((len(column) + 1, int(kinds.max()) + 1))
    counts[np.arange(1, len(column) + 1), kinds[order]] = 1
    counts = counts.cumsum(axis=0)
    left = counts[np.searchsorted(column[order], thresholds, side="right")]

    def impurity(part: Array) -> Array:
        total = part.sum(axis=-1)
        return np.asarray(total - (part**2).sum(axis=-1) / np.maximum(total, 1))

    return np.asarray(impurity(counts[-1]) - impurity(left) - impurity(counts[-1] - left))
