"""The audit: opens the target, runs every attack that fits within the time, and gathers what they found."""

from __future__ import annotations

import datetime
import inspect
import platform
import time
from contextlib import suppress
from dataclasses import fields
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from divulge.auditing import commands, registry
from divulge.auditing.fidelity import data_mismatch
from divulge.auditing.kinds import KINDS
from divulge.auditing.opening import open_target
from divulge.auditing.options import AuditOptions
from divulge.auditing.probes.probe import Probe
from divulge.auditing.remedies import with_protection
from divulge.auditing.schedule import INTERRUPTED, run_all
from divulge.auditing.store import Store
from divulge.auditing.target import Target
from divulge.core import memory
from divulge.core.errors import DivulgeError, InvalidInput
from divulge.oracles.factory import is_address
from divulge.oracles.local.hugging_face import is_hugging_face_folder
from divulge.report.document import Report
from divulge.report.findings import Skipped
from divulge.report.verdict import unfinished

LIBRARIES = ("sklearn.base", "matplotlib.figure", "torch._dynamo")
"""Loaded before the clock of an audit starts, as divulge's own modules are: seconds that belong to the start of Python.
The first is needed to open most models, the others by pictures and by attacks on weights and gradients."""
SHORT = 5.0
"""An audit of fewer seconds hardly reaches the others."""


def audit(model: object, training_data: object = None, **options: object) -> Report:
    """Run every attack that fits a model, and report what it gives away, to whom and at what cost.

    Parameters
    ----------
    model : object
        Anything that :func:`divulge.oracle` takes: a network, a fitted estimator, a function on arrays, the path of a
        model file, or the address of an endpoint.
    training_data : (array, array) or Dataset, optional
        The training inputs and their labels. With them the audit plays the insider and judges reconstructions.
    **options
        The fields of :class:`divulge.auditing.AuditOptions`, by name: ``unseen``, ``recipe``, ``access``, ``guard``,
        ``budget``, ``time``, ``seed`` and others.

    Returns
    -------
    Report
        The findings, and what was not tried and why.

    Raises
    ------
    InvalidInput
        If the model cannot be opened, the data does not fit it, or an option makes no sense.
    TypeError
        If there is no option of that name.

    Examples
    --------
    >>> import divulge, numpy
    >>> report = divulge.audit(lambda X: X @ numpy.arange(1.0, 5.0), input_shape=(4,), time=20)
    >>> report.findings[0].measures["exact"]
    True
    """
    chosen = AuditOptions(**options)  # type: ignore[arg-type]
    probes = registry.available_probes()
    _check_required(chosen, probes)
    held = memory.resident()
    libraries: tuple[str, ...] = LIBRARIES
    if is_address(model):  # its weights are not there to attack, and statistics need data
        libraries = LIBRARIES[1:2] if training_data is None and chosen.unseen is None else LIBRARIES[:2]
    for name in libraries if chosen.time >= SHORT else libraries[:1]:
        import_module(name)
    with suppress(ImportError, OSError):  # opening the model says so in a sentence
        if isinstance(model, str | Path) and is_hugging_face_folder(Path(model)):
            import_module("transformers")
    with memory.limited(chosen.memory, before=held):
        return _audit(model, training_data, chosen, probes)


def _audit(model: object, training_data: object, chosen: AuditOptions, probes: list[Probe]) -> Report:
    started = time.perf_counter()
    try:
        target = open_target(model, training_data, chosen)
        store = None
        if chosen.out is not None:
            store = Store(Path(chosen.out), target.fingerprint(), resume=chosen.resume)
        facts = {**target.as_dict(), **_warning(target)}
    except KeyboardInterrupt:
        return _unopened(model, chosen, probes, time.perf_counter() - started)
    results = run_all(probes, target, started + chosen.time, store)
    return Report(
        target={**facts, "rows_queried_in_this_run": target.rows_queried()},
        findings=with_protection(results.findings),
        skipped=results.skipped,
        seconds=time.perf_counter() - started + results.seconds_before,
        seed=chosen.seed,
        finished=not unfinished(results.findings, results.skipped) and not results.interrupted,
        interrupted=results.interrupted,
        target_failed=any(skip.target_failed for skip in results.skipped),
        price=chosen.price,
        missing=missing_inputs(target),
        digests=target.digests(),
        auditor=chosen.auditor,
        controls=tuple(chosen.controls),
        **_circumstances(),
    )


def _unopened(model: object, options: AuditOptions, probes: list[Probe], seconds: float) -> Report:
    """The report of an audit that the user stopped before the model was opened."""
    name = options.name or (Path(model).name if isinstance(model, str | Path) else type(model).__name__)
    skipped = [Skipped(probe.name, probe.title, INTERRUPTED, "not tried", probe.at_stake) for probe in probes]
    return Report(
        target={"name": name, "kind": KINDS["unknown"]},
        findings=[],
        skipped=skipped,
        seconds=seconds,
        seed=options.seed,
        finished=False,
        interrupted=True,
        price=options.price,
        auditor=options.auditor,
        controls=tuple(options.controls),
        **_circumstances(),
    )


def _circumstances() -> dict[str, Any]:
    """Versions, command and date, for a report."""
    return {
        "versions": {
            "divulge": version("divulge"),
            "torch": version("torch"),
            "scikit-learn": version("scikit-learn"),
            "python": platform.python_version(),
        },
        "command": commands.this_process(),
        "date": datetime.date.today().isoformat(),
    }


def missing_inputs(target: Target) -> tuple[str, ...]:
    """What a further audit could be given, in a sentence each."""
    said = []
    if target.inputs is None:
        said.append("Give the audit training data: the insider, reconstructions and learned copies are judged by it.")
    elif target.unseen is None:
        said.append("Give the audit inputs that the model never saw, as a control.")
    if target.access == "label":
        said.append("Grant values, gradients or weights if an attacker has them: few attacks work with labels alone.")
    if target.model is not None and target.recipe is None and target.inputs is not None:
        said.append("Give the audit the training recipe, so that the insider's attack can repeat the training.")
    return tuple(said)


def _check_required(options: AuditOptions, probes: list[Probe]) -> None:
    known = [probe.name for probe in probes]
    unknown = [name for name in options.require if name not in known]
    if unknown:
        raise InvalidInput(f"There is no attack called {unknown[0]!r} to require; choose from {', '.join(known)}.")


def _signature() -> inspect.Signature:
    """The signature of ``audit`` with every option by name, for help() and editors."""
    given = inspect.signature(audit)
    named = [parameter for parameter in given.parameters.values() if parameter.kind != parameter.VAR_KEYWORD]
    keywords = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(AuditOptions)
    ]
    return given.replace(parameters=[*named, *keywords])


def _documentation() -> str:
    """The documentation of ``audit`` with that of every option in the place of ``**options``."""
    own, options = audit.__doc__ or "", AuditOptions.__doc__ or ""
    described = options.partition("----------\n")[2].partition("\n\n    Examples")[0]
    before, entry, after = own.partition("    **options\n")
    return f"{before}{described}\n\n    Returns{after.partition('    Returns')[2]}" if entry and described else own


audit.__signature__ = _signature()  # type: ignore[attr-defined]
audit.__doc__ = _documentation()


def _warning(target: Target) -> dict[str, Any]:
    """What makes all that follows doubtful. A target that does not answer is for the attacks to report."""
    if target.kind == "constant":
        return {
            "warning": "The model gave the same answer to every input: is it the right model, and the right output?"
        }
    with suppress(DivulgeError):
        sentence = data_mismatch(target)
        return {"warning": sentence} if sentence else {}
    return {}
