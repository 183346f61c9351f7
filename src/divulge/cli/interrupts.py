"""Ctrl-C at any moment of a command: one line, exit code 130, no traceback.

Python raises ``KeyboardInterrupt`` wherever it happens to be. Inside an import that leaves half a module behind, and
compiled modules turn it into other errors or print it. Here it waits for the end of the import; a second Ctrl-C while
the first one waits ends the process at once. After the command the operating system's own answer is back, which prints
nothing: nobody catches an exception in the interpreter's last steps.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from divulge.core.importing import importing

EXIT_CODE = 130
STOPPED = "divulge: stopped."
_AGAIN = 0.02  # seconds between two looks at whether the import is over


@contextmanager
def interruptible() -> Iterator[None]:
    """Answer Ctrl-C inside the block with one line and the exit code 130."""
    try:
        _answer(_Waiting())
        yield
    except KeyboardInterrupt:
        print(STOPPED, file=sys.stderr)
        raise SystemExit(EXIT_CODE) from None
    finally:
        _answer(signal.SIG_DFL)


def _answer(handler: Any) -> None:
    with suppress(ValueError):  # not in the main thread, which is the one that Ctrl-C reaches
        signal.signal(signal.SIGINT, handler)


class _Waiting:
    """A handler that raises ``KeyboardInterrupt``, after the import that is under way if there is one."""

    def __init__(self) -> None:
        self._waits = self._looks = False
        self._main_thread = _thread.get_ident()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        looks, self._looks = self._looks, False
        if not importing(frame):
            self._waits = False
            raise KeyboardInterrupt
        if self._waits and not looks:
            os.write(2, f"{STOPPED}\n".encode())
            os._exit(EXIT_CODE)
        self._waits = True
        _thread.start_new_thread(self._look_again, ())  # no lock is taken, which the import may hold

    def _look_again(self) -> None:
        time.sleep(_AGAIN)
        self._looks = True
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(self._main_thread, signal.SIGINT)  # also ends a system call that waits
        else:
            _thread.interrupt_main(signal.SIGINT)
