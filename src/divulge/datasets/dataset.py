"""A loaded data set, and the ways to select from it: subsets, splits, and two-class versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from divulge.core.errors import InvalidInput

POSITIVE = {  # the classes that the papers call 1 when they make two classes of ten
    "digits": ("1", "3", "5", "7", "9"),
    "mnist": ("1", "3", "5", "7", "9"),
    "cifar10": ("bird", "cat", "deer", "dog", "frog", "horse"),
}


class Rows(NamedTuple):
    """Inputs and their targets, unpackable as ``X, y``.

    Attributes
    ----------
    X : Tensor, [n, d]
        The inputs.
    y : Tensor, [n]
        Class numbers (int64), or float32 where the target is a quantity.

    Examples
    --------
    >>> from divulge import datasets
    >>> X, y = datasets.load("iris").test
    >>> y.dtype
    torch.int64
    """

    X: Tensor
    y: Tensor


Bounds = tuple[float, float] | Mapping[str, tuple[float, float]]
"""(low, high) for every column, or for columns by name."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in a training and a test part.

    Values are kept as they were stored (pictures as bytes). ``train`` and ``test`` scale them to [0, 1] on first use.

    Parameters
    ----------
    name : str
        The set's name or the file's.
    stored_train, stored_test : Rows
        The two parts as they were stored.
    shape : tuple of int
        The shape of one input; (channels, height, width) for pictures.
    classes : tuple of str, default ()
        The names of the classes; empty where the target is a quantity.
    columns : tuple of str, default ()
        The names of a table's columns.
    low, high : Tensor or float, default 0.0 and 1.0
        The range that becomes [0, 1], for all values or column by column.
    rows : Tensor or None, default None
        Which rows of the source are in the training part.
    scaled : bool, default True
        False for a table whose values stay as they were stored.

    Examples
    --------
    >>> from divulge import datasets
    >>> data = datasets.load("digits")
    >>> data.shape, data.classes[:3]
    ((1, 8, 8), ('0', '1', '2'))
    >>> data.binary().subset(50, per_class=True, seed=0)
    Dataset('digits', 100 training and 359 test rows of shape (1, 8, 8), 2 classes)
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

    @cached_property
    def train(self) -> Rows:
        """The training rows, scaled to [0, 1]."""
        return self.rescaled(self.stored_train)

    @cached_property
    def test(self) -> Rows:
        """The test rows, scaled in the same way."""
        return self.rescaled(self.stored_test)

    @property
    def everything(self) -> Rows:
        """Training and test rows together, training first, for a split of the user's own."""
        parts = (self.stored_train, self.stored_test)
        return self.rescaled(Rows(torch.cat([part.X for part in parts]), torch.cat([part.y for part in parts])))

    def restore(self, X: Tensor) -> Tensor:
        """Values in [0, 1] back in the units of the source.

        Parameters
        ----------
        X : Tensor, [n, d]
            Scaled values.

        Returns
        -------
        Tensor, [n, d]
        """
        low, high = (torch.as_tensor(bound, dtype=X.dtype, device=X.device) for bound in (self.low, self.high))
        return X * (high - low) + low

    def unscaled(self) -> Dataset:
        """The same set with a table's values as they were stored, in float64; bytes of pictures still become [0, 1]."""
        return replace(self, low=0.0, high=1.0, scaled=False) if self.stored_train.X.dtype != torch.uint8 else self

    @property
    def scaling(self) -> str:
        """How values become [0, 1]: by a "fixed" range, or by the data's own "extremes"."""
        fixed = self.stored_train.X.dtype == torch.uint8 or not self.scaled
        return "fixed" if fixed or not isinstance(self.low, Tensor) else "extremes"

    def within(self, bounds: Bounds) -> Dataset:
        """The same table scaled by declared bounds instead of its own extremes. Values outside are clipped to them.

        Parameters
        ----------
        bounds : (float, float) or mapping of str to (float, float)
            (low, high) for every column, or for columns by name. A column that the mapping leaves out and that stands
            for one value of a text column ("colour=red") is within (0, 1).

        Returns
        -------
        Dataset

        Raises
        ------
        InvalidInput
            If the set holds pictures as bytes, or the bounds leave out a column or are not (low, high).
        """
        if self.stored_train.X.dtype == torch.uint8:
            raise InvalidInput(f"{self.name} holds pictures as bytes, whose range is fixed; leave the bounds out.")
        pairs = [_bounds_of(bounds, column) for column in self.columns or range(self.stored_train.X.shape[1])]
        low, high = torch.tensor(pairs, dtype=torch.float64).T
        if not bool((low < high).all()):
            raise InvalidInput("Bounds are (low, high) with low below high, for every column.")
        parts = (Rows(rows.X.double().clamp(low, high), rows.y) for rows in (self.stored_train, self.stored_test))
        return replace(self, stored_train=next(parts), stored_test=next(parts), low=low, high=high)

    def subset(self, n: int, *, seed: int = 0, per_class: bool = False) -> Dataset:
        """The same set with fewer training rows, drawn at random and kept in their own order.

        Parameters
        ----------
        n : int
            How many rows; of each class if ``per_class``.
        seed : int, default 0
            Fixes the draw.
        per_class : bool, default False
            Whether ``n`` counts the rows of each class.

        Returns
        -------
        Dataset

        Raises
        ------
        InvalidInput
            If there are not so many rows.
        """
        index = choose(self.stored_train.y, n, seed=seed, per_class=per_class)
        rows = index if self.rows is None else self.rows[index]
        return replace(self, stored_train=_take(self.stored_train, index), rows=rows)

    def binary(self, positive: Sequence[str | int] | None = None) -> Dataset:
        """The same set with two classes: 1 for the classes in ``positive``, 0 for the others.

        Parameters
        ----------
        positive : sequence of str or int, or None, default None
            Names or numbers of classes. By default the odd digits, and of CIFAR-10 the animals.

        Returns
        -------
        Dataset

        Raises
        ------
        InvalidInput
            If the target is a quantity, or a class does not exist, or all or none are positive.
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

    def rescaled(self, stored: Rows) -> Rows:
        """Rows as they were stored, in the units of this set."""
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
    """Two classes out of many, as ``Dataset.binary``.

    Parameters
    ----------
    dataset : Dataset
        Any set with classes.
    positive : sequence of str or int, or None, default None
        As for ``Dataset.binary``.

    Returns
    -------
    Dataset

    Examples
    --------
    >>> from divulge import datasets
    >>> datasets.binary(datasets.load("iris"), ["setosa"]).classes
    ('versicolor/virginica', 'setosa')
    """
    return dataset.binary(positive)


def choose(y: Tensor, n: int, *, seed: int = 0, per_class: bool = False) -> Tensor:
    """The numbers of random rows, ascending.

    Parameters
    ----------
    y : Tensor, [n]
        The targets.
    n : int
        How many rows; of each class if ``per_class``.
    seed : int, default 0
        Fixes the draw.
    per_class : bool, default False
        Whether ``n`` counts the rows of each class.

    Returns
    -------
    Tensor of int64

    Raises
    ------
    InvalidInput
        If there are not so many rows, or the target is a quantity and ``per_class`` was asked.

    Examples
    --------
    >>> import torch
    >>> from divulge import datasets
    >>> len(datasets.choose(torch.tensor([0, 0, 1, 1, 1]), 2, per_class=True))
    4
    """
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
    """Disjoint random parts of the given sizes, in shuffled order.

    Parameters
    ----------
    rows : Rows or (Tensor, Tensor)
        The rows to split.
    *sizes : int
        The size of each part.
    seed : int, default 0
        Fixes the shuffle.

    Returns
    -------
    tuple of Rows

    Raises
    ------
    InvalidInput
        If the sizes do not fit into the rows.

    Examples
    --------
    >>> from divulge import datasets
    >>> fixed, shadow = datasets.split(datasets.load("iris").everything, 100, 50, seed=0)
    >>> len(fixed.X), len(shadow.X)
    (100, 50)
    """
    X, y = rows
    if not sizes or min(sizes) < 1 or sum(sizes) > len(X):
        raise InvalidInput(f"Parts of sizes {list(sizes)} cannot be cut from {len(X)} rows.")
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
    parts = torch.split(order[: sum(sizes)], list(sizes))
    return tuple(Rows(X[part], y[part]) for part in parts)


def _take(rows: Rows, index: Tensor) -> Rows:
    return Rows(rows.X[index], rows.y[index])


def _bounds_of(bounds: Bounds, column: str | int) -> tuple[float, float]:
    try:
        if not isinstance(bounds, Mapping):
            low, high = bounds
        elif column in bounds:
            low, high = bounds[str(column)]
        elif "=" in str(column):
            low, high = 0.0, 1.0
        else:
            raise InvalidInput(f"The bounds leave out the column {column!r}; declare (low, high) for it.")
        return float(low), float(high)
    except InvalidInput:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"Bounds are (low, high), for every column or by column name; got {bounds!r}.") from error
