"""Which rows a model was trained on, written beside it, so that its training can be repeated from the same data."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from divulge.datasets.catalogue import load, names
from divulge.datasets.dataset import Dataset, Rows
from divulge.errors import InvalidInput


@dataclass(frozen=True)
class Choice:
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

    def dataset(self, data_dir: str | Path | None = None) -> Dataset:
        """The set with its classes and training rows chosen (not yet centred)."""
        dataset = load(self.data, data_dir, target=self.target, test=self.test, seed=self.split_seed)
        if self.binary or self.positive:
            dataset = dataset.binary(self.positive or None)
        if self.rows is not None:
            dataset = dataset.subset(self.rows, seed=self.subset_seed, per_class=self.per_class)
        return dataset

    def parts(self, dataset: Dataset) -> tuple[Rows, Rows]:
        """The training and test rows as the model sees them."""
        train, test = dataset.train, dataset.test
        if not self.centred:
            return train, test
        mean = train.X.mean(dim=0)
        return Rows(train.X - mean, train.y), Rows(test.X - mean, test.y)

    def save(self, folder: str | Path, dataset: Dataset) -> Path:
        """Write ``data.json``: the choice, the numbers of the training rows, and a digest of what they held."""
        train, _ = self.parts(dataset)
        numbers = torch.arange(len(train.y)) if dataset.rows is None else dataset.rows
        record = {**_plain(self), "data": _source(self.data), "row_numbers": numbers.tolist(), "sha256": digest(train)}
        path = Path(folder) / "data.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record) + "\n")
        return path


def recorded(folder: str | Path, data_dir: str | Path | None = None) -> Rows:
    """The rows that the model in ``folder`` was trained on, as it saw them, from the ``data.json`` beside it."""
    choice, expected = read(folder)
    train, _ = choice.parts(choice.dataset(data_dir))
    if digest(train) != expected:
        raise InvalidInput(f"{choice.data} is no longer what the model in {folder} was trained on.")
    return train


@dataclass(frozen=True)
class Known:
    """What is known of a model's data: the rows it was trained on as it takes them, and rows that it never saw."""

    train: Rows
    unseen: Tensor | None
    unseen_labels: Tensor | None
    """Of a test part; classes of another file may be numbered otherwise."""
    shape: tuple[int, ...]
    columns: tuple[str, ...] = ()
    mean: Tensor | None = None
    """What was subtracted from the rows before training."""


def known(
    model: str | Path, data: str | None = None, data_dir: str | Path | None = None, *, target: str | None = None,
    unseen: str | None = None,
) -> Known | None:  # fmt: skip
    """The data of ``model`` as the user names it, or as ``divulge train`` recorded it beside the model.

    A table of the user's own was not scaled or cut by divulge: the model takes its values as they are in the file, and
    has seen all its rows. ``unseen`` names others. Named sets have a test part, and are in [0, 1].
    """
    folder = _recorded_in(Path(model), data)
    if folder is not None:
        choice, _ = read(folder)
        dataset = choice.dataset(data_dir)
        train, test = recorded(folder, data_dir), choice.parts(dataset)[1]
        mean = dataset.train.X.mean(dim=0) if choice.centred else None
    elif data is not None:
        dataset = _own_units(data, data_dir, target)
        (train, test), mean = (dataset.train, dataset.test), None
    else:
        return None
    kept = Known(train, None, None, dataset.shape, dataset.columns, mean)
    if unseen is not None:
        control = _own_units(unseen, data_dir, target)
        return replace(kept, unseen=(control.test if unseen in names() else control.train).X)
    return replace(kept, unseen=test.X, unseen_labels=test.y) if len(test.y) else kept


def _recorded_in(model: Path, data: str | None) -> Path | None:
    """The folder whose ``data.json`` says what the data is; the model's own also if ``data`` is what it speaks of."""
    if data is not None and (Path(data) / "data.json").is_file():
        return Path(data)
    if not (model / "data.json").is_file():
        return None
    return model if data is None or read(model)[0].data == _source(data) else None


def _own_units(data: str, data_dir: str | Path | None, target: str | None) -> Dataset:
    dataset = load(data, data_dir, target=target, test=0.0)
    return dataset if data in names() else dataset.unscaled()


def _source(data: str) -> str:
    return data if data in names() else str(Path(data).expanduser().absolute())


def read(folder: str | Path) -> tuple[Choice, str]:
    """The choice in ``data.json``, and the digest of the training rows it led to."""
    path = Path(folder) / "data.json"
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        expected = str(record.pop("sha256"))
        record.pop("row_numbers")
        return Choice(**{**record, "positive": tuple(record["positive"])}), expected
    except FileNotFoundError as error:
        raise InvalidInput(f"{path} is not there; divulge train writes it beside the model.") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(f"{path} does not say which rows were used: {error}.") from error


def digest(rows: Rows) -> str:
    """SHA-256 of the values and targets."""
    state = hashlib.sha256(rows.X.contiguous().numpy().tobytes())
    state.update(rows.y.contiguous().numpy().tobytes())
    return state.hexdigest()


def _plain(choice: Choice) -> dict[str, Any]:
    return {**choice.__dict__, "positive": list(choice.positive)}
