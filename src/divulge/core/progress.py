"""How a long computation says where it stands, without knowing who is watching.

An attack calls ``report("finding kinks", done=12, total=128, queries=40)``. The command line listens with a progress
bar, the audit with its schedule. In a notebook a computation of more than two seconds shows a bar below its cell;
``divulge.progress.silence()`` turns that off. A program that uses the library sees and prints nothing, and without a
listener a report costs next to nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

PATIENCE = 2.0  # seconds before a notebook shows anything
EVERY = 0.25  # seconds between two updates of it
WHOLE = "audit"
"""The stage that stands for the whole run; every other stage is a part of it and makes room for the next."""


@dataclass(frozen=True)
class Step:
    """Where a computation stands.

    Parameters
    ----------
    stage : str
        What it is doing.
    done : float, optional
        How much of the stage is done.
    total : float, optional
        How much there is to do.
    facts : dict
        Figures worth showing, by name.

    Examples
    --------
    >>> Step("training", done=3, total=10).done
    3
    """

    stage: str
    done: float | None = None
    total: float | None = None
    facts: dict[str, object] = field(default_factory=dict)


Listener = Callable[[Step], None]
_listener: ContextVar[Listener | None] = ContextVar("divulge_progress_listener", default=None)
_watch: ContextVar[Callable[[], None] | None] = ContextVar("divulge_watch", default=None)


def tick() -> None:
    """A moment at which a watcher may stop the computation by raising: every report, and every query."""
    watch = _watch.get()
    if watch is not None:
        watch()


@contextmanager
def watched(watch: Callable[[], None]) -> Iterator[None]:
    """Call ``watch`` at every tick inside the block.

    Parameters
    ----------
    watch : callable
        Takes nothing. What it raises ends the computation.
    """
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def report(stage: str, done: float | None = None, total: float | None = None, **facts: object) -> None:
    """Say where the computation stands, to the listener if there is one, else to the notebook if there is one.

    Parameters
    ----------
    stage : str
        What the computation is doing.
    done, total : float, optional
        How much of it is done, and of how much.
    **facts
        Figures worth showing.
    """
    tick()
    listener = _listener.get()
    if listener is not None:
        listener(Step(stage, done, total, facts))
    elif _notebook.shown and "IPython" in sys.modules:
        _notebook.report(Step(stage, done, total, facts))


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send every report inside the block to ``listener``.

    Parameters
    ----------
    listener : callable
        Takes a ``Step``.

    Examples
    --------
    >>> steps = []
    >>> with listening(steps.append):
    ...     report("training", 3, 10, loss=0.5)
    >>> steps[0].stage, steps[0].done, steps[0].facts
    ('training', 3, {'loss': 0.5})
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def silence() -> None:
    """Show no progress in notebooks.

    Examples
    --------
    >>> import divulge
    >>> divulge.progress.silence()
    >>> divulge.progress.show()
    """
    _notebook.shown = False


def show() -> None:
    """Show progress in notebooks again, after ``silence``."""
    _notebook.shown = True


class _Notebook:
    """A bar below the cell that runs: shown after some seconds, removed when the cell ends."""

    def __init__(self) -> None:
        self.shown = True
        self._begun: float | None = None
        self._updated = 0.0
        self._steps: dict[str, Step] = {}
        self._display: Any = None
        self._shell: Any = None

    def report(self, step: Step) -> None:
        if threading.current_thread() is not threading.main_thread() or not self._in_kernel():
            return
        now = time.monotonic()
        self._begun = now if self._begun is None else self._begun
        self._steps = {name: old for name, old in self._steps.items() if name == WHOLE} | {step.stage: step}
        if now - self._begun < PATIENCE or now - self._updated < EVERY:
            return
        ipython: Any = import_module("IPython.display")
        self._updated = now
        page = ipython.HTML("".join(_line(shown, now - self._begun) for shown in self._steps.values()))
        if self._display is None:
            self._display = ipython.display(page, display_id=True)
        else:
            self._display.update(page)

    def _in_kernel(self) -> bool:
        """Whether this is a notebook's kernel; from then on the end of each cell is observed."""
        shell = sys.modules["IPython"].get_ipython()
        if shell is None or not hasattr(shell, "kernel"):
            return False
        if shell is not self._shell:
            self._shell = shell
            shell.events.register("post_run_cell", self._end)
        return True

    def _end(self, *_: object) -> None:
        if self._display is not None:
            ipython: Any = import_module("IPython.display")
            self._display.update(ipython.HTML(""))
        self._begun, self._steps, self._display = None, {}, None


def _line(step: Step, seconds: float) -> str:
    from divulge.core.html import cell

    facts = ", ".join(f"{name} {value}" for name, value in step.facts.items())
    done = "" if step.done is None or step.total is None else f' value="{step.done:g}" max="{max(step.total, 1e-9):g}"'
    return f"<div><progress{done}></progress> {cell(step.stage)} {cell(facts)} ({seconds:.0f} s)</div>"


_notebook = _Notebook()
