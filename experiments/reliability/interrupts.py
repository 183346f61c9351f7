"""Ctrl-C at random moments of a command, from its first line to its last: one line, exit code 130, no traceback.

Every command is run once to learn how long it takes, then again and again, each time with a SIGINT to its whole process
group, as a terminal sends it, at a moment drawn from that time. A report that an audit leaves is whole.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from divulge.models import MLP, save

PROGRAM = "import os; from divulge.cli import main; os.write(1, b'+'); main()"
"""The command line, with a mark once Python has started and divulge's own first line runs."""
PATIENCE = 120.0
LEFT_BEHIND = ("Traceback", "Exception ignored", "Error:", "KeyboardInterrupt")


def commands(folder: Path) -> dict[str, list[str]]:
    """What is interrupted, working on a model in this folder."""
    model = save(MLP([4, 3, 1]).double(), folder / "model")
    audit = ["audit", str(model), "--time", "4s", "--out", str(folder / "out")]
    return {"help": ["--help"], "audit": audit, "audit with workers": [*audit, "--workers", "2"]}


def _start(words: Sequence[str]) -> subprocess.Popen[bytes]:
    """A command that has reached its first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.read(1)
    return process


def whole(words: Sequence[str]) -> float:
    """Seconds of the command from its first line to its end."""
    process = _start(words)
    start = time.monotonic()
    process.communicate(timeout=PATIENCE)
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
    ending = {0: "finished", 130: "stopped", -signal.SIGINT: "stopped at its exit"}.get(process.returncode, "other")
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


def run(count: int = 20, seed: int = 0, names: Sequence[str] = ()) -> dict[str, Any]:
    """So many moments of every command."""
    draw = random.Random(seed)
    endings: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "out"
        for name, words in commands(Path(temporary)).items():
            if names and name not in names:
                continue
            seconds = whole(words)
            for _ in range(count):
                moment = draw.uniform(0, seconds)
                ending, wrong = one(words, moment, out)
                endings[ending] += 1
                failures += [f"{name} at {moment:.2f} s: {wrong}"] if wrong else []
    return {"moments": sum(endings.values()), **endings, "failures": len(failures), "first_failures": failures[:5]}
