"""Jobs on a Dask cluster, with a client that signals do not interrupt and a scheduler does not delay.

Ctrl-C and the alarm of an audit raise in the main thread, wherever it is. In the middle of opening or closing they
leave a client that nobody can close: its destructor waits for it, and complains. Both therefore happen in a thread of
their own, which the main thread waits for, and only so long.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any

from divulge.core.aside import Aside
from divulge.core.errors import InvalidInput, MissingPackage, WorkerLost

CONNECT_SECONDS = 30.0  # how long a Dask scheduler may take to answer
LEAVE_SECONDS = 3.0  # how long it may take to read that the jobs are cancelled


def run_on_dask(
    function: Callable[[Any], Any], jobs: Sequence[Any], address: str
) -> Generator[tuple[int, Any], None, None]:
    """The index and the result of each job as they come; whatever ends it cancels the others."""
    try:
        dask: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise MissingPackage("Working on a Dask cluster needs distributed; install divulge[scale].") from error
    logger = logging.getLogger("distributed.client")  # it prints tracebacks of what is said here in a sentence
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield from _results(dask, function, jobs, address)
    finally:
        logger.setLevel(level)


def _results(
    dask: Any, function: Callable[[Any], Any], jobs: Sequence[Any], address: str
) -> Generator[tuple[int, Any], None, None]:
    client = _connect(dask, address)
    futures: dict[Any, int] = {}
    try:
        # a task rather than scattered data: sent once to each worker, and made again if its worker dies
        shared = client.submit(_itself, function, pure=False)
        for index, job in enumerate(jobs):
            futures[client.submit(_call, shared, job, pure=False)] = index
        for future in dask.as_completed(futures, loop=client.loop):
            yield futures[future], future.result()
            future.release()
    except dask.scheduler.KilledWorker as error:
        raise WorkerLost(f"A job was lost again and again because its worker died: {error}.") from error
    except dask.CancelledError as error:  # nobody cancels these jobs before the end of this block
        raise WorkerLost(f"The Dask scheduler at {address} was lost, and the jobs with it.") from error
    finally:
        with suppress(TimeoutError):
            Aside(lambda: _close(client, list(futures))).wait(3 * LEAVE_SECONDS)


def _itself(value: Any) -> Any:
    return value


def _call(function: Callable[[Any], Any], job: Any) -> Any:
    return function(job)


def _connect(dask: Any, address: str) -> Any:
    opening = Aside(lambda: dask.Client(address, timeout=CONNECT_SECONDS, set_as_default=False), undo=_close)
    try:
        return opening.wait(CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"There is no Dask scheduler at {address}: {error}.") from error


def _close(client: Any, futures: Sequence[Any] = ()) -> None:
    """Cancel the jobs and close the client; what a scheduler does not read is dropped."""
    with suppress(Exception):
        client.cancel(list(futures))
    try:
        client.close(timeout=LEAVE_SECONDS)
    except Exception:
        with suppress(Exception):
            client.loop.add_callback(client.scheduler_comm.abort)
            client.close(timeout=LEAVE_SECONDS)
    client.status = "closed"  # whatever happened: the destructor tries it again otherwise
