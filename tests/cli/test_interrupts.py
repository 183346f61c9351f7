"""Ctrl-C at any moment of a command: one line, exit code 130, no traceback, no half-imported module."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from experiments.reliability import interrupts as moments

from divulge.cli import interrupts

pytestmark = pytest.mark.skipif(os.name == "nt", reason="sends signals")
PRESS = "os.kill(os.getpid(), signal.SIGINT)"


def run(tmp_path, module: str, program: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own, beside a module ``slow`` that it may import."""
    (tmp_path / "slow.py").write_text("import os, signal, time\n" + textwrap.dedent(module))
    start = "import os, signal, sys, time\nfrom divulge.cli.interrupts import interruptible\n"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    return subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_in_an_import_it_waits_for_the_end_of_it(tmp_path):
    done = run(
        tmp_path,
        f"{PRESS}\ntime.sleep(0.2)\nprint('whole', flush=True)",
        """
        with interruptible():
            try:
                import slow
                time.sleep(60)
            except KeyboardInterrupt:
                print(sys.modules["slow"].time is time)
                raise
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "whole\nTrue\n", "divulge: stopped.\n")


def test_a_second_one_in_an_import_ends_at_once(tmp_path):
    module = f"{PRESS}\ntime.sleep(0.2)\n{PRESS}\nfor _ in range(600):\n    time.sleep(0.1)"
    done = run(tmp_path, module, "with interruptible():\n    import slow")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "divulge: stopped.\n")


def test_elsewhere_it_stops_the_command(tmp_path):
    done = run(tmp_path, "", f"with interruptible():\n    {PRESS}\n    time.sleep(60)")
    assert (done.returncode, done.stderr) == (130, "divulge: stopped.\n")


def test_in_the_last_steps_of_the_interpreter_nothing_is_printed(tmp_path):
    program = f"import atexit\natexit.register(lambda: {PRESS})\nwith interruptible():\n    pass"
    done = run(tmp_path, "", program)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_what_a_command_raises_passes():
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as ended, interrupts.interruptible():
            raise SystemExit(3)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 3


@pytest.mark.slow
def test_random_moments_of_a_command():
    result = moments.run(6, seed=3, name="help")
    assert result["first_failures"] == []
    assert result["moments"] == 6
