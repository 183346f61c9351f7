"""Runs an audit and records what its attacks returned, so that others can judge the copies and the rebuilt records.

The report of an audit states what an attack got and does not hold it. Here the public functions of the attacks are
replaced for the time of the audit by ones that call them and note the result, with the probe that was running.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import divulge
from divulge.auditing import available_probes
from divulge.core.errors import DivulgeError
from divulge.core.progress import Step, listening
from experiments.claims.subject import Subject, Table

ATTACKS = {
    divulge.extraction: (
        "from_values", "from_gradients", "deep_from_gradients", "from_tree_values", "from_labels", "by_training",
    ),
    divulge.span: ("from_gradients", "from_labels"),
    divulge.informed: ("glm", "direct"),
    divulge.reconstruction: ("from_weights", "from_forest"),
    divulge.membership: ("attack", "on_copy"),
    divulge.attributes: ("attack",),
    divulge.contents: ("read",),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Call:
    """One call of an attack during an audit."""

    probe: str
    """The name of the probe that called it."""
    attack: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    result: Any


@dataclass(frozen=True, eq=False)
class Audited:
    """A report as a program reads it, the calls that made it, and how long it took by the clock on the wall."""

    report: dict[str, Any]
    pages: str
    """The report as HTML and Markdown."""
    calls: list[Call]
    seconds: float
    allowed: float
    options: dict[str, Any] = field(default_factory=dict)

    def finding(self, name: str) -> dict[str, Any] | None:
        """The finding of a probe."""
        return next((one for one in self.report["findings"] if one["name"] == name), None)

    def made_by(self, probe: str, *attacks: str) -> list[Call]:
        """What a probe got from these attacks."""
        return [call for call in self.calls if call.probe == probe and call.attack in attacks]


@contextmanager
def recorded(calls: list[Call]) -> Iterator[None]:
    """Note every call of an attack inside the block."""
    titles = {probe.title: probe.name for probe in available_probes()}
    running = [""]

    def hear(step: Step) -> None:
        if step.stage == "audit":
            running[0] = titles.get(str(step.facts.get("now")), "")

    def noting(name: str, attack: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            try:
                result = attack(*arguments, **options)
            except DivulgeError as error:
                if error.partial is not None:  # what was there when time or budget ended
                    calls.append(Call(running[0], name, arguments, options, error.partial))
                raise
            calls.append(Call(running[0], name, arguments, options, result))
            return result

        return call

    with ExitStack() as stack:
        stack.enter_context(listening(hear))
        for module, names in ATTACKS.items():
            for name in names:
                whole = f"{module.__name__.split('.')[-1]}.{name}"
                stack.enter_context(mock.patch.object(module, name, noting(whole, getattr(module, name))))
        yield


def _given(table: Table) -> dict[str, Any]:
    """What the audit is given of the data; inputs without labels where the training data is not known."""
    if table.training is None:
        return {"unseen": table.unseen.X}
    return {"training_data": tuple(table.training), "unseen": tuple(table.unseen)}


def audited(subject: Subject, *, time_allowed: float = 15.0, seed: int = 0, **options: Any) -> Audited:
    """The audit of a model, with everything that its attacks returned."""
    import matplotlib.pyplot  # noqa: F401  what a probe imports when it first runs is no part of the time of an audit
    import torch._dynamo  # noqa: F401

    available_probes()

    calls: list[Call] = []
    chosen = {**subject.options, **options}
    started = time.perf_counter()
    with warnings.catch_warnings(), recorded(calls):
        warnings.simplefilter("ignore")
        report = divulge.audit(subject.model, **_given(subject.table), time=time_allowed, seed=seed, **chosen)
    seconds = time.perf_counter() - started
    return Audited(report.as_dict(), report.html() + report.markdown(), calls, seconds, time_allowed, chosen)
