"""From a name or a path to a data set."""

from __future__ import annotations

from pathlib import Path

from divulge.datasets.bundled import BUNDLED, load_bundled
from divulge.datasets.dataset import Dataset
from divulge.datasets.own import READERS, load_file, load_folder
from divulge.datasets.pictures import SOURCES, load_pictures
from divulge.errors import InvalidInput, MissingData


def names() -> list[str]:
    """The sets that ``load`` knows by name; those of scikit-learn need nothing on disk."""
    return [*BUNDLED, *SOURCES]


def load(
    name: str | Path,
    data_dir: str | Path | None = None,
    *,
    target: str | None = None,
    test: float = 0.2,
    seed: int = 0,
    size: tuple[int, int] | None = None,
    verify: bool = True,
) -> Dataset:
    """A data set by name (see ``names``), or the user's own: a .csv, .parquet or .npz file, or a folder of pictures.

    ``data_dir`` is where named picture sets lie (default $DIVULGE_DATA or ~/.cache/divulge/data), and ``verify``
    checks them against their published checksums. For the user's own data ``target`` names the column to predict,
    ``test`` is the share of rows held out by a shuffle with ``seed``, and ``size`` resizes pictures to (height, width).
    """
    if str(name) in BUNDLED:
        return load_bundled(str(name))
    if str(name) in SOURCES:
        return load_pictures(str(name), data_dir=data_dir, verify=verify)
    if not 0 <= test < 1:
        raise InvalidInput(f"test is the share of rows held out, from 0 up to 1; got {test}.")
    path = Path(name).expanduser()
    if path.is_dir():
        return load_folder(path, test=test, seed=seed, size=size)
    if path.is_file():
        return load_file(path, target=target, test=test, seed=seed)
    if path.suffix.lower() in READERS or "/" in str(name):
        raise MissingData(f"There is no file or folder {path.absolute()}.")
    raise InvalidInput(
        f"There is no data set {str(name)!r}; choose one of {', '.join(names())}, or give the path of a "
        f"{', '.join(sorted(READERS))} file or of a folder of pictures."
    )
