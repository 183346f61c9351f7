"""A Dask scheduler that hangs, dies or never answers: an interrupt still ends the run at once and as an interrupt."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from divulge.core import dask_jobs, workers
from divulge.core.aside import Aside
from divulge.core.errors import InvalidInput, WorkerLost

pytestmark = pytest.mark.skipif(os.name == "nt", reason="sends signals")
PATIENCE = 60.0  # seconds: robust on a loaded machine


class Client:
    """A client that is slow to open, and notes that it was closed."""

    def __init__(self, opened: threading.Event) -> None:
        self.status, self.closed = "running", threading.Event()
        opened.wait(PATIENCE)

    def cancel(self, futures: list[object]) -> None:
        pass

    def close(self, timeout: float) -> None:
        self.closed.set()


def test_a_client_that_opens_after_nobody_waits_is_closed() -> None:
    opened, made = threading.Event(), []
    opening = Aside(lambda: made.append(Client(opened)) or made[0], undo=dask_jobs._close)
    with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
        opening.wait(0.01)
    opened.set()
    end = time.monotonic() + PATIENCE
    while not made and time.monotonic() < end:
        time.sleep(0.01)
    assert made[0].closed.wait(PATIENCE)


def test_a_client_that_cannot_be_closed_is_left() -> None:
    opened = threading.Event()
    opened.set()
    client = Client(opened)
    client.close = lambda timeout: (_ for _ in ()).throw(TimeoutError)  # type: ignore[method-assign]
    dask_jobs._close(client)
    assert client.status == "closed"  # so that its destructor does not wait for it again


def test_a_port_that_never_answers_is_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(dask_jobs, "CONNECT_SECONDS", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        with pytest.raises(InvalidInput, match=r"no Dask scheduler at tcp://.*no answer within 0\.5 s"):
            workers.run(abs, [1], workers=f"tcp://127.0.0.1:{silent.getsockname()[1]}")
    assert time.monotonic() - began < PATIENCE / 2


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """The address and the process of a scheduler without workers."""
    pytest.importorskip("distributed")
    file = tmp_path / "scheduler.json"
    words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    process = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", *words], stderr=subprocess.DEVNULL
    )
    try:
        yield _address(file), process.pid
    finally:
        process.kill()
        process.wait()


def _address(file: Path) -> str:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            return str(json.loads(file.read_text())["address"])
        except (OSError, ValueError):
            time.sleep(0.1)
    raise AssertionError("the scheduler did not start")


@pytest.mark.slow
def test_a_lost_scheduler_is_said_in_a_sentence(scheduler: tuple[str, int]) -> None:
    address, process = scheduler
    threading.Timer(1.0, os.kill, (process, signal.SIGKILL)).start()
    with pytest.raises(WorkerLost, match=r"Dask scheduler at tcp://.* was lost"):
        workers.run(abs, [1], workers=address)


@pytest.mark.slow
def test_ctrl_c_while_the_scheduler_reads_nothing(scheduler: tuple[str, int]) -> None:
    address, process = scheduler
    program = textwrap.dedent(f"""
        import os, signal, warnings
        from divulge.cli.interrupts import interruptible
        from divulge.core import workers
        class Large:  # too large for the buffers of a connection
            def __reduce__(self):
                os.kill({process}, signal.SIGSTOP)  # connected, and from here on it reads nothing
                return bytes, (os.urandom(50_000_000),)
            def __call__(self, job):
                return job
        with interruptible(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its size
            import distributed
            print("begins", flush=True)
            workers.run(Large(), range(4), workers={address!r})
    """)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    run = subprocess.Popen([sys.executable, "-c", program], **pipes, text=True, start_new_session=True)
    try:
        assert run.stdout is not None
        run.stdout.readline()
        time.sleep(3.0)
        os.killpg(run.pid, signal.SIGINT)
        _, said = run.communicate(timeout=PATIENCE)
    finally:
        run.kill()
    assert (run.returncode, said) == (130, "divulge: stopped.\n")
