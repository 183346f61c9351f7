"""Downloading the image sets from their public addresses. Every file is checked before it takes its name."""

from __future__ import annotations

import gzip
import io
import tarfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from divulge.core.errors import DivulgeError, InvalidInput
from divulge.core.progress import report
from divulge.core.storage import write
from divulge.datasets.image_sets import CIFAR_FOLDER, SOURCES, check, data_root

if TYPE_CHECKING:
    import httpx

CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
HOMES = {
    "mnist": ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
    "fashion-mnist": (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    ),
    "cifar10": ("https://www.cs.toronto.edu/~kriz",),
}


class DownloadFailed(DivulgeError):
    """A data set could not be downloaded."""

    exit_code = 3


def download(
    name: str, data_dir: str | Path | None = None, *, home: str | None = None, tries: int = 3, timeout: float = 30.0
) -> Path:
    """Download an image set into its folder. Files that are there and complete are kept.

    Parameters
    ----------
    name : {"mnist", "fashion-mnist", "cifar10"}
        The set.
    data_dir : str, Path or None, default None
        Where image sets lie; by default $DIVULGE_DATA or ~/.cache/divulge/data.
    home : str or None, default None
        The address of a mirror that holds the same files.
    tries : int, default 3
        Attempts for each file.
    timeout : float, default 30.0
        Seconds to wait for the server at each step.

    Returns
    -------
    Path
        The set's folder.

    Raises
    ------
    InvalidInput
        If there is no such set.
    DownloadFailed
        If a file cannot be fetched, or is not the published one.

    Examples
    --------
    >>> from divulge import datasets
    >>> datasets.download("imagenet")
    Traceback (most recent call last):
    divulge.core.errors.InvalidInput: There is nothing to download for 'imagenet'; choose one of mnist, \
fashion-mnist, cifar10.
    """
    if name not in SOURCES:
        raise InvalidInput(f"There is nothing to download for {name!r}; choose one of {', '.join(SOURCES)}.")
    folder = data_root(data_dir) / name
    if name == "cifar10":
        folder = folder / CIFAR_FOLDER
    wanted = {file: md5 for file, md5 in SOURCES[name].files.items() if not _is_complete(folder / file, md5)}
    homes = (home,) if home is not None else HOMES[name]
    if name == "cifar10" and wanted:
        members = _members(_fetch(homes, CIFAR_ARCHIVE, tries=tries, timeout=timeout), wanted)
        for file, content in members.items():
            _write_checked(content, folder / file, wanted[file])
    elif wanted:
        for file, md5 in wanted.items():
            packed = _fetch(homes, f"{file}.gz", tries=tries, timeout=timeout)
            try:
                content = gzip.decompress(packed)
            except (OSError, EOFError, zlib.error) as error:
                raise DownloadFailed(f"{file}.gz arrived damaged ({error}); try again.") from error
            _write_checked(content, folder / file, md5)
    return folder


def _is_complete(path: Path, md5: str) -> bool:
    try:
        check(path.read_bytes(), md5, path)
    except (OSError, InvalidInput):
        return False
    return True


def _write_checked(content: bytes, path: Path, md5: str) -> None:
    """Write content under its name in one step, once its checksum is right."""
    try:
        check(content, md5, path.name)
    except InvalidInput as error:
        raise DownloadFailed(f"{path.name} arrived damaged or is another version than the published one.") from error
    write(path, content)


def _members(archive: bytes, wanted: dict[str, str]) -> dict[str, bytes]:
    """The wanted files out of the archive, by their base name: no path of the archive is ever written to."""
    found = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                base = Path(member.name).name
                stream = tar.extractfile(member) if base in wanted and member.isfile() else None
                if stream is not None:
                    found[base] = stream.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DownloadFailed(f"{CIFAR_ARCHIVE} arrived damaged ({error}); try again.") from error
    if missing := set(wanted) - set(found):
        raise DownloadFailed(f"{CIFAR_ARCHIVE} does not hold {', '.join(sorted(missing))}.")
    return found


def _fetch(homes: tuple[str, ...], file: str, *, tries: int, timeout: float) -> bytes:
    import httpx

    reason = ""
    with httpx.Client(follow_redirects=True, timeout=timeout, headers={"accept-encoding": "identity"}) as client:
        for attempt in range(tries):
            time.sleep(min(attempt, 10) / 2)
            for home in homes:
                content, reason = _attempt(client, f"{home.rstrip('/')}/{file}", file)
                if content is not None:
                    return content
    raise DownloadFailed(f"{file} could not be fetched: {reason}; check the connection, or give a mirror as home=.")


def _attempt(client: httpx.Client, url: str, file: str) -> tuple[bytes | None, str]:
    import httpx

    try:
        return _downloaded(client, url, file), ""
    except httpx.HTTPStatusError as error:
        return None, f"{url} answered {error.response.status_code}"
    except httpx.HTTPError as error:
        return None, f"{url}: {str(error) or type(error).__name__}"


def _downloaded(client: httpx.Client, url: str, file: str) -> bytes:
    parts: list[bytes] = []
    done = 0
    with client.stream("GET", url) as response:
        response.raise_for_status()
        size = int(response.headers.get("content-length", 0)) or None
        for part in response.iter_raw():  # the .gz itself, even from a server that labels it as an encoding
            parts.append(part)
            done += len(part)
            report(f"downloading {file}", done, size)
    return b"".join(parts)
