"""The audit: looks at the target, runs every attack that fits inside the time, and gathers what they found."""

from __future__ import annotations

import datetime
import math
import platform
import shlex
import sys
import time as clock
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from divulge import progress
from divulge.auditing.fidelity import misread
from divulge.auditing.finding import Finding, Skipped
from divulge.auditing.opening import training, unseen_of, view_of
from divulge.auditing.probe import Probe
from divulge.auditing.remedies import with_protection
from divulge.auditing.store import KEPT, Store
from divulge.auditing.target import Target, picture_shape
from divulge.errors import DivulgeError, InvalidInput, NonFiniteAnswer, NotDeterministic, TargetError
from divulge.oracles import Access, Oracle
from divulge.report.document import Report
from divulge.whole import checked_seed

# a module a question, quick ones first, so that a slow one can only cost its own answer
_QUESTIONS = ("copying", "listening", "private", "guarding", "remembering", "learning", "insiders")
LEAST_SECONDS = 1.0


def audit(
    model: Any,
    training_data: Any = None,
    *,
    unseen: Any = None,
    recipe: Any = None,
    access: Access | None = None,
    guard: str = "",
    budget: int | None = None,
    time: float = 300.0,
    seed: int = 0,
    shape: Sequence[int] | None = None,
    columns: Sequence[str] = (),
    mean: Any = None,
    name: str | None = None,
    price: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    trust_pickle: bool = False,
    precision: str = "native",
    input_shape: Sequence[int] | None = None,
    output: str | None = None,
    workers: int | str | None = None,
    journal: str | Path | None = None,
    token_env: str | None = None,
    rate_limit: float | None = None,
    data_name: Sequence[str] | None = None,
) -> Report:
    """What ``model`` gives away, to whom, at what cost.

    ``model`` is anything ``divulge.oracle`` takes. ``training_data=(X, y)`` (or a ``divulge.datasets.Dataset``) lets
    the audit play the insider and judge reconstructions; ``unseen`` holds inputs the model never saw, as the control
    (with their labels, as (X, y), copies are also judged by right answers).
    ``access`` is what the attacker may see (by default all the auditor can show: weights of a local model, values of a
    remote one). ``budget`` is how many rows each adversary may ask, ``time`` how many seconds the whole may take. With
    ``out`` findings are kept there as they come, and the same call goes on from them; what another audit left there is
    replaced, or with ``resume`` refused. ``workers`` spreads restarts and records over processes or a Dask cluster.
    ``input_shape`` and ``output`` say what a function or an endpoint does not say itself, as for ``divulge.oracle``.
    ``journal``, ``token_env`` and ``rate_limit`` are for remote models. ``data_name`` is what the command line says
    after --data, for the commands in the report.
    """
    if not isinstance(time, Real) or not 0 < float(time) < math.inf:
        raise InvalidInput(f"An audit needs time, as a number of seconds; got {time!r}.")
    seed = checked_seed(seed)
    if price is not None and price < 0:
        raise InvalidInput(f"A price cannot be negative; got {price}.")
    view = view_of(
        model, access=access, guard=guard, seed=seed, trust_pickle=trust_pickle,
        options={"budget": budget, "precision": precision, "input_shape": input_shape, "output": output},
        remote_options={"journal": journal, "token_env": token_env, "rate_limit": rate_limit},
    )  # fmt: skip
    inputs, labels, shape, columns = training(training_data, view.input_dim, shape, columns)
    control, control_labels = unseen_of(unseen, view.input_dim)
    target = Target(
        name=name or view.name,
        kind=view.kind,
        access=view.access,
        input_dim=view.input_dim,
        output_dim=view.output_dim,
        make_oracle=view.make_oracle,
        model=view.module,
        estimator=view.estimator,
        inputs=inputs,
        labels=labels,
        unseen=control,
        unseen_labels=control_labels,
        mean=None if mean is None else torch.as_tensor(mean, dtype=torch.float64).reshape(-1),
        recipe=recipe,
        shape=picture_shape(shape, view.input_dim),
        columns=tuple(columns),
        guards=guard,
        address=view.origin or "MODEL",
        data_name=None if data_name is None else tuple(data_name),
        options=_options(guard, output, input_shape, trust_pickle=trust_pickle, token_env=token_env, rate=rate_limit),
        seed=seed,
        workers=workers,
        folder=None if out is None else Path(out) / KEPT,
        budget=budget,
    )
    store = None
    if out is not None:
        identity = {"model": view.digest, "data": target.data_digest(), "recipe": repr(recipe)}
        store = Store(Path(out), {**target.as_dict(), **identity, "seed": seed, "budget": budget}, resume=resume)
    started = clock.perf_counter()
    warning = _warning(target)
    findings, skipped, finished = _run_all(target, time, store)
    return Report(
        target={**target.as_dict(), **warning, "rows_asked_in_this_run": _rows(view.asked)},
        findings=with_protection(findings),
        skipped=skipped,
        seconds=clock.perf_counter() - started,
        seed=seed,
        finished=finished,
        target_failed=any(skip.target_failed for skip in skipped),
        price=price,
        versions={
            "divulge": version("divulge"),
            "torch": version("torch"),
            "scikit-learn": version("scikit-learn"),
            "python": platform.python_version(),
        },
        command=shlex.join(["divulge", *sys.argv[1:]]) if Path(sys.argv[0]).name == "divulge" else "",
        date=datetime.date.today().isoformat(),
    )


