"""Many independent jobs: in this process, in several on this machine, or on a Dask cluster, by one ``workers=``.

    results = run(train_one, seeds, workers=None)                      # here, one after the other
    results = run(train_one, seeds, workers=4)                         # four processes; "all" takes every core
    results = run(train_one, seeds, workers="tcp://scheduler:8786")    # a Dask scheduler

Results come back in the order of the jobs. A job that is lost because its worker died is run again, and only what was
lost is; an error that a job raises is the caller's. ``checkpointed`` also keeps every result on disk, so that a run
that was killed goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from divulge.core.dask_jobs import run_on_dask
from divulge.core.errors import InvalidInput
from divulge.core.errors import WorkerLost as WorkerLost
from divulge.core.progress import report
from divulge.core.storage import digest, write, write_tensors

if TYPE_CHECKING:
    from torch import Tensor

Job = TypeVar("Job")
Result = TypeVar("Result")
Workers = int | str | None
LIVES = 3  # how often a job may take its worker down with it before it is given up


def run(
    function: Callable[[Job], Result],
    jobs: Iterable[Job],
    *,
    workers: Workers = None,
    on_done: Callable[[int, Result], None] | None = None,
    stage: str = "jobs",
) -> list[Result]:
    """``[function(job) for job in jobs]``, on the workers that ``workers`` names.

    Parameters
    ----------
    function : callable
        Takes a job. For processes it is a function of a module, or a ``functools.partial`` of one.
    jobs : iterable
        What the function is called with.
    workers : int, str or None, default None
        None works here, one job after the other; a number starts as many processes and ``"all"`` one for each core;
        ``"tcp://host:port"`` is a Dask scheduler.
    on_done : callable, optional
        Called in this process as ``on_done(index, result)`` when a result comes, in whatever order they do.
    stage : str, default "jobs"
        What the progress bar calls the work.

    Returns
    -------
    list
        The results in the order of the jobs.

    Raises
    ------
    WorkerLost
        If a job took its worker down every time it was tried, or a Dask scheduler was lost.
    InvalidInput
        If ``workers`` is none of the above, or there is no scheduler at the address.

    Examples
    --------
    >>> from divulge import workers
    >>> workers.run(abs, [-1, 2, -3])
    [1, 2, 3]
    """
    work = list(jobs)
    results: dict[int, Result] = {}
    with closing(_source(function, work, workers)) as source:  # whatever ends the loop ends the workers too
        for index, result in source:
            results[index] = result
            if on_done is not None:
                on_done(index, result)
            report(stage, len(results), len(work))
    return [results[index] for index in range(len(work))]


def checkpointed(
    function: Callable[[Job], Result],
    jobs: Iterable[Job],
    folder: str | Path,
    *,
    settings: Any = None,
    key: Callable[[Job], Any] = lambda job: job,
    workers: Workers = None,
    on_done: Callable[[int, Result], None] | None = None,
    stage: str = "jobs",
    final: Callable[[Result], bool] = lambda result: True,
) -> list[Result]:
    """``run`` that keeps each result in ``folder`` as soon as it comes, and computes none that is already there.

    Parameters
    ----------
    function, jobs, workers, on_done, stage
        As in ``run``. A result is any nest of lists, dictionaries, numbers, strings, tensors and arrays.
    folder : str or Path
        Where the results are kept, one file each, written whole or not at all.
    settings : object, optional
        What tells this run from others of the same function, ready for JSON.
    key : callable, optional
        What tells a job from others, ready for JSON; by default the job itself.
    final : callable, optional
        Whether a result is to be kept; one that is not (of a job that ran out of time) is only returned.

    Returns
    -------
    list
        The results in the order of the jobs.

    Raises
    ------
    InvalidInput
        If the folder keeps the results of another run, or a result or key cannot be kept.

    Examples
    --------
    >>> import tempfile
    >>> from divulge import workers
    >>> folder = tempfile.mkdtemp()
    >>> workers.checkpointed(abs, [-1, 2], folder)
    [1, 2]
    >>> workers.checkpointed(abs, [-1, 2, -3], folder)  # computes the last only
    [1, 2, 3]
    """
    work = list(jobs)
    store = _Store(Path(folder), run={"function": _name_of(function), "settings": settings})
    paths = [store.path(key(job)) for job in work]
    results: dict[int, Any] = {}
    for index, path in enumerate(paths):
        kept = store.read(path)
        if kept is not None:
            results[index] = kept[0]
            if on_done is not None:
                on_done(index, kept[0])
    missing = [index for index in range(len(work)) if index not in results]
    report(stage, len(results), len(work))

    def keep(place: int, result: Result) -> None:
        index = missing[place]
        results[index] = store.write(paths[index], result) if final(result) else result
        if on_done is not None:
            on_done(index, results[index])

    run(function, [work[index] for index in missing], workers=workers, on_done=keep, stage=stage)
    return [results[index] for index in range(len(work))]


# -- where jobs run ---------------------------------------------------------------------------------------------------


def _source(
    function: Callable[[Any], Any], jobs: Sequence[Any], workers: Workers
) -> Generator[tuple[int, Any], None, None]:
    if workers is None:
        return ((index, function(job)) for index, job in enumerate(jobs))
    if isinstance(workers, str) and "://" in workers:
        return run_on_dask(function, jobs, workers)
    if workers == "all":
        return _in_processes(function, jobs, os.cpu_count() or 1)
    if isinstance(workers, int) and not isinstance(workers, bool) and workers >= 1:
        return _in_processes(function, jobs, workers)
    raise InvalidInput(f'workers is None, a number of processes, "all" or "tcp://scheduler:port"; got {workers!r}.')


_function: Callable[[Any], Any] | None = None  # in a worker process: what it was started for


def _start_worker(function: Callable[[Any], Any], threads: int) -> None:
    global _function
    _function = function
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if "torch" in sys.modules:  # the function brought it along; a later import reads the variable
        sys.modules["torch"].set_num_threads(threads)


def _work(job: Any) -> Any:
    assert _function is not None
    return _function(job)


def _in_processes(
    function: Callable[[Any], Any], jobs: Sequence[Any], count: int
) -> Generator[tuple[int, Any], None, None]:
    from joblib.externals.loky import ProcessPoolExecutor

    threads = max(1, (os.cpu_count() or 1) // count)
    waiting = deque(range(len(jobs)))
    lives = [LIVES] * len(jobs)
    while waiting:
        pool = ProcessPoolExecutor(min(count, len(waiting)), initializer=_start_worker, initargs=(function, threads))
        try:
            lost = yield from _until_broken(pool, jobs, waiting, in_flight=2 * count)
        finally:
            pool.shutdown(wait=True, kill_workers=True)
        for index in lost:
            lives[index] -= 1  # its own fault or its neighbour's: nobody can tell
            if lives[index] == 0:
                raise WorkerLost(f"Job {index} was lost {LIVES} times because its worker died; is memory short?")
        waiting.extendleft(reversed(lost))


def _until_broken(
    pool: Any, jobs: Sequence[Any], waiting: deque[int], *, in_flight: int
) -> Generator[tuple[int, Any], None, list[int]]:
    """Give out waiting jobs and yield results, to the end or until a worker dies; returns the jobs that were lost."""
    running: dict[Future[Any], int] = {}
    lost: list[int] = []
    while running or (waiting and not lost):
        while waiting and not lost and len(running) < in_flight:
            index = waiting.popleft()
            try:
                running[pool.submit(_work, jobs[index])] = index
            except BrokenProcessPool:
                lost.append(index)
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            index = running.pop(future)
            if isinstance(future.exception(), BrokenProcessPool):
                lost.append(index)
            else:
                yield index, future.result()
    return sorted(lost)


# -- results on disk --------------------------------------------------------------------------------------------------


def _differences(marker: Path, now: dict[str, Any]) -> str:
    """In what the run that wrote ``marker`` differs from the one that is asked for now."""
    try:
        before = json.loads(marker.read_text())
        flat = [{**run, **(run["settings"] if isinstance(run["settings"], dict) else {})} for run in (before, now)]
    except (OSError, ValueError, KeyError, TypeError):
        return f"its {marker.name} cannot be read"
    other = [name for name in flat[0].keys() | flat[1].keys() if flat[0].get(name) != flat[1].get(name)]
    return "with other " + " and ".join(sorted(name for name in other if name != "settings" or len(other) == 1))


class _Store:
    """A folder of results, one safetensors file a job: tensors as such, the rest as JSON in the file's header."""

    def __init__(self, folder: Path, *, run: dict[str, Any]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        marker = folder / "run.json"
        wanted = _canonical(run)
        if not marker.exists():
            write(marker, wanted)
        elif marker.read_text() != wanted:
            raise InvalidInput(
                f"{folder} keeps the results of another run ({_differences(marker, json.loads(wanted))}); choose "
                "another folder, or delete it to start again."
            )

    def path(self, key: Any) -> Path:
        return self.folder / f"{digest(_canonical(key))[:32]}.safetensors"

    def write(self, path: Path, result: Any) -> Any:
        """Keep a result, and return it as a later run will read it (a tuple as a list)."""
        tensors: dict[str, Tensor] = {}
        plain = json.dumps(_flatten(result, tensors))
        write_tensors(path, tensors, {"result": plain})
        return _restore(json.loads(plain), tensors)

    def read(self, path: Path) -> tuple[Any] | None:
        """The result in a tuple, or None where there is none or the file is damaged."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                return (_restore(json.loads(file.metadata()["result"]), tensors),)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError):
            return None


def _flatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor | np.ndarray):
        name = str(len(tensors))
        tensors[name] = torch.as_tensor(value).detach().cpu()
        return {"__tensor__": name, "numpy": isinstance(value, np.ndarray)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise InvalidInput("A result that is kept on disk may only have text as its dictionary keys.")
        return {name: _flatten(entry, tensors) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_flatten(entry, tensors) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InvalidInput(f"A result that is kept on disk cannot hold a {type(value).__name__}.")


def _restore(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict) and "__tensor__" in value:
        tensor = tensors[value["__tensor__"]]
        return tensor.numpy() if value["numpy"] else tensor
    if isinstance(value, dict):
        return {name: _restore(entry, tensors) for name, entry in value.items()}
    if isinstance(value, list):
        return [_restore(entry, tensors) for entry in value]
    return value


def _canonical(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True)
    except TypeError as error:
        raise InvalidInput(f"Keys and settings of a kept run must be ready for JSON: {error}.") from error


def _name_of(function: Callable[..., Any]) -> str:
    inner = getattr(function, "func", function)  # functools.partial
    return f"{inner.__module__}.{inner.__qualname__}"
