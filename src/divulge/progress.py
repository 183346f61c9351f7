"""How a long computation tells whoever is watching where it stands, without knowing who that is.

An attack calls ``report("finding kinks", done=12, total=128, queries=40)``; the command line listens with a progress
bar, the audit with its planner, and with nobody listening it costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Step:
    """Where a computation stands: its stage, how much of it is done, and facts worth showing."""

    stage: str
    done: float | None = None
    total: float | None = None
    facts: dict[str, object] = field(default_factory=dict)


Listener = Callable[[Step], None]
_listener: ContextVar[Listener | None] = ContextVar("divulge_progress_listener", default=None)


_watch: ContextVar[Callable[[], None] | None] = ContextVar("divulge_watch", default=None)


def tick() -> None:
    """A moment at which whoever watches may stop the computation by raising: every report, and every query."""
    watch = _watch.get()
    if watch is not None:
        watch()


@contextmanager
def watched(watch: Callable[[], None]) -> Iterator[None]:
    """Call ``watch`` at every tick inside the block."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def report(stage: str, done: float | None = None, total: float | None = None, **facts: object) -> None:
    """Tell the listener, if there is one."""
    tick()
    listener = _listener.get()
    if listener is not None:
        listener(Step(stage, done, total, facts))


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send every report inside the block to ``listener``."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
