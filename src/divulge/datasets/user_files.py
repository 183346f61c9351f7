"""The user's own data: tables (CSV, Parquet), arrays (NPZ) and folders of pictures.

A table's text columns become one column a value (``colour=red``), up to 20 values; its target becomes classes when it
is text, true/false, or whole numbers with at most 20 values, and stays a quantity otherwise.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from divulge.core.errors import InvalidInput, MissingPackage, NonFiniteInput
from divulge.datasets.bundled import table_set, train_test_split
from divulge.datasets.dataset import Dataset, Rows

MOST_VALUES = 20  # of a text column, or of a whole-number target that still counts as classes
PICTURES = (".png", ".jpg", ".jpeg", ".bmp")
_TARGET_NAMES = ("target", "label", "class", "y")
TABLES = (".csv", ".parquet")
_MISSING = {"", "na", "n/a", "nan", "null", "none"}
Column = NDArray[Any]  # of float64 numbers or of text


def load_file(path: Path, *, target: str | None, test: float, seed: int) -> Dataset:
    """Load a table or arrays; the file's ending says which."""
    if path.suffix.lower() not in READERS:
        raise InvalidInput(f"{path.name} is not a data file that divulge reads: {', '.join(sorted(READERS))}.")
    if path.stat().st_size == 0:
        raise InvalidInput(f"{path} is empty.")
    read = READERS[path.suffix.lower()]
    if read is None:
        return _from_arrays(path, test=test, seed=seed)
    return _from_columns(path, read(path), target=target, test=test, seed=seed)


# -- tables -----------------------------------------------------------------------------------------------------------


def _read_csv(path: Path) -> dict[str, Column]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file) if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path} is not a readable CSV file: {error}.") from error
    if not lines:
        raise InvalidInput(f"{path} is empty.")
    header, *records = lines
    header = [name.strip() for name in header]
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise InvalidInput(f"{path} has two columns called {twice!r}; its first line must name each column once.")
    for number, record in enumerate(records, start=1):
        if len(record) != len(header):
            raise InvalidInput(f"Row {number} of {path} has {len(record)} values where the header has {len(header)}.")
    return {name: _typed([record[place].strip() for record in records]) for place, name in enumerate(header)}


def _typed(texts: list[str]) -> Column:
    """Numbers where every present value is one, with NaN for the missing; text otherwise."""
    try:
        return np.array([math.nan if text.lower() in _MISSING else float(text) for text in texts], dtype=np.float64)
    except ValueError:
        return np.array(texts, dtype=object)


def _read_parquet(path: Path) -> dict[str, Column]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPackage("Reading Parquet needs pyarrow; install divulge[tables].") from error
    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise InvalidInput(f"{path} is not a readable Parquet file: {error}.") from error
    columns = {}
    for name in table.column_names:
        values = table.column(name).to_pylist()
        if all(value is None or isinstance(value, int | float) for value in values):
            columns[name] = np.array([math.nan if value is None else value for value in values], dtype=np.float64)
        else:
            columns[name] = np.array(["" if value is None else str(value) for value in values], dtype=object)
    return columns


def _from_columns(path: Path, columns: dict[str, Column], *, target: str | None, test: float, seed: int) -> Dataset:
    """The columns of a table as a data set: one is the target, the others are features."""
    n = len(next(iter(columns.values()), ()))
    if n == 0:
        raise InvalidInput(f"{path} has a header but no rows.")
    if target is None:
        target = next((name for name in _TARGET_NAMES if name in columns), None)
    if target is None or target not in columns:
        asked = "Say which column is the target" if target is None else f"There is no column {target!r}"
        raise InvalidInput(f"{asked}; {path.name} has {', '.join(columns)}.")
    for name, values in columns.items():
        _refuse_missing(path, name, values)
    y, classes = _target(columns[target])
    features: dict[str, NDArray[np.float64]] = {}
    for name, values in columns.items():
        if name != target:
            features.update(_features(path, name, values))
    if not features:
        raise InvalidInput(f"{path} has no column besides the target {target!r}.")
    X = torch.from_numpy(np.stack(list(features.values()), axis=1))
    return table_set(path.name, X, y, classes=classes, columns=tuple(features), test=test, seed=seed)


