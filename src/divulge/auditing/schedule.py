"""Runs the probes that fit a target within the time, and keeps each finding as soon as it is made.

Required probes run first, then cheap ones with much at stake: the order is by expected seconds over a weight of the
severity. While the time is enough for everything that waits, each probe gets its part of it. When it is not, a probe
that should need less than half of it gets up to three times what it needs, one that should need less than all of it
gets half, and any other one an equal part. A probe that can say something early, and improves on it later, then counts
by the seconds of its first answer. Required probes share the time among themselves first. What is left in the end goes
to the probes that their time was too short for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from divulge.auditing.hard_stop import hard_stop
from divulge.auditing.probes.probe import Probe, TimeUp
from divulge.auditing.store import Store
from divulge.auditing.target import Target
from divulge.core import progress
from divulge.core.errors import (
    AttackFailed,
    BudgetExhausted,
    DivulgeError,
    InvalidInput,
    NonFiniteAnswer,
    NotDeterministic,
    TargetError,
)
from divulge.core.memory import is_shortage
from divulge.report.findings import Ending, Finding, Severity, Skipped

LEAST_SECONDS = 1.0
"""A probe is not started with less time than this."""
AT_ONCE = 0.1
"""Expected seconds up to which a probe is run even if the time is used up."""
SLACK = 3.0
"""How many times its expected seconds a probe may take while others wait for more time than there is."""
GRACE = 0.05
"""Part of a probe's time, beyond it, after which it is stopped even if it does not poll the deadline."""
_WEIGHTS: dict[Severity, float] = {"critical": 8.0, "high": 4.0, "medium": 2.0, "low": 1.0, "none": 0.25}
SAMPLE = 0.05
"""Seconds of computing that show how busy the machine is."""
LONGEST_SAMPLE = 0.2
"""Seconds that this may take by the clock."""
MORE = 1.5
"""A probe is run again in the end if so many times the seconds that were too short for it are left."""
OUT_OF_TIME = "the time was used up; give the audit more of it."
INTERRUPTED = "the audit was stopped before this attack ended."


@dataclass
class Results:
    """What the probes found, and which did not run to their end."""

    findings: list[Finding] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    interrupted: bool = False
    short: dict[str, float] = field(default_factory=dict)
    """The seconds that were too short, by probe."""
    seconds_before: float = 0.0
    """What the findings took that earlier runs of the same audit made."""

    def skip(self, probe: Probe, reason: str, ending: Ending, *, target_failed: bool = False) -> None:
        """Say why a probe has no finding."""
        self.skipped.append(Skipped(probe.name, probe.title, reason, ending, probe.at_stake, target_failed))


def run_all(probes: list[Probe], target: Target, end: float, store: Store | None) -> Results:
    """Run every probe that fits until ``end`` on the performance counter, and say why the others did not run."""
    results = Results()
    waiting: list[Probe] = []
    slowdown = contention()
    try:
        waiting += _fitting(probes, target, results)
        short = slowdown * sum(probe.seconds(target) for probe in waiting) > end - time.perf_counter()
        waiting = ordered(waiting, target, short=short)
        total = len(waiting)
        while waiting:
            left = end - time.perf_counter()
            progress.report("audit", total - len(waiting), total, now=waiting[0].title, until=_clock(left))
            expected = [max(0.1, slowdown * probe.expected(target, short=short)) for probe in waiting]
            _next(waiting, expected, left, target, store, results)
            waiting.pop(0)
        for probe in ordered([probe for probe in probes if probe.name in results.short], target):
            waiting = [probe]
            _again(probe, end - time.perf_counter(), total, target, store, results)
        waiting = []
    except KeyboardInterrupt:
        results.interrupted = True
        listed = {skip.name for skip in results.skipped}
        for place, probe in enumerate(probe for probe in waiting if probe.name not in listed):
            results.skip(probe, INTERRUPTED, "not tried" if place else "unfinished")
    return results


