"""Ctrl-C at random moments of a command, from its first line to its last: one line, exit code 130, no traceback.

Every command is run once to learn how long it takes, then again and again, each time with a SIGINT to its whole process
group, as a terminal sends it, at a moment drawn from that time. A report that an audit leaves is whole, no process of
its group is left, and a Dask cluster that it used has no job of it left.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

PROGRAM = "import os; from divulge.cli import main; os.write(1, b'+'); main()"
"""The command line, with a mark once Python has started and divulge's own first line runs."""
PATIENCE = 120.0
ENDINGS = {0: "finished", 3: "finished", 6: "finished", 130: "stopped", -signal.SIGINT: "stopped at its exit"}
LEFT_BEHIND = ("Traceback", "Exception ignored", "Error:", "KeyboardInterrupt")


NAMES = (
    "help", "audit", "audit with workers", "audit with Dask", "extract", "span", "reconstruct", "informed",
    "membership", "attributes", "bound", "train",
)  # fmt: skip
DASK = "audit with Dask"


def trained(folder: Path) -> str:
    """A small model with its recipe and data beside it, as ``divulge train`` writes them."""
    words = ["train", "--data", "digits", "--binary", "--rows", "60", "--widths", "64,8,1", "--epochs", "100"]
    done = subprocess.run(
        [sys.executable, "-m", "divulge.cli", *words, "--out", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return str(folder)


def command(name: str, model: str, out: str, scheduler: str = "") -> list[str]:
    """The words of a command that works on this model."""
    audit = ["audit", model, "--time", "6s", "--out", out]
    return {
        "help": ["--help"],
        "audit": audit,
        "audit with workers": [*audit, "--require", "membership", "--workers", "2"],
        DASK: [*audit, "--require", "membership", "--workers", scheduler],
        "extract": ["extract", model, "--out", out],
        "span": ["span", model, "--out", out],
        "reconstruct": ["reconstruct", model, "--out", out],
        "informed": ["informed", model, "--leave-out", "3", "--out", out],
        "membership": ["membership", model, "--out", out],
        "attributes": ["attributes", model, "--column", "20", "--out", out],
        "bound": ["bound", "--data", "digits", "--eta", "0.01", "--out", out],
        "train": ["train", "--data", "digits", "--rows", "300", "--epochs", "300", "--out", out],
    }[name]  # fmt: skip


@contextmanager
def cluster() -> Iterator[Any]:
    """A Dask cluster of one worker process, in no session of a command."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as made:
        yield made


def _start(words: Sequence[str]) -> subprocess.Popen[bytes]:
    """A command that has reached its first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.read(1)
    return process


def whole(words: Sequence[str]) -> float:
    """Seconds of the command from its first line to its end, which is a good one."""
    process = _start(words)
    start = time.monotonic()
    _, said = process.communicate(timeout=PATIENCE)
    if ENDINGS.get(process.returncode) != "finished":
        raise RuntimeError(f"{words[0]} ends with exit code {process.returncode} by itself: {said.decode()}")
    return time.monotonic() - start


def one(words: Sequence[str], moment: float, out: Path) -> tuple[str, str]:
    """How the command ended that was interrupted at this moment, and what was wrong with it ("" if nothing)."""
    process = _start(words)
    try:
        time.sleep(moment)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        return "hangs", f"no end within {PATIENCE:g} s"
    ending = ENDINGS.get(process.returncode, "other")
    wrong = f"exit code {process.returncode}" if ending == "other" else ""
    found = [mark for mark in LEFT_BEHIND if mark.encode() in said]
    if found:
        wrong = f"{found[0]}: ... {said[-2000:].decode(errors='replace')}"
    return ending, wrong or _report(out) or _orphans(process.pid)


def _report(out: Path) -> str:
    path = out / "report.json"
    try:
        json.loads(path.read_text()) if path.exists() else None
    except ValueError:
        return "half a report"
    return ""


def _orphans(group: int) -> str:
    """Processes of the command's session that are still there; they get a moment to go."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return ""
        time.sleep(0.05)
    return "a process is left behind"


def _jobs(made: Any) -> str:
    """Jobs that a Dask cluster still has to do; they get a moment to go."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if made is None or not made.scheduler.tasks:
            return ""
        time.sleep(0.05)
    return f"{len(made.scheduler.tasks)} jobs are left on the cluster"


def run(count: int = 20, seed: int = 0, name: str = "help") -> dict[str, Any]:
    """So many moments of a command."""
    draw = random.Random(f"{seed} {name}")
    endings: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as temporary, cluster() if name == DASK else nullcontext() as made:
        model = trained(Path(temporary) / "model") if name not in ("help", "bound", "train") else ""
        out = Path(temporary) / "out"
        words = command(name, model, str(out), made.scheduler_address if made is not None else "")
        seconds = whole(words)
        for _ in range(count):
            shutil.rmtree(out, ignore_errors=True)
            moment = draw.uniform(0, seconds)
            ending, wrong = one(words, moment, out)
            wrong = wrong or _jobs(made)
            endings[ending] += 1
            failures += [f"{name} at {moment:.2f} s: {wrong}"] if wrong else []
    return {"moments": count, "seconds": seconds, **endings, "failures": len(failures), "first_failures": failures[:5]}
