"""Rows of a file as the training data or the model has them: the same columns in the same order, classes alike.

Each file numbers the classes that it has, and makes a column of each value that it has of a text column. A file with
fewer of them numbers otherwise: compared as they are, two such files would differ for no other reason, and a model
would be judged by the labels of other classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from divulge.core.errors import InvalidInput
from divulge.datasets.dataset import Dataset, Rows


def aligned(rows: Rows, source: Dataset, like: Dataset) -> tuple[Tensor, Tensor | None]:
    """The rows of ``source`` in the columns and classes of ``like``; no labels where it does not have those classes."""
    return _columns(rows.X, source, like), _labels(rows.y, source.classes, like.classes)


def _columns(X: Tensor, source: Dataset, like: Dataset) -> Tensor:
    """Columns by name. A value of a text column that one of the files does not have is absent in all its rows."""
    if source.columns == like.columns or not source.columns or not like.columns:
        return X
    here, there = ({_kind(column) for column in one.columns} for one in (source, like))
    if here != there:
        name, text = min(there - here or here - there)
        column = f"column {name!r}{' of text' if text else ''}"
        said = f"has no {column}" if there - here else f"has a {column} of its own"
        raise InvalidInput(f"{source.name} {said}; it takes the columns of {like.name}: {', '.join(like.columns)}.")
    places = {column: place for place, column in enumerate(source.columns)}
    absent = torch.zeros(len(X), dtype=X.dtype)
    return torch.stack([X[:, places[column]] if column in places else absent for column in like.columns], dim=1)


def _kind(column: str) -> tuple[str, bool]:
    """The column of the file, and whether it holds text: each value of that has a column "name=value"."""
    name, text, _ = column.partition("=")
    return name, bool(text)


def _labels(y: Tensor, names: tuple[str, ...], wanted: tuple[str, ...]) -> Tensor | None:
    """Labels by the numbers of the wanted classes, or as quantities where those have no names."""
    if names == wanted:
        return y
    if not wanted:  # few whole numbers of a quantity look like classes
        numeric = all(_is_number(name) for name in names)
        return torch.tensor([float(name) for name in names], dtype=torch.float32)[y] if numeric else None
    told = [names[number] for number in y.tolist()] if names else [f"{value:g}" for value in y.tolist()]
    numbers = {name: number for number, name in enumerate(wanted)}
    return torch.tensor([numbers[name] for name in told]) if {*told} <= numbers.keys() else None


def labels_of_model(names: tuple[str, ...], outputs: int, named: tuple[str, ...] = ()) -> Tensor | None:
    """For each class of a file the label that the model gives it, or None where the file's own numbering has to do.

    Parameters
    ----------
    names : tuple of str
        The classes of the file, in the order of their numbers there.
    outputs : int
        How many outputs the model has; one output decides between classes 0 and 1.
    named : tuple of str, default ()
        The classes of the model in the order of its outputs, where it names them.

    Returns
    -------
    Tensor [classes] or None
        Names that the model knows get its numbers. Otherwise whole numbers that can be numbers of outputs are: a file
        without class 0 still means output 3 by a 3. More than two numbers for one output are quantities.
    """
    if named:
        return torch.tensor([named.index(name) for name in names]) if names and {*names} <= {*named} else None
    if outputs == 1 and len(names) > 2 and all(_is_number(name) for name in names):
        return torch.tensor([float(name) for name in names], dtype=torch.float32)
    if not names or not all(name.isdecimal() and int(name) < max(2, outputs) for name in names):
        return None
    return torch.tensor([int(name) for name in names])


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
