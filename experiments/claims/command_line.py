"""The command line: one JSON object on standard output, and the exit code of a gate, against what the report lists."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from divulge.auditing import available_probes
from experiments.claims.checks.checked import Checked
from experiments.claims.checks.verdicts import OVER, expected_code, expected_state
from experiments.claims.subject import Subject

START_UP = 3.0
"""How many times the start of Python and its libraries, measured beside it, a command may take beyond its audit: it
also reads files, and writes the report."""
LIBRARIES = "import divulge.cli, divulge.auditing, sklearn.base, matplotlib.pyplot, torch._dynamo"


@dataclass(frozen=True)
class Gate:
    """Options of a gate, and the seconds that the audit may take."""

    fail_on: str | None = None
    require: tuple[str, ...] = ()
    seconds: float = 12.0

    def words(self) -> list[str]:
        """The options as the shell takes them."""
        said = ["--time", f"{self.seconds:g}s"]
        said += ["--fail-on", self.fail_on] if self.fail_on is not None else []
        return [*said, "--require", ",".join(self.require)] if self.require else said


def written(subject: Subject, folder: Path) -> list[str]:
    """The model and its training rows as files, and the words that name them."""
    model, table = folder / "model.pkl", folder / "rows.npz"
    model.write_bytes(pickle.dumps(subject.model))
    np.savez(table, X=np.asarray(subject.table.training.X, dtype=np.float64), y=np.asarray(subject.table.training.y))
    return [str(model), "--trust-pickle", "--data", str(table)]


def run(subject: Subject, gate: Gate, folder: Path) -> tuple[int, dict[str, Any], float]:
    """The exit code, the JSON object, and the seconds by the clock on the wall."""
    words = [*written(subject, folder), *gate.words(), "--json", "--out", str(folder / "out")]
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "divulge.cli", "audit", *words], capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if not done.stdout.strip():
        raise RuntimeError(f"divulge audit printed nothing and exited with {done.returncode}: {done.stderr.strip()}")
    return done.returncode, json.loads(done.stdout), seconds


def start_up() -> float:
    """Seconds that Python and the libraries of an audit take to start now."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", LIBRARIES], check=True)
    return time.perf_counter() - started


def check(subject: Subject, gate: Gate, folder: Path) -> list[Checked]:
    """The exit code, the state and the time of an audit by the command line."""
    code, report, seconds = run(subject, gate, folder)
    stake = {probe.name: probe.at_stake for probe in available_probes()}
    expected = expected_code(report, fail_on=gate.fail_on, require=gate.require, stake=stake)
    state = expected_state(report)
    allowed, start = (1 + OVER) * gate.seconds, start_up()
    return [
        Checked("exit code", f"{' '.join(gate.words())} exits {code}", f"by what ran: {expected}", code == expected),
        Checked("verdict", f"state: {report['state']}", f"by what ran: {state}", report["state"] == state),
        Checked("time", f"{report['seconds']} s of {gate.seconds:g}", f"{seconds:.1f} s with a start of {start:.1f} s",
                report["seconds"] <= allowed and seconds <= allowed + START_UP * start),
    ]  # fmt: skip
