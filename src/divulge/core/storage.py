"""Files on disk: written whole or not at all, and identified by a SHA-256 digest of their contents."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divulge.core.json import dumps

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its place when the block ends.

    A block that raises, or a process that is killed, leaves ``path`` as it was. The temporary name keeps the ending of
    ``path``, by which many libraries choose a format. Missing parent folders are made.

    Parameters
    ----------
    path : str or Path
        The file to write. A symbolic link is followed.

    Yields
    ------
    Path
        An empty file in the same folder. Write to it by any means.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "note.txt") as part:
    ...         _ = part.write_text("whole")
    ...     [file.name for file in Path(folder).iterdir()]
    ['note.txt']
    """
    final = Path(os.path.realpath(path))
    final.parent.mkdir(parents=True, exist_ok=True)
    part = final.with_name(f".{final.stem}.{secrets.token_hex(6)}{final.suffix}")
    try:
        part.open("xb").close()  # not tempfile, whose files only their owner may read
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, final)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def write(path: str | Path, content: bytes | str) -> Path:
    """Write a whole file or none; text is written as UTF-8. Returns the path.

    Parameters
    ----------
    path : str or Path
        The file to write. Missing parent folders are made.
    content : bytes or str
        Everything that the file is to hold.
    """
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


def write_json(path: str | Path, value: object, *, indent: int | None = 2) -> Path:
    """Write a value as strict JSON (see ``divulge.core.json.plain``), whole or not at all. Returns the path."""
    return write(path, dumps(value, indent=indent) + "\n")


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> Path:
    """Write a safetensors file, whole or not at all. Returns the path."""
    from safetensors.torch import save_file

    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with replacing(path) as part:
        save_file(copies, part, metadata=metadata)
    return Path(path)


def write_arrays(path: str | Path, arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write a compressed NPZ file, whole or not at all. Returns the path."""
    import numpy as np

    with replacing(path) as part:
        np.savez_compressed(part, **dict(arrays))  # type: ignore[arg-type]
    return Path(path)


def digest(*parts: bytes | str | Tensor | NDArray[Any] | None) -> str:
    """The SHA-256 digest of the parts, one after the other, in hexadecimal.

    Parameters
    ----------
    *parts : bytes, str, Tensor, array or None
        Text counts as its UTF-8 bytes, a tensor or an array as its numbers in row order and their own precision
        (neither shape nor type is included), and None as the word ``none``.

    Examples
    --------
    >>> digest("abc") == digest(b"ab", "c")
    True
    >>> digest("abc")[:16]
    'ba7816bf8f01cfea'
    """
    state = hashlib.sha256()
    for part in parts:
        state.update(_bytes(part))
    return state.hexdigest()


def _bytes(part: bytes | str | Tensor | NDArray[Any] | None) -> Any:
    if part is None:
        return b"none"
    if isinstance(part, bytes):
        return part
    if isinstance(part, str):
        return part.encode()
    import numpy as np
    import torch

    if isinstance(part, torch.Tensor):  # by way of bytes, because NumPy has no bfloat16
        part = part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return np.ascontiguousarray(part).data  # no copy
