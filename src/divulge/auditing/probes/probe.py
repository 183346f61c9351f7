"""One attack as the audit runs it: whether it fits, what it costs, what it found, and the time that it may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from divulge.auditing.target import Target
from divulge.auditing.wording import seconds as in_seconds
from divulge.core import progress
from divulge.core.errors import DivulgeError
from divulge.report.findings import Finding, Severity


class TimeUp(DivulgeError):
    """The time that an attack was given ran out before the attack ended.

    Examples
    --------
    >>> from divulge.auditing import TimeUp
    >>> TimeUp("3 seconds were not enough for this attack.").exit_code
    3
    """

    exit_code = 3


@dataclass(frozen=True)
class Probe:
    """An attack as the audit runs it.

    Parameters
    ----------
    name : str
        Identifies the probe and its finding, such as ``"copy-from-values"``.
    title : str
        What the report calls the attack.
    obstacle : callable
        From a :class:`Target` to why the attack does not fit it, in one sentence; an empty string if it fits.
    run : callable
        From a :class:`Target` and the seconds that the attack may use to a :class:`Finding`. It raises
        :class:`TimeUp` if they were not enough to say anything.
    seconds : callable, optional
        From a :class:`Target` to the seconds that the attack is expected to take. 30 by default.
    at_stake : {"critical", "high", "medium", "low", "none"}, default "critical"
        How severe its finding is if it succeeds; "none" for advice. Cheap attacks with much at stake run first.
    early : callable, optional
        From a :class:`Target` to whether this attack runs before all that are not early: it is the one that fits best.
    first_answer : callable, optional
        From a :class:`Target` to the seconds after which the attack can say something, where it goes on to do better.
        It counts instead of ``seconds`` when the time is not enough for every attack.

    Examples
    --------
    >>> from divulge.auditing import Finding, Probe
    >>> def run(target, seconds):
    ...     return Finding("constant", "copy", "label client", "It answers the same everywhere", "failed", "none",
    ...                    "Nothing was taken.", "Ten inputs were tried.")
    >>> Probe("constant", "A constant model", lambda target: "", run, at_stake="high").at_stake
    'high'
    """

    name: str
    title: str
    obstacle: Callable[[Target], str]
    run: Callable[[Target, float], Finding]
    seconds: Callable[[Target], float] = lambda target: 30.0
    at_stake: Severity = "critical"
    early: Callable[[Target], bool] = lambda target: False
    first_answer: Callable[[Target], float] | None = None

    def expected(self, target: Target, *, short: bool) -> float:
        """The seconds that it should have, where the time is ``short`` for all attacks those for a first answer."""
        return self.first_answer(target) if short and self.first_answer is not None else self.seconds(target)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Stop the attack inside the block at its next query or progress report once the time is up.

    Parameters
    ----------
    seconds : float
        How long the block may take.

    Yields
    ------
    None
        Nothing; the block runs.

    Raises
    ------
    TimeUp
        At the first query or progress report after that.

    Examples
    --------
    >>> from divulge.auditing import deadline
    >>> with deadline(60.0):
    ...     print("in time")
    in time
    """
    end = time.perf_counter() + seconds

    def watch() -> None:
        if time.perf_counter() > end:
            raise TimeUp(too_short(seconds))

    with progress.watched(watch):
        yield


def too_short(seconds: float) -> str:
    """Why an attack did not run to its end."""
    return f"The time that this attack was given ({in_seconds(seconds)}) was not enough."
