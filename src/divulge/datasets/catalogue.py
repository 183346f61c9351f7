"""From a name or a path to a data set."""

from __future__ import annotations

from pathlib import Path

from divulge.core.errors import InvalidInput, MissingData
from divulge.datasets.bundled import BUNDLED, load_bundled
from divulge.datasets.dataset import Dataset
from divulge.datasets.image_sets import SOURCES, load_pictures
from divulge.datasets.user_files import READERS, load_file, load_folder


def names() -> list[str]:
    """The sets that ``load`` knows by name. Those of scikit-learn need nothing on disk.

    Returns
    -------
    list of str

    Examples
    --------
    >>> from divulge import datasets
    >>> datasets.names()[:4]
    ['digits', 'breast-cancer', 'diabetes', 'iris']
    """
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
    """A data set by name, or the user's own: a .csv, .parquet or .npz file, or a folder of pictures.

    Parameters
    ----------
    name : str or Path
        One of ``names()``, or a path.
    data_dir : str, Path or None, default None
        Where named image sets lie; by default $DIVULGE_DATA or ~/.cache/divulge/data.
    target : str or None, default None
        The column of a table to predict; by default the first of target, label, class and y.
    test : float, default 0.2
        The share of the user's rows that is held out, from 0 up to 1.
    seed : int, default 0
        Fixes which rows are held out.
    size : (int, int) or None, default None
        The height and width that the user's pictures are resized to.
    verify : bool, default True
        Whether named image sets are checked against their published checksums.

    Returns
    -------
    Dataset

    Raises
    ------
    MissingData
        If the set or file is not on disk.
    InvalidInput
        If there is no such set, or the file cannot be read.
    NonFiniteInput
        If values are missing or infinite.

    Examples
    --------
    >>> from divulge import datasets
    >>> datasets.load("iris")
    Dataset('iris', 120 training and 30 test rows of shape (4,), 3 classes)
    >>> X, y = datasets.load("digits").train
    >>> X.shape, X.min().item(), X.max().item()
    (torch.Size([1438, 64]), 0.0, 1.0)
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
