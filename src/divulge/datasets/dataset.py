"""What a loaded data set is, and the ways to cut it: subsets, splits, and two-class versions of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from divulge.errors import InvalidInput

POSITIVE = {  # the classes that the papers call 1 when they make two classes of ten
    "digits": ("1", "3", "5", "7", "9"),
    "mnist": ("1", "3", "5", "7", "9"),
    "cifar10": ("bird", "cat", "deer", "dog", "frog", "horse"),
}


class Rows(NamedTuple):
    """Rows X [n, d] and their targets y: class numbers (int64), or float32 where the target is a quantity."""

    X: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in a training and a test part.

    It keeps its values as they were stored (pictures as bytes), with the range [low, high] that becomes [0, 1];
    ``train`` and ``test`` convert on first use. ``shape`` is the shape of one row, (channels, height, width) for
    pictures. ``classes`` is empty where the target is a quantity. ``columns`` names a table's columns.
    ``rows`` says which rows of the set as it came are in the training part.
    """

    name: str
    stored_train: Rows
    stored_test: Rows
    shape: tuple[int, ...]
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    low: Tensor | float = 0.0
    high: Tensor | float = 1.0
    rows: Tensor | None = None
    scaled: bool = True
    """False of a table whose values stay as they were stored."""

    @cached_property
    def train(self) -> Rows:
        """The training rows, scaled to [0, 1]."""
        return self._scaled(self.stored_train)

    @cached_property
    def test(self) -> Rows:
        """The test rows, scaled likewise."""
        return self._scaled(self.stored_test)

    @property
    def everything(self) -> Rows:
        """Training and test rows together, training first: for whoever cuts the set in their own way."""
        parts = (self.stored_train, self.stored_test)
        return self._scaled(Rows(torch.cat([part.X for part in parts]), torch.cat([part.y for part in parts])))

    def restore(self, X: Tensor) -> Tensor:
        """Values in [0, 1] back in the units of the source."""
        low, high = (torch.as_tensor(bound, dtype=X.dtype, device=X.device) for bound in (self.low, self.high))
        return X * (high - low) + low

    def unscaled(self) -> Dataset:
        """The same set with a table's values as they were stored, in float64; bytes of pictures still become [0, 1]."""
        return replace(self, low=0.0, high=1.0, scaled=False) if self.stored_train.X.dtype != torch.uint8 else self

    def subset(self, n: int, *, seed: int = 0, per_class: bool = False) -> Dataset:
        """The same set with n training rows, or n of each class: a random choice, kept in the rows' own order."""
        index = choose(self.stored_train.y, n, seed=seed, per_class=per_class)
        rows = index if self.rows is None else self.rows[index]
        return replace(self, stored_train=_take(self.stored_train, index), rows=rows)

    def binary(self, positive: Sequence[str | int] | None = None) -> Dataset:
        """Two classes: 1 for the classes named in ``positive``, 0 for the others.

        By default odd digits are 1 (even 0), and of CIFAR-10 the animals (vehicles 0).
        """
        if not self.classes:
            raise InvalidInput(f"The target of {self.name} is a quantity, not a class; it has no two-class version.")
        if positive is None:
            if self.name not in POSITIVE and len(self.classes) != 2:
                raise InvalidInput(
                    f"Say which classes of {self.name} are positive; it has {', '.join(map(str, self.classes))}."
                )
            positive = POSITIVE.get(self.name, self.classes[1:])
        chosen = [self._class_number(name) for name in positive]
        if not 0 < len(set(chosen)) < len(self.classes):
            raise InvalidInput("Some classes must be positive and some negative.")
        lookup = torch.zeros(len(self.classes), dtype=torch.int64)
        lookup[chosen] = 1
        sides = [[name for number, name in enumerate(self.classes) if lookup[number] == side] for side in (0, 1)]
        return replace(
            self,
            stored_train=Rows(self.stored_train.X, lookup[self.stored_train.y]),
            stored_test=Rows(self.stored_test.X, lookup[self.stored_test.y]),
            classes=("/".join(sides[0]), "/".join(sides[1])),
        )

    def _class_number(self, name: str | int) -> int:
        if isinstance(name, str) and name in self.classes:
            return self.classes.index(name)
        if str(name).isdecimal() and int(name) < len(self.classes):
            return int(name)
        raise InvalidInput(f"{self.name} has no class {name!r}; it has {', '.join(self.classes)}.")

    def _scaled(self, stored: Rows) -> Rows:
        if stored.X.dtype == torch.uint8:
            return Rows(stored.X.to(torch.float32).div_(float(self.high)), stored.y)
        if not self.scaled:
            return Rows(stored.X.to(torch.float64), stored.y)
        spread = torch.as_tensor(self.high) - torch.as_tensor(self.low)
        spread = torch.where(spread == 0, torch.ones_like(spread), spread)
        return Rows(((stored.X - self.low) / spread).to(torch.float32), stored.y)

    def __repr__(self) -> str:
        kind = f"{len(self.classes)} classes" if self.classes else "a quantity"
        sizes = f"{len(self.stored_train.y)} training and {len(self.stored_test.y)} test rows"
        return f"Dataset({self.name!r}, {sizes} of shape {self.shape}, {kind})"


def binary(dataset: Dataset, positive: Sequence[str | int] | None = None) -> Dataset:
    """Two classes out of many: see ``Dataset.binary``."""
    return dataset.binary(positive)


def choose(y: Tensor, n: int, *, seed: int = 0, per_class: bool = False) -> Tensor:
    """The numbers of n random rows (of n rows of each class, with ``per_class``), ascending."""
    if n < 1:
        raise InvalidInput(f"A subset has at least one row; got {n}.")
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    if not per_class:
        if n > len(y):
            raise InvalidInput(f"A subset of {n} rows was asked for, but there are {len(y)}.")
        return order[:n].sort().values
    if y.is_floating_point():
        raise InvalidInput("The target is a quantity, so there are no classes to choose rows from.")
    chosen = []
    for label in sorted(set(y.tolist())):
        members = order[y[order] == label]
        if len(members) < n:
            raise InvalidInput(f"{n} rows of each class were asked for, but class {label} has {len(members)}.")
        chosen.append(members[:n])
    return torch.cat(chosen).sort().values


def split(rows: Rows | tuple[Tensor, Tensor], *sizes: int, seed: int = 0) -> tuple[Rows, ...]:
    """Disjoint random parts of the given sizes, in shuffled order: fixed points, shadow points and targets, say."""
    X, y = rows
    if not sizes or min(sizes) < 1 or sum(sizes) > len(X):
        raise InvalidInput(f"Parts of sizes {list(sizes)} cannot be cut from {len(X)} rows.")
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
    parts = torch.split(order[: sum(sizes)], list(sizes))
    return tuple(Rows(X[part], y[part]) for part in parts)


def _take(rows: Rows, index: Tensor) -> Rows:
    return Rows(rows.X[index], rows.y[index])
