"""``divulge serve`` in a process of its own, and what a process holds in memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from divulge.models import MLP, save


@contextmanager
def served(model: MLP, *options: str) -> Iterator[tuple[str, int]]:
    """The address and the process of a served network."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = save(model, Path(temporary) / "model")
        program = "from divulge.cli import main; main()"
        command = [sys.executable, "-c", program, "serve", str(folder), "--port", "0", "--json", *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield json.loads(process.stdout.readline())["url"], process.pid
            finally:
                process.terminate()


def memory_mb(pid: int) -> float:
    """Megabytes that a process holds; 0 where the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)