def _warning(target: Target) -> dict[str, str]:
    """What makes all that follows doubtful; a target that does not answer is for the attacks to tell."""
    with suppress(DivulgeError):
        told = misread(target)
        return {"warning": told} if told else {}
    return {}


def _rows(asked: list[Oracle]) -> int:
    """How many rows the target was really asked: what came from a journal was not."""
    return sum(oracle.ledger.total - getattr(oracle, "from_journal", 0) for oracle in asked)


def _options(
    guard: str, output: str | None, shape: Sequence[int] | None, *, trust_pickle: bool, token_env: str | None,
    rate: float | None,
) -> tuple[str, ...]:  # fmt: skip
    """What the command line says about the target beside its name."""
    shaped = ",".join(map(str, [shape] if isinstance(shape, int) else shape)) if shape is not None else ""
    given = {"--guard": guard, "--output": output, "--input-shape": shaped, "--token-env": token_env,
             "--rate-limit": "" if rate is None else f"{rate:g}"}  # fmt: skip
    words = [word for name, value in given.items() if value for word in (name, value)]
    return (*words, "--trust-pickle") if trust_pickle else tuple(words)


def probes() -> list[Probe]:
    """Every attack the audit knows, in the order it asks."""
    return [probe for question in _QUESTIONS for probe in import_module(f"divulge.auditing.{question}").PROBES]


def _run_all(target: Target, seconds: float, store: Store | None) -> tuple[list[Finding], list[Skipped], bool]:
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    waiting: list[Probe] = []
    for probe in probes():
        reason = probe.obstacle(target)
        if reason:
            skipped.append(Skipped(probe.name, probe.title, reason))
        else:
            waiting.append(probe)
    end = clock.perf_counter() + seconds
    total = len(waiting)
    try:
        while waiting:
            probe = waiting.pop(0)
            kept = store.load(probe.name) if store is not None else None
            if kept is not None:
                findings.append(kept)
                continue
            left = end - clock.perf_counter()
            if left < LEAST_SECONDS:
                skipped.append(Skipped(probe.name, probe.title, "the time was used up; give the audit more of it."))
                continue
            share = probe.share / (probe.share + sum(other.share for other in waiting))
            allowance = max(LEAST_SECONDS, left * share)
            progress.report("audit", total - len(waiting) - 1, total, now=probe.title, left=f"{left:.0f} s")
            _run_one(probe, target, allowance, store, findings, skipped)
    except KeyboardInterrupt:
        reason = "the audit was stopped before it came to this."
        skipped += [Skipped(probe.name, probe.title, reason) for probe in [probe, *waiting]]
        return findings, skipped, False
    return findings, skipped, True


def _run_one(
    probe: Probe, target: Target, seconds: float, store: Store | None, findings: list[Finding], skipped: list[Skipped]
) -> None:
    try:
        finding = probe.run(target, seconds)
    except DivulgeError as error:  # one attack that could not finish does not end the audit
        gone = isinstance(error, TargetError) and not isinstance(error, NonFiniteAnswer | NotDeterministic)
        skipped.append(Skipped(probe.name, probe.title, str(error), tried=True, target_failed=gone))
        return
    except Exception as error:  # a fault of ours is told in the report; what the other attacks found is worth more
        skipped.append(
            Skipped(probe.name, probe.title, f"A fault of its own ({type(error).__name__}: {error}).", tried=True)
        )
        return
    if store is not None:
        store.save(finding)
    findings.append(finding)
