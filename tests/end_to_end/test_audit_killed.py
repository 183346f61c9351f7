"""An audit of a live endpoint goes on after a SIGKILL: nothing is asked twice, no finished attack is run again."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from divulge.oracles.remote.journal import KEY

SERVED = """
import torch

class Counting(torch.nn.Module):
    input_shape = (4,)

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
        self.w = draw(4, 1)

    def forward(self, X):
        with open({log!r}, "a") as log:
            log.write("".join(row.numpy().tobytes().hex() + "\\n" for row in X))
        return X @ self.w + 0.3

def model():
    return Counting()
"""
RUN = "from divulge.cli import main; main()"


def asked(log: Path) -> Counter[str]:
    return Counter(log.read_text().split()) if log.exists() else Counter()


def recorded(journal: Path) -> int:
    if not journal.exists():
        return 0
    with sqlite3.connect(journal) as db:
        return sum(len(keys) // KEY for (keys,) in db.execute("SELECT keys FROM responses"))


@pytest.mark.slow
def test_a_killed_audit_goes_on_and_asks_nothing_twice(tmp_path: Path) -> None:
    log, out = tmp_path / "asked.txt", tmp_path / "audit"
    (tmp_path / "counting.py").write_text(SERVED.format(log=str(log)))
    command = [sys.executable, "-c", RUN]
    served = [*command, "serve", f"{tmp_path / 'counting.py'}:model", "--port", "0", "--json"]
    with subprocess.Popen(served, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = json.loads(server.stdout.readline())["url"]  # type: ignore[union-attr]
            log.unlink(missing_ok=True)  # what the server asked its own model when it opened it
            first = subprocess.Popen([*command, "audit", url, "--out", str(out), "--time", "60s", "--quiet"])
            finding = out / "findings" / "copy-from-values.json"
            deadline = time.monotonic() + 90
            while not finding.exists():
                assert time.monotonic() < deadline
                time.sleep(0.005)
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            time.sleep(0.3)  # what was under way at the server ends
            written, before, kept = finding.stat().st_mtime_ns, asked(log), recorded(out / "answers.db")
            again = subprocess.run(
                [*command, "audit", url, "--resume", str(out), "--time", "60s", "--json"], capture_output=True,
                text=True, check=True,
            )  # fmt: skip
        finally:
            server.terminate()
    report = json.loads(again.stdout)
    assert report["finished"]
    assert "copy-from-values" in {found["name"] for found in report["findings"]}
    assert finding.stat().st_mtime_ns == written  # the finished attack was not run again
    twice = [row for row, times in asked(log).items() if times > 1]
    assert len(twice) <= sum(before.values()) - kept  # at most what was under way at the kill
    assert recorded(out / "answers.db") >= kept > 0
