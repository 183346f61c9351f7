"""Can they get my training data out of it if they hold the checkpoint that it was trained from?"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from divulge.auditing import commands
from divulge.auditing.probes import training_data
from divulge.auditing.probes.probe import Probe, deadline
from divulge.auditing.sentences import records
from divulge.auditing.target import Target
from divulge.core.errors import AttackFailed, DivulgeError
from divulge.oracles.ledger import Spent
from divulge.report.findings import Finding

if TYPE_CHECKING:
    from divulge.reconstruction import Reconstruction

NAME = "data-from-difference"


def _obstacle(target: Target) -> str:
    if target.options.start is None:
        return "no start was given: the checkpoint that the model was trained from, or its recipe (--start)."
    if not target.grants("weights") or target.model is None:
        return f"the access granted ({target.access}) does not include the weights."
    if target.inputs is None:
        return "no training data was given to compare reconstructions with."
    return ""


def _run(target: Target, seconds: float) -> Finding:
    assert target.inputs is not None
    started = time.perf_counter()
    told: tuple[str, ...] = ()
    with deadline(seconds):
        try:
            found = _reconstruct(target, 0.7 * seconds, None)
        except AttackFailed as refused:
            try:
                found = _reconstruct(target, 0.7 * seconds, len(target.inputs))
            except DivulgeError:
                raise refused from None
            told = (records.number_told(str(refused)),)
    judged = training_data.judge(target, found)
    finding = training_data.finding(
        target, judged, found, name=NAME, adversary="holder of the weights", ledger=Spent(),
        seconds=time.perf_counter() - started, notes=(*told, *found.notes),
        command=commands.reconstruct_from_start(target, n=len(target.inputs) if told else None),
        source="out of the weights and their start",
    )  # fmt: skip
    assert found.certified is not None
    taken = finding.outcome in ("succeeded", "partly")
    return replace(
        finding,
        measures={**finding.measures, "certified": int(found.certified.sum()), "rank": found.rank},
        untested=(records.hide_the_start(),) if taken else (),
    )


def _reconstruct(target: Target, seconds: float, n: int | None) -> Reconstruction:
    """The attack, blind or with the number of records told."""
    from divulge import reconstruction
    from divulge.reconstruction.known_start.attack import opened

    assert target.model is not None
    assert target.options.start is not None
    return reconstruction.from_weights(
        target.model,
        start=opened(target.options.start, trust_pickle=target.options.trust_pickle),
        n=n,
        seed=target.seed,
        mean=target.mean,
        value_range=(0.0, 1.0) if target.shape is not None else None,
        shape=target.shape,
        seconds=seconds,
    )


def _seconds(target: Target) -> float:
    """From runs on one core: the separation grows with the records, and a picture takes under a second."""
    return 60.0 if target.inputs is None else 30.0 + 0.5 * min(len(target.inputs), 200)


PROBES = (Probe(NAME, "Training data from the difference to the start", _obstacle, _run, _seconds, "high"),)
