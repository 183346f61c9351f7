"""MNIST and Fashion-MNIST (IDX files, plain or .gz) and CIFAR-10 (binary batches), verified by their checksums."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from divulge.core.errors import InvalidInput, MissingData
from divulge.datasets.dataset import Dataset, Rows

CIFAR_FOLDER = "cifar-10-batches-bin"
_PICTURE = 32 * 32 * 3


@dataclass(frozen=True)
class Source:
    """A set's files with the MD5 of their (unpacked) content, where they may lie, and what the classes are called."""

    title: str
    files: dict[str, str]
    folders: tuple[str, ...]
    classes: tuple[str, ...]


_FASHION = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

SOURCES = {
    "mnist": Source(
        title="MNIST",
        files={
            "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
            "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
            "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
            "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
        },
        folders=("mnist", "MNIST/raw"),
        classes=tuple("0123456789"),
    ),
    "fashion-mnist": Source(
        title="Fashion-MNIST",
        files={
            "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
        folders=("fashion-mnist", "FashionMNIST/raw"),
        classes=_FASHION,
    ),
    "cifar10": Source(
        title="CIFAR-10",
        files={
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        },
        folders=(f"cifar10/{CIFAR_FOLDER}", "cifar10", CIFAR_FOLDER),
        classes=_CIFAR,
    ),
}


def data_root(data_dir: str | Path | None = None) -> Path:
    """Where data sets lie: the folder given, $DIVULGE_DATA, or ~/.cache/divulge/data."""
    if data_dir is not None:
        return Path(data_dir).expanduser()
    fallback = Path.home() / ".cache" / "divulge" / "data"
    return Path(os.environ.get("DIVULGE_DATA") or fallback).expanduser()


def load_pictures(name: str, *, data_dir: str | Path | None = None, verify: bool = True) -> Dataset:
    """A picture set from disk."""
    source = SOURCES[name]
    contents = {file: _read(name, file, data_root(data_dir), verify=verify) for file in source.files}
    shape: tuple[int, ...] = (3, 32, 32)
    if name == "cifar10":
        batches = [_cifar_batch(contents[file], file) for file in source.files]
        train = Rows(torch.cat([X for X, _ in batches[:-1]]), torch.cat([y for _, y in batches[:-1]]))
        parts = (train, batches[-1])
    else:
        parts, shape = _idx_parts(contents)
    return Dataset(name, *parts, shape=shape, classes=source.classes, high=255.0)


def where(name: str, root: Path) -> list[Path]:
    """The folders that are looked in, best first."""
    return [*(root / folder for folder in SOURCES[name].folders), root]


def _read(name: str, file: str, root: Path, *, verify: bool) -> bytes:
    source = SOURCES[name]
    for folder in where(name, root):
        for path in (folder / file, folder / f"{file}.gz"):
            if path.is_file():
                content = path.read_bytes() if path.suffix != ".gz" else _unpack(path)
                if verify:
                    check(content, source.files[file], path)
                return content
    looked = ", ".join(str(folder) for folder in where(name, root))
    raise MissingData(
        f"{source.title} is not on disk: {file} (or {file}.gz) was looked for in {looked}; fetch it with "
        f"`divulge data {name} --download` or divulge.datasets.download({name!r}), or say where it is with "
        "--data-dir or $DIVULGE_DATA."
    )


def _unpack(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path} is not a whole gzip file ({error}); delete it and download it again.") from error


def check(content: bytes, expected: str, path: Path | str) -> None:
    """Refuse content that is not what was published."""
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise InvalidInput(
            f"{path} is damaged: its content has MD5 {found} where {expected} is right; delete it and download it "
            "again, or load with verify=False if it was changed on purpose."
        )


def _idx_parts(contents: dict[str, bytes]) -> tuple[tuple[Rows, Rows], tuple[int, ...]]:
    parts = []
    shape: tuple[int, ...] = ()
    for prefix in ("train", "t10k"):
        pictures = _idx(contents[f"{prefix}-images-idx3-ubyte"], 3, f"{prefix}-images-idx3-ubyte")
        labels = _idx(contents[f"{prefix}-labels-idx1-ubyte"], 1, f"{prefix}-labels-idx1-ubyte")
        if len(pictures) != len(labels):
            raise InvalidInput(
                f"{prefix}-images has {len(pictures)} pictures but {prefix}-labels {len(labels)} labels."
            )
        shape = (1, *pictures.shape[1:])
        parts.append(Rows(pictures.reshape(len(pictures), -1), labels.long()))
    return (parts[0], parts[1]), shape


def _idx(content: bytes, ndim: int, name: str) -> Tensor:
    """An IDX file of unsigned bytes: two zero bytes, type 8, the number of axes, their lengths, the values."""
    header = 4 + 4 * ndim
    if content[:4] != bytes([0, 0, 8, ndim]) or len(content) < header:
        raise InvalidInput(f"{name} is not an IDX file of bytes with {ndim} axes.")
    shape = tuple(int(extent) for extent in np.frombuffer(content, ">u4", count=ndim, offset=4))
    values = np.frombuffer(content, np.uint8, offset=header)
    if values.size != np.prod(shape, dtype=np.int64):
        raise InvalidInput(f"{name} says it holds {shape} bytes but has {values.size}; it was cut short.")
    return torch.from_numpy(values.reshape(shape).copy())


def _cifar_batch(content: bytes, name: str) -> Rows:
    """Records of one label byte and 3,072 picture bytes (channels, rows, columns)."""
    if len(content) == 0 or len(content) % (1 + _PICTURE):
        raise InvalidInput(f"{name} is not a CIFAR-10 binary batch: {len(content)} bytes are not whole records.")
    records = torch.from_numpy(np.frombuffer(content, np.uint8).reshape(-1, 1 + _PICTURE).copy())
    labels = records[:, 0].long()
    if int(labels.max()) > 9:
        raise InvalidInput(f"{name} is not a CIFAR-10 binary batch: it has a label {int(labels.max())}.")
    return Rows(records[:, 1:].contiguous(), labels)
