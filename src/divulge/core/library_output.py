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
OUT, ERROR = 1, 2


@contextmanager
def on_standard_error() -> Iterator[None]:
    """What compiled code prints on standard output goes to standard error meanwhile.

    Returns
    -------
    context manager

    Examples
    --------
    >>> with on_standard_error():
    ...     pass
    """
    with _LOCK:
        _flush()
        try:
            kept = os.dup(OUT)
            os.dup2(ERROR, OUT)
        except OSError:  # a process without standard streams
            yield
            return
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
