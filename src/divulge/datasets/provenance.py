"""Which rows a model was trained on: written beside it by ``divulge train``, and found again from there.

``data.json`` holds the selection (data set, classes, rows), the numbers of the training rows and a digest of their
values, so that the training can be repeated from the same data and a changed file is noticed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from divulge.core import storage
from divulge.core.errors import InvalidInput
from divulge.datasets.alignment import aligned, labels_of_model
from divulge.datasets.catalogue import load, names
from divulge.datasets.dataset import Bounds, Dataset, Rows


@dataclass(frozen=True)
class DataSelection:
    """A data set and what was made of it: two classes, a subset, the training mean subtracted."""

    data: str
    target: str | None = None
    test: float = 0.2
    split_seed: int = 0
    binary: bool = False
    positive: tuple[str, ...] = ()
    rows: int | None = None
    per_class: bool = False
    subset_seed: int = 0
    centred: bool = False
    bounds: Bounds | None = None
    """The declared range of every column, or of columns by name; None scales a table by its own extremes."""

    def dataset(self, data_dir: str | Path | None = None) -> Dataset:
        """The set with its classes and training rows selected (not yet centred)."""
        dataset = load(self.data, data_dir, target=self.target, test=self.test, seed=self.split_seed)
        if self.bounds is not None:
            dataset = dataset.within(self.bounds)
        if self.binary or self.positive:
            dataset = dataset.binary(self.positive or None)
        if self.rows is not None:
            dataset = dataset.subset(self.rows, seed=self.subset_seed, per_class=self.per_class)
        return dataset

    def parts(self, dataset: Dataset) -> tuple[Rows, Rows]:
        """The training and test rows as the model takes them."""
        train, test = dataset.train, dataset.test
        if not self.centred:
            return train, test
        mean = train.X.mean(dim=0)
        return Rows(train.X - mean, train.y), Rows(test.X - mean, test.y)

    def save(self, folder: str | Path, dataset: Dataset) -> Path:
        """Write ``data.json``: the selection, the numbers of the training rows, and a digest of their values."""
        train, _ = self.parts(dataset)
        numbers = torch.arange(len(train.y)) if dataset.rows is None else dataset.rows
        scaling = "declared bounds" if self.bounds is not None else dataset.scaling
        record = {
            **vars(self), "data": _source(self.data), "scaling": scaling, "row_numbers": numbers.tolist(),
            "sha256": digest(train),
        }  # fmt: skip
        return storage.write_json(Path(folder) / "data.json", record, indent=None)


@dataclass(frozen=True)
class ModelData:
    """The data of one model: the rows it was trained on, in its own units, and rows that it never saw.

    ``unseen_labels`` is None where the unseen rows have classes that the training rows do not have.
    ``mean`` is what was subtracted from the rows before training. ``classes`` names the classes of a file of the user's
    own, whose labels are numbered by the classes that occur in it.
    """

    train: Rows
    unseen: Tensor | None
    unseen_labels: Tensor | None
    shape: tuple[int, ...]
    columns: tuple[str, ...] = ()
    mean: Tensor | None = None
    classes: tuple[str, ...] = ()

    def numbered_for(self, outputs: int, named: tuple[str, ...] = ()) -> ModelData:
        """The same with labels by the numbers of a model's outputs; ``named`` are its classes, where it names them."""
        numbers = labels_of_model(self.classes, outputs, named)
        if numbers is None:
            return self
        unseen = None if self.unseen_labels is None else numbers[self.unseen_labels]
        return replace(self, train=Rows(self.train.X, numbers[self.train.y]), unseen_labels=unseen)