def frame(path: Path, target: str | None) -> tuple[Any, Any]:
    """A table as pandas reads it, mixed columns and missing values included: the inputs, and the target column.

    A target that is text stays text; whole numbers stay whole.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingPackage("Tables of mixed columns need pandas; install divulge[tables].") from error
    if not path.is_file():
        raise InvalidInput(f"There is no file {path}.")
    try:
        table = pd.read_csv(path) if path.suffix.lower() == ".csv" else pd.read_parquet(path)
    except Exception as error:  # the readers raise classes of their own
        raise InvalidInput(f"{path} is not a readable table: {next(iter(str(error).splitlines()), '')}.") from error
    target = next((name for name in _TARGET_NAMES if name in table.columns), None) if target is None else target
    if target not in table.columns:
        asked = "Say which column is the target" if target is None else f"There is no column {target!r}"
        raise InvalidInput(f"{asked}; {path.name} has {', '.join(map(str, table.columns))}.")
    if bool(table[target].isna().any()):
        raise NonFiniteInput(f"The target {target!r} of {path.name} has missing values; drop those rows.")
    return table.drop(columns=target), table[target].to_numpy()


def _refuse_missing(path: Path, name: str, values: Column) -> None:
    """Raise if a value is missing or infinite."""
    if values.dtype == object:
        bad = np.array([str(value).lower() in _MISSING for value in values])
    else:
        bad = ~np.isfinite(values)
    if bad.any():
        raise NonFiniteInput(
            f"Column {name!r} of {path.name} has {int(bad.sum())} missing or infinite values, the first in row "
            f"{int(bad.argmax()) + 1}; fill them or drop those rows."
        )


def _features(path: Path, name: str, values: Column) -> dict[str, NDArray[np.float64]]:
    """A column as numeric columns: itself, or an indicator for each value of a text column."""
    if values.dtype != object:
        return {name: values.astype(np.float64)}
    kinds = sorted(set(values.tolist()))
    if len(kinds) > MOST_VALUES:
        raise InvalidInput(
            f"Column {name!r} of {path.name} is text with {len(kinds)} different values (such as {kinds[0]!r}); at "
            f"most {MOST_VALUES} become columns of their own. Drop it or turn it into numbers."
        )
    return {f"{name}={kind}": (values == kind).astype(np.float64) for kind in kinds}


def _target(values: Column) -> tuple[torch.Tensor, tuple[str, ...]]:
    """The target as class numbers with the names of the classes, or as a quantity without names."""
    kinds = np.unique(values.astype(str) if values.dtype == object else values)
    whole = values.dtype != object and bool((values == np.round(values)).all())
    if values.dtype == object or (whole and len(kinds) <= MOST_VALUES):
        numbers = np.searchsorted(kinds, values.astype(str) if values.dtype == object else values)
        names = tuple(str(int(kind)) if whole else str(kind) for kind in kinds)
        return torch.from_numpy(numbers).long(), names
    return torch.from_numpy(values.astype(np.float32)), ()


# -- arrays -----------------------------------------------------------------------------------------------------------


def _from_arrays(path: Path, *, test: float, seed: int) -> Dataset:
    """Load X and y, or x_train, y_train, x_test and y_test; images as bytes or in [0, 1], channels first or last."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name.lower(): file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise InvalidInput(f"{path} is not a readable NPZ file of plain arrays: {error}.") from error
    if {"x_train", "y_train", "x_test", "y_test"} <= set(arrays):
        X = np.concatenate([arrays["x_train"], arrays["x_test"]])
        y = np.concatenate([arrays["y_train"], arrays["y_test"]])
        first = len(arrays["x_train"])
    elif {"x", "y"} <= set(arrays):
        X, y, first = arrays["x"], arrays["y"], None
    else:
        raise InvalidInput(
            f"{path.name} must hold arrays X and y, or x_train, y_train, x_test and y_test; it has {', '.join(arrays)}."
        )
    if X.ndim < 2 or len(X) != len(y) or len(X) == 0:
        raise InvalidInput(f"X {X.shape} and y {y.shape} of {path.name} must have as many rows, and at least one.")
    if X.dtype.kind not in "buif" or not np.isfinite(X).all():
        raise NonFiniteInput(f"X of {path.name} must hold finite numbers only.")
    X, shape = _channels_first(X)
    targets, classes = _target(y.reshape(-1) if y.dtype.kind in "buif" else y.reshape(-1).astype(object))
    rows = Rows(torch.from_numpy(np.ascontiguousarray(X.reshape(len(X), -1))), targets)
    if first is None:
        train, held_out, kept = train_test_split(rows, test, seed)
    else:
        train, held_out = Rows(rows.X[:first], rows.y[:first]), Rows(rows.X[first:], rows.y[first:])
        kept = torch.arange(first)
    low, high = (0.0, 255.0) if X.dtype == np.uint8 else _range(rows.X)
    if X.dtype != np.uint8:
        train, held_out = (Rows(part.X.double(), part.y) for part in (train, held_out))
    return Dataset(path.name, train, held_out, shape=shape, classes=classes, low=low, high=high, rows=kept)


