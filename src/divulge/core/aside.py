"""A call in a thread of its own, for calls that know no time limit and that a signal must not interrupt."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Aside(Generic[Result]):
    """A call that has begun in a thread of its own. ``undo`` gets its result if nobody waits for it any more."""

    def __init__(self, call: Callable[[], Result], undo: Callable[[Result], object] | None = None) -> None:
        self._call, self._undo = call, undo
        self._results: list[Result] = []
        self._error: Exception | None = None
        self._ended, self._left, self._lock = threading.Event(), False, threading.Lock()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except Exception as error:
            self._error = error
        with self._lock:
            self._ended.set()
        if self._left and self._results and self._undo is not None:
            self._undo(self._results[0])

    def wait(self, seconds: float | None) -> Result:
        """What the call returns or raises; ``TimeoutError`` if that takes longer."""
        try:
            if not self._ended.wait(seconds):
                raise TimeoutError(f"no answer within {seconds:g} s")
        except BaseException:
            with self._lock:
                self._left = not self._ended.is_set()
            raise
        if self._error is not None:
            raise self._error
        return self._results[0]
