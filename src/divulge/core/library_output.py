"""Standard output kept for our own answers: compiled libraries print on it, and ``--json`` promises one object there.

HiGHS prints a line of its own in the middle of some mixed-integer programs, whatever its options say.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LOCK = threading.Lock()
OUT = 1


@contextmanager
def silent_libraries() -> Iterator[None]:
    """What compiled code prints on standard output meanwhile is dropped.

    Returns
    -------
    context manager

    Examples
    --------
    >>> with silent_libraries():
    ...     pass
    """
    with _LOCK:
        _flush()
        try:
            kept = os.dup(OUT)
        except OSError:  # a process without standard streams
            yield
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, OUT)
        os.close(nowhere)
        try:
            yield
        finally:
            _flush()
            os.dup2(kept, OUT)
            os.close(kept)


def _flush() -> None:
    """Write out what Python and the C library hold back."""
    with suppress(OSError, ValueError, AttributeError):  # streams may be closed or replaced
        sys.stdout.flush()
    with suppress(OSError, TypeError, AttributeError):  # Windows has no library by the name of None
        ctypes.CDLL(None).fflush(None)