def _range(X: torch.Tensor) -> tuple[float | torch.Tensor, float | torch.Tensor]:
    """The range of the values: [0, 1] if all lie in it, else the range of each column."""
    if float(X.min()) >= 0 and float(X.max()) <= 1:
        return 0.0, 1.0
    return X.double().min(dim=0).values, X.double().max(dim=0).values


def _channels_first(X: NDArray[Any]) -> tuple[NDArray[Any], tuple[int, ...]]:
    """Images with the channels in front, and the shape of one."""
    if X.ndim == 3:
        X = X[:, None]
    elif X.ndim == 4 and X.shape[3] in (1, 3) and X.shape[1] not in (1, 3):
        X = X.transpose(0, 3, 1, 2)
    return X, tuple(int(extent) for extent in X.shape[1:])


# -- pictures ---------------------------------------------------------------------------------------------------------


def load_folder(path: Path, *, test: float, seed: int, size: tuple[int, int] | None) -> Dataset:
    """Load a folder of pictures: one subfolder for each class, or pictures of one class in the folder itself."""
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    groups = [(folder.name, _pictures_in(folder)) for folder in folders] or [(path.name, _pictures_in(path))]
    groups = [(name, files) for name, files in groups if files]
    if not groups:
        raise InvalidInput(f"{path} holds no pictures ({', '.join(PICTURES)}), neither itself nor in its subfolders.")
    files = [file for _, members in groups for file in members]
    pictures = [_picture(file, size) for file in files]
    for file, picture in zip(files, pictures, strict=True):
        if picture.shape != pictures[0].shape:
            raise InvalidInput(
                f"{file} has shape {picture.shape} and {files[0].name} {pictures[0].shape}, as (channels, height, "
                "width); pass size=(height, width) to resize all pictures, and use either colour or grey ones."
            )
    X = torch.from_numpy(np.stack(pictures).reshape(len(pictures), -1))
    y = torch.tensor([number for number, (_, members) in enumerate(groups) for _ in members])
    train, held_out, rows = train_test_split(Rows(X, y), test, seed)
    shape = tuple(int(extent) for extent in pictures[0].shape)
    classes = tuple(name for name, _ in groups)
    return Dataset(path.name, train, held_out, shape=shape, classes=classes, high=255.0, rows=rows)


def _pictures_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in PICTURES)


def _picture(path: Path, size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """Read a picture as bytes (channels, height, width): one channel for grey ones, else RGB."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            picture = image.convert("L" if image.mode in ("1", "L", "I;16") else "RGB")
            if size is not None:
                picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
            values = np.asarray(picture)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidInput(f"{path} is not a readable picture: {error}.") from error
    return values[None].copy() if values.ndim == 2 else values.transpose(2, 0, 1).copy()


READERS: dict[str, Callable[[Path], dict[str, Column]] | None] = {
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".npz": None,
}
