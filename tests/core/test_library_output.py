"""What compiled libraries print does not reach standard output."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import ctypes
from divulge.core.library_output import silent_libraries
print("ours before")
with silent_libraries():
    ctypes.CDLL(None).puts(b"theirs")
print("ours after")
"""


def test_what_a_library_prints_is_dropped_also_where_it_is_held_back_in_a_pipe() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n") == ["ours before", "ours after", ""]
    assert done.stderr == ""


def test_a_process_without_standard_output_goes_on() -> None:
    code = f"import os; os.close(1)\n{CODE.replace('print', 'str')}"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