def training_rows(folder: str | Path, data_dir: str | Path | None = None) -> Rows:
    """The rows that a model of ``divulge train`` was trained on, as the model takes them.

    Parameters
    ----------
    folder : str or Path
        The model's folder, with its ``data.json``.
    data_dir : str, Path or None, default None
        Where named image sets lie, as for ``load``.

    Returns
    -------
    Rows

    Raises
    ------
    InvalidInput
        If there is no ``data.json``, or the data has changed since.

    Examples
    --------
    >>> import tempfile
    >>> from divulge import datasets
    >>> from divulge.datasets.provenance import DataSelection
    >>> selection = DataSelection("iris", rows=20)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = selection.save(folder, selection.dataset())
    ...     datasets.training_rows(folder).X.shape
    torch.Size([20, 4])
    """
    selection, expected = read_selection(folder)
    train, _ = selection.parts(selection.dataset(data_dir))
    if digest(train) != expected:
        raise InvalidInput(f"{selection.data} is no longer what the model in {folder} was trained on.")
    return train


def data_of_model(
    model: str | Path, data: str | None = None, data_dir: str | Path | None = None, *, target: str | None = None,
    unseen: str | None = None,
) -> ModelData | None:  # fmt: skip
    """The data of ``model`` as the user names it, or as ``divulge train`` recorded it beside the model.

    A table of the user's own was not scaled or split by divulge: the model takes its values as they are in the file,
    and has seen all its rows. ``unseen`` names other rows. Named sets have a test part, and are in [0, 1].
    """
    folder = _folder_with_record(Path(model), data)
    if folder is not None:
        selection, _ = read_selection(folder)
        dataset = selection.dataset(data_dir)
        train, test = training_rows(folder, data_dir), selection.parts(dataset)[1]
        mean = dataset.train.X.mean(dim=0) if selection.centred else None
    elif data is not None:
        dataset = _in_own_units(data, data_dir, target)
        (train, test), mean = (dataset.train, dataset.test), None
    else:
        return None
    own = dataset.classes if folder is None else ()
    found = ModelData(train, None, None, dataset.shape, dataset.columns, mean, own)
    if unseen is not None:
        X, y = _control(unseen, data_dir, target, dataset)
        return replace(found, unseen=X if mean is None else X - mean, unseen_labels=y)
    return replace(found, unseen=test.X, unseen_labels=test.y) if len(test.y) else found


def _control(
    unseen: str, data_dir: str | Path | None, target: str | None, like: Dataset
) -> tuple[Tensor, Tensor | None]:
    """Unseen rows in the columns, units and classes of the training data."""
    source = _in_own_units(unseen, data_dir, target)
    X, y = aligned(source.test if unseen in names() else source.train, source, like)
    pictures = like.stored_train.X.dtype == torch.uint8
    return X if pictures or unseen in names() else like.rescaled(Rows(X, source.train.y)).X, y


def _folder_with_record(model: Path, data: str | None) -> Path | None:
    """The folder whose ``data.json`` records the data: ``data`` itself, or the model's if it names the same data."""
    if data is not None and (Path(data) / "data.json").is_file():
        return Path(data)
    if not (model / "data.json").is_file():
        return None
    return model if data is None or read_selection(model)[0].data == _source(data) else None


def _in_own_units(data: str, data_dir: str | Path | None, target: str | None) -> Dataset:
    dataset = load(data, data_dir, target=target, test=0.0)
    return dataset if data in names() else dataset.unscaled()


def _source(data: str) -> str:
    return data if data in names() else str(Path(data).expanduser().absolute())


def read_selection(folder: str | Path) -> tuple[DataSelection, str]:
    """The selection in ``data.json``, and the digest of its training rows."""
    path = Path(folder) / "data.json"
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        expected = str(record.pop("sha256"))
        record.pop("row_numbers")
        record.pop("scaling", None)
        return DataSelection(**{**record, "positive": tuple(record["positive"])}), expected
    except FileNotFoundError as error:
        raise InvalidInput(f"{path} is not there; divulge train writes it beside the model.") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(f"{path} does not say which rows were used: {error}.") from error


def digest(rows: Rows) -> str:
    """SHA-256 of the values and targets."""
    return storage.digest(rows.X, rows.y)
