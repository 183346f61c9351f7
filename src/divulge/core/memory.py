"""A limit on memory: large arrays are refused before they are made, and a shortage is one sentence.

``claim`` is called where the size of an array grows with the square of the model's inputs or with numbers that somebody
else wrote. ``limited`` sets the limit that ``claim`` keeps. On Linux it also lowers the limit of the operating system
on the memory of the process, so that an array that nobody claimed fails with an exception instead of pushing other
programs out of memory. Without ``limited``, ``claim`` refuses what is larger than the memory of the machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from divulge.core.errors import InvalidInput, OutOfMemory

GIB = 1 << 30
DEFAULT_GIB = 4.0
"""Gibibytes that an audit may use unless it is given another limit."""
LEAST_GIB = 0.5
"""The smallest limit that is taken: libraries allocate some hundred megabytes of their own."""
_limit: ContextVar[int | None] = ContextVar("divulge_memory", default=None)


def available() -> int:
    """The limit in bytes: that of :func:`limited`, or else the memory of the machine."""
    limit = _limit.get()
    if limit is not None:
        return limit
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize


def claim(numbers: float, what: str, *, each: int = 8) -> None:
    """Refuse an array that does not fit the limit, before it is made.

    Parameters
    ----------
    numbers : float
        How many numbers it holds.
    what : str
        What the array is, as the subject of a sentence in the singular.
    each : int, default 8
        Bytes that a number takes.

    Raises
    ------
    OutOfMemory
        If it takes more than the limit.

    Examples
    --------
    >>> with limited(1.0):
    ...     claim(150_528**2, "A finite-difference stencil")
    Traceback (most recent call last):
    ...
    divulge.core.errors.OutOfMemory: A finite-difference stencil takes 168.8 GiB; the limit is 1 GiB.
    """
    limit = available()
    if numbers * each > limit:
        raise OutOfMemory(f"{what} takes {numbers * each / GIB:,.1f} GiB; the limit is {limit / GIB:,.3g} GiB.")


@contextmanager
def limited(gibibytes: float, *, before: int | None = None) -> Iterator[None]:
    """Allow the block this much memory beyond what the process holds now, or held before.

    Parameters
    ----------
    gibibytes : float
        The limit, at least a half.
    before : int, optional
        What :func:`resident` said when the work began; what was taken since then counts.

    Raises
    ------
    InvalidInput
        If the limit is too small or not a number.
    OutOfMemory
        If the block needs more.
    """
    if not gibibytes >= LEAST_GIB:
        raise InvalidInput(f"The memory is at least {LEAST_GIB:g} GiB; got {gibibytes!r}.")
    most = int(min(gibibytes * GIB, sys.maxsize // 2))
    token = _limit.set(most)
    now = resident()
    taken = 0 if before is None or now is None else max(0, now - before)
    try:
        with _limited_process(most - taken), explained(f"the {gibibytes:,.3g} GiB that were allowed"):
            yield
    finally:
        _limit.reset(token)


@contextmanager
def explained(allowed: str = "this machine has free") -> Iterator[None]:
    """Turn a failed allocation inside the block into :class:`OutOfMemory`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        raise OutOfMemory(f"More memory was needed than {allowed}.") from error


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that memory could not be allocated: Python's, numpy's or torch's."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in said or "out of memory" in said)
    )


@contextmanager
def _limited_process(most: int) -> Iterator[None]:
    """Lower the soft limit on the data of this process, where the system has one and says what is in use."""
    used = _data_in_use()
    if used is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    ceilings = [bound for bound in (used + most, soft, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(ceilings), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def resident() -> int | None:
    """Bytes of memory that the process holds, with the pages of libraries; None where the system does not say."""
    return _pages(1)


def _data_in_use() -> int | None:
    """Bytes of private memory that the process has asked for; None where the system does not say."""
    return _pages(5)


def _pages(field: int) -> int | None:
    with suppress(OSError, ValueError, IndexError), open("/proc/self/statm") as file:
        return int(file.read().split()[field]) * os.sysconf("SC_PAGE_SIZE")
    return None
