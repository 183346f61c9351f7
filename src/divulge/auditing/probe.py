"""One attack as the audit sees it: does it fit, and what did it find? And the clock that every attack runs against."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from divulge import progress
from divulge.auditing.finding import Finding
from divulge.auditing.target import Target
from divulge.errors import DivulgeError


class TimeUp(DivulgeError):
    """The audit's time ran out in the middle of an attack."""

    exit_code = 3


@dataclass(frozen=True)
class Probe:
    """An attack, when it fits a target (``obstacle`` answers why not, or nothing), and how to run it."""

    name: str
    title: str
    obstacle: Callable[[Target], str]
    run: Callable[[Target, float], Finding]
    """Takes the target and the seconds it may use."""
    share: float = 1.0
    """Its part of the time that is left, relative to the others."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Stop the attack inside the block at its next query or progress report once the time is up."""
    end = time.perf_counter() + seconds

    def watch() -> None:
        if time.perf_counter() > end:
            raise TimeUp(f"The {seconds:.0f} seconds that this attack was given were not enough.")

    with progress.watched(watch):
        yield
