"""workers.run gives the same results wherever the jobs run, and loses nothing when a worker dies."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from divulge.core import dask_jobs, workers
from divulge.core.errors import InvalidInput
from divulge.core.progress import listening


def square(job: int) -> int:
    return job * job


def slow_square(folder: str, job: int) -> int:
    """Leaves a mark for every time it is run."""
    Path(folder, f"{job}-{time.monotonic_ns()}").write_text(str(os.getpid()))
    time.sleep(0.2)
    return job * job


def die_once(folder: str, job: int) -> int:
    """The first process to take job 3 is gone."""
    Path(folder, f"{job}-{time.monotonic_ns()}").touch()
    if job == 3 and len(list(Path(folder).glob("3-*"))) == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    return job * job


def always_die(job: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return job


def fail_on_two(job: int) -> int:
    if job == 2:
        raise ZeroDivisionError("two")
    return job


def mixed(job: int) -> dict[str, object]:
    import numpy as np
    import torch  # not at the top, which every worker process reads

    values = torch.full((2, 3), float(job), dtype=torch.float64)
    return {"values": values, "list": [job, {"array": np.arange(job)}], "loss": np.float64(0.5), "none": None}


def runs_of(folder: Path, job: int) -> int:
    return len(list(folder.glob(f"{job}-*")))


def test_in_this_process_results_keep_their_order_and_stream() -> None:
    seen: list[tuple[int, int]] = []
    steps = []
    with listening(steps.append):
        assert workers.run(square, range(5), on_done=lambda i, r: seen.append((i, r))) == [0, 1, 4, 9, 16]
    assert seen == [(i, i * i) for i in range(5)]
    assert [(step.done, step.total) for step in steps] == [(i, 5) for i in range(1, 6)]
    assert workers.run(square, []) == []


@pytest.mark.slow
def test_processes_give_the_same_results_in_order() -> None:
    seen: dict[int, int] = {}
    offset = 10
    assert workers.run(lambda job: job + offset, range(20), workers="all", on_done=seen.__setitem__) == [*range(10, 30)]
    assert seen == {i: i + 10 for i in range(20)}


@pytest.mark.slow
def test_a_job_lost_with_its_process_is_run_again(tmp_path: Path) -> None:
    jobs = list(range(12))
    assert workers.run(functools.partial(die_once, str(tmp_path)), jobs, workers=2) == [i * i for i in jobs]
    assert runs_of(tmp_path, 3) == 2
    again = [job for job in jobs if runs_of(tmp_path, job) > 1]
    assert len(again) <= 4  # no more than what was under way in the two processes


@pytest.mark.slow
def test_a_job_that_always_kills_its_process_is_given_up() -> None:
    with pytest.raises(workers.WorkerLost, match="lost 3 times"):
        workers.run(always_die, [1], workers=1)


@pytest.mark.slow
@pytest.mark.parametrize("where", [None, 2])
def test_an_error_in_a_job_reaches_the_caller(where: int | None) -> None:
    with pytest.raises(ZeroDivisionError, match="two"):
        workers.run(fail_on_two, range(4), workers=where)


@pytest.mark.parametrize("where", [0, -1, True, 1.5, "some", ""])
def test_workers_that_make_no_sense_are_refused(where: object) -> None:
    with pytest.raises(InvalidInput, match="workers is None"):
        workers.run(square, [1], workers=where)  # type: ignore[arg-type]


@pytest.mark.slow
def test_an_absent_scheduler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_jobs, "CONNECT_SECONDS", 0.5)
    with pytest.raises(InvalidInput, match="no Dask scheduler at tcp://127"):
        workers.run(square, [1], workers="tcp://127.0.0.1:9")


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, worker_dashboard_address=None
    ) as local:
        yield local


@pytest.mark.slow
def test_dask_workers_one_killed_in_the_middle(cluster, tmp_path: Path) -> None:
    jobs = list(range(16))
    killed: list[int] = []

    def kill_one(index: int, result: int) -> None:
        if not killed:
            newest = max(tmp_path.iterdir(), key=lambda mark: int(mark.name.split("-")[1]))
            killed.append(int(newest.read_text() or 0))
            os.kill(killed[0], signal.SIGKILL)

    results = workers.run(
        functools.partial(slow_square, str(tmp_path)), jobs, workers=cluster.scheduler_address, on_done=kill_one
    )
    assert results == [i * i for i in jobs]
    assert killed
    again = [job for job in jobs if runs_of(tmp_path, job) > 1]
    assert len(again) <= 4  # the one it was at, and results it still held: nothing of the other worker's


@pytest.mark.slow
def test_an_error_in_a_dask_job_reaches_the_caller(cluster) -> None:
    with pytest.raises(ZeroDivisionError, match="two"):
        workers.run(fail_on_two, range(4), workers=cluster.scheduler_address)


# -- interrupted ------------------------------------------------------------------------------------------------------

PATIENCE = 60.0  # seconds: robust on a loaded machine


def until(condition, seconds: float = PATIENCE) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks up processes in /proc")
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import os, pathlib, time
        from divulge.core import dask_jobs, workers
        def job(number):
            pathlib.Path({str(tmp_path)!r}, str(number)).write_text(str(os.getpid()))
            time.sleep(600)
        try:
            workers.run(job, range(8), workers=2)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", program], **pipes, text=True, start_new_session=True)
    try:
        assert until(lambda: len([mark for mark in tmp_path.iterdir() if mark.read_text()]) >= 2)
        pids = {int(mark.read_text()) for mark in tmp_path.iterdir()}
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the workers too
        said, errors = process.communicate(timeout=PATIENCE)
        assert (said, errors) == ("interrupted\n", "")
        assert until(lambda: not any(map(alive, pids)))
    finally:
        process.kill()


@pytest.mark.slow
def test_ctrl_c_leaves_no_job_on_a_dask_cluster(cluster, tmp_path: Path) -> None:
    def stop(index: int, result: int) -> None:
        raise KeyboardInterrupt

    job = functools.partial(slow_square, str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        workers.run(job, range(40), workers=cluster.scheduler_address, on_done=stop)
    assert until(lambda: not cluster.scheduler.tasks)
    started = len(list(tmp_path.iterdir()))
    time.sleep(1.0)
    assert len(list(tmp_path.iterdir())) == started < 40


# -- kept on disk -----------------------------------------------------------------------------------------------------


def test_results_of_every_kind_survive_the_disk(tmp_path: Path) -> None:
    import numpy as np
    import torch

    first = workers.checkpointed(mixed, [0, 3], tmp_path)
    again = workers.checkpointed(mixed, [0, 3], tmp_path)
    for result in (*first, *again):
        assert set(result) == {"values", "list", "loss", "none"}
        assert isinstance(result["values"], torch.Tensor)
        assert result["values"].dtype == torch.float64
        assert isinstance(result["list"][1]["array"], np.ndarray)
    assert torch.equal(first[1]["values"], again[1]["values"])
    assert again[1]["list"][1]["array"].tolist() == [0, 1, 2]
    assert again[1]["loss"] == 0.5


def test_what_is_kept_is_not_computed_again(tmp_path: Path) -> None:
    marks, kept = tmp_path / "marks", tmp_path / "kept"
    marks.mkdir()
    job = functools.partial(slow_square, str(marks))
    assert workers.checkpointed(job, [1, 2], kept) == [1, 4]
    seen: dict[int, int] = {}
    assert workers.checkpointed(job, [2, 3, 1], kept, on_done=seen.__setitem__) == [4, 9, 1]
    assert seen == {0: 4, 1: 9, 2: 1}
    assert [runs_of(marks, number) for number in (1, 2, 3)] == [1, 1, 1]


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    marks, kept = tmp_path / "marks", tmp_path / "kept"
    marks.mkdir()
    program = textwrap.dedent(f"""
        import functools, pathlib, time
        from divulge.core import dask_jobs, workers
        def job(number):
            pathlib.Path({str(marks)!r}, f"{{number}}-{{time.monotonic_ns()}}").touch()
            time.sleep(0.1)
            return number * number
        print(workers.checkpointed(job, range(12), {str(kept)!r}))
    """)
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    while not list(kept.glob("*.safetensors")) or len(list(kept.glob("*.safetensors"))) < 3:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    finished = len(list(kept.glob("*.safetensors")))
    assert 3 <= finished < 12
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([i * i for i in range(12)])
    again = [job for job in range(12) if runs_of(marks, job) > 1]
    assert len(again) <= 1  # the one that was under way when it was killed


def test_a_damaged_file_is_computed_again(tmp_path: Path) -> None:
    workers.checkpointed(square, [7], tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:10])
    assert workers.checkpointed(square, [7], tmp_path) == [49]


def test_another_runs_folder_is_refused(tmp_path: Path) -> None:
    workers.checkpointed(square, [1], tmp_path, settings={"epochs": 1})
    with pytest.raises(InvalidInput, match=r"another run \(with other epochs\); choose another folder"):
        workers.checkpointed(square, [1], tmp_path, settings={"epochs": 2})
    with pytest.raises(InvalidInput, match=r"another run \(with other function\)"):
        workers.checkpointed(fail_on_two, [1], tmp_path, settings={"epochs": 1})
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"run\.json cannot be read"):
        workers.checkpointed(square, [1], tmp_path, settings={"epochs": 1})


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot hold a object"):
        workers.checkpointed(lambda job: object(), [1], tmp_path / "a")
    with pytest.raises(InvalidInput, match="text as its dictionary keys"):
        workers.checkpointed(lambda job: {1: 2}, [1], tmp_path / "b")
    with pytest.raises(InvalidInput, match="ready for JSON"):
        workers.checkpointed(square, [object()], tmp_path / "c")  # type: ignore[list-item]