def _clock(seconds: float) -> str:
    """The time of day in so many seconds."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() + max(0.0, seconds)))


def ordered(probes: list[Probe], target: Target, *, short: bool = False) -> list[Probe]:
    """Required probes first, then those that fit best, then by expected seconds over the weight of what is at stake."""
    required = target.options.require

    def rank(probe: Probe) -> tuple[bool, bool, float]:
        early = probe.early(target) or probe.seconds(target) <= AT_ONCE
        return probe.name not in required, not early, probe.expected(target, short=short) / _WEIGHTS[probe.at_stake]

    return sorted(probes, key=rank)


def allowance(expected: list[float], left: float) -> float:
    """The seconds for the first of these probes, by what each is expected to take."""
    total = sum(expected)
    if total <= left:
        return left * expected[0] / total
    if expected[0] <= left / 2:
        return min(left / 2, SLACK * expected[0])
    return left / 2 if expected[0] <= left else left / len(expected)


def contention() -> float:
    """How many times longer than its own computing time this process takes now, because others compute too."""
    wall, own = time.perf_counter(), time.process_time()
    while time.process_time() - own < SAMPLE and time.perf_counter() - wall < LONGEST_SAMPLE:
        sum(range(1000))
    return max(1.0, (time.perf_counter() - wall) / max(time.process_time() - own, 1e-3))


def _fitting(probes: list[Probe], target: Target, results: Results) -> list[Probe]:
    fitting = []
    for probe in probes:
        try:
            reason = probe.obstacle(target)
        except Exception as fault:  # of one attack; the others are worth running
            results.skip(probe, _fault(fault, target.options.memory), "unfinished")
            continue
        if reason:
            results.skip(probe, reason, "does not fit")
        else:
            fitting.append(probe)
    return fitting


def _next(
    waiting: list[Probe], expected: list[float], left: float, target: Target, store: Store | None, results: Results
) -> None:
    """Load the finding of an earlier run, or run the first probe with its part of the time that is left."""
    probe = waiting[0]
    kept = store.load(probe.name) if store is not None else None
    if kept is not None:
        results.findings.append(kept)
        results.seconds_before += kept.seconds
    elif probe.seconds(target) <= AT_ONCE:
        _run_one(probe, target, max(left, LEAST_SECONDS), store, results)
    elif left < LEAST_SECONDS:
        results.skip(probe, OUT_OF_TIME, "not tried")
    else:
        required = sum(other.name in target.options.require for other in waiting)  # they are the first ones
        share = allowance(expected[:required] or expected, left)
        if probe.early(target):
            share = max(share, min(left / 2, expected[0]))
        _run_one(probe, target, min(left, max(LEAST_SECONDS, share)), store, results)


def _again(probe: Probe, left: float, total: int, target: Target, store: Store | None, results: Results) -> None:
    """Run a probe once more that its time was too short for, if much more of it is left now."""
    if left < max(LEAST_SECONDS, MORE * results.short[probe.name]):
        return
    progress.report("audit", total - 1, total, now=probe.title, until=_clock(left))
    before = next(skip for skip in results.skipped if skip.name == probe.name)
    results.skipped.remove(before)
    _run_one(probe, target, left, store, results)


def _run_one(probe: Probe, target: Target, seconds: float, store: Store | None, results: Results) -> None:
    """Run one probe. An attack that cannot finish does not end the audit, and neither does a fault of its own."""
    try:
        with hard_stop((1 + GRACE) * seconds, given=seconds):
            finding = probe.run(target, seconds)
    except DivulgeError as raised:
        error = _first_cause(raised)
        if isinstance(error, TimeUp):
            results.short[probe.name] = seconds
        failed = isinstance(error, TargetError) and not isinstance(error, NonFiniteAnswer | NotDeterministic)
        results.skip(probe, str(error), _ending(error), target_failed=failed)
        return
    except Exception as fault:  # what the other attacks found is worth more than a clean stop
        results.skip(probe, _fault(fault, target.options.memory), "unfinished")
        return
    if not target.options.show_records:
        finding = finding.without_records()
    if store is not None and finding.outcome != "inconclusive":
        store.save(finding)
    results.findings.append(finding)


def _fault(fault: Exception, allowed: float) -> str:
    """What an error means that is none of divulge's own: the end of the time, a lack of memory, or a fault."""
    cause = _first_cause(fault)
    if isinstance(cause, TimeUp):
        return str(cause)
    if is_shortage(fault):
        return f"It needs more memory than the {allowed:g} GiB that the audit may use."
    return f"A fault of its own ({type(fault).__name__}: {fault})."


def _first_cause(error: BaseException) -> BaseException:
    """The end of the time, if that is what this error comes from: the alarm may go off inside a call of the model."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TimeUp):
            return cause
        cause = cause.__cause__ or cause.__context__
    return error


def _ending(error: BaseException) -> Ending:
    """How an attack ended that raised this error.

    One that used up the budget ran to its end: the budget is part of what the adversary may do.
    """
    if isinstance(error, TimeUp):
        return "unfinished"
    if isinstance(error, AttackFailed | BudgetExhausted):
        return "failed"
    return "does not fit" if isinstance(error, InvalidInput) else "unfinished"
