"""Which rows a model was trained on, written beside it, so that its training can be repeated from the same data."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

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
        source = self.data if self.data in names() else str(Path(self.data).expanduser().absolute())
        record = {**_plain(self), "data": source, "row_numbers": numbers.tolist(), "sha256": digest(train)}
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
