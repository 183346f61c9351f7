"""The audit: looks at the target, runs every attack that fits inside the time, and gathers what they found."""

from __future__ import annotations

import datetime
import platform
import shlex
import sys
import time as clock
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from divulge import progress
from divulge.auditing.finding import Finding, Skipped
from divulge.auditing.probe import Probe
from divulge.auditing.store import Store
from divulge.auditing.target import Kind, Target, fit_data, kind_by_asking, kind_of_module, picture_shape
from divulge.errors import DivulgeError, InvalidInput, UnsupportedModel
from divulge.oracles import Access, Oracle, load_model, oracle
from divulge.oracles.base import check_access
from divulge.report.document import Report

# a module a question, quick ones first, so that a slow one can only cost its own answer
_QUESTIONS = ("copying", "listening", "protecting", "remembering", "learning", "insiders")
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
    trust_pickle: bool = False,
    precision: str = "native",
    input_shape: Sequence[int] | None = None,
    output: str | None = None,
    workers: int | str | None = None,
    journal: str | Path | None = None,
    token_env: str | None = None,
    rate_limit: float | None = None,
) -> Report:
    """What ``model`` gives away, to whom, at what cost.

    ``model`` is anything ``divulge.oracle`` takes. ``training_data=(X, y)`` (or a ``divulge.datasets.Dataset``) lets
    the audit play the insider and judge reconstructions; ``unseen`` holds inputs the model never saw, as the control.
    ``access`` is what the attacker may see (by default all the auditor can show: weights of a local model, values of a
    remote one). ``budget`` is how many rows each adversary may ask, ``time`` how many seconds the whole may take. With
    ``out`` findings are kept there as they come, and the same call goes on from them. ``workers`` spreads restarts and
    records over processes or a Dask cluster. ``input_shape`` and ``output`` say what a function or an endpoint does not
    say itself, as for ``divulge.oracle``; the options from ``journal`` on are for remote models.
    """
    if time <= 0:
        raise InvalidInput(f"An audit needs time; got {time} seconds.")
    if price is not None and price < 0:
        raise InvalidInput(f"A price cannot be negative; got {price}.")
    target = look_at(
        model, training_data, unseen=unseen, recipe=recipe, access=access, guard=guard, budget=budget, seed=seed,
        shape=shape, columns=columns, mean=mean, name=name, trust_pickle=trust_pickle, precision=precision, out=out,
        input_shape=input_shape, output=output, workers=workers, journal=journal, token_env=token_env,
        rate_limit=rate_limit,
    )  # fmt: skip
    store = None
    if out is not None:
        store = Store(Path(out), {**target.as_dict(), "seed": seed, "budget": budget, "access": target.access})
    started = clock.perf_counter()
    findings, skipped, finished = _run_all(target, time, store)
    return Report(
        target=target.as_dict(),
        findings=findings,
        skipped=skipped,
        seconds=clock.perf_counter() - started,
        seed=seed,
        finished=finished,
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
        skipped.append(Skipped(probe.name, probe.title, f"it ran and stopped: {error}"))
        return
    except Exception as error:  # a fault of ours is told in the report; what the other attacks found is worth more
        skipped.append(
            Skipped(probe.name, probe.title, f"it failed on a fault of its own ({type(error).__name__}: {error}).")
        )
        return
    if store is not None:
        store.save(finding)
    findings.append(finding)


def look_at(
    source: Any,
    training_data: Any = None,
    *,
    unseen: Any = None,
    recipe: Any = None,
    access: Access | None = None,
    guard: str = "",
    budget: int | None = None,
    seed: int = 0,
    shape: Sequence[int] | None = None,
    columns: Sequence[str] = (),
    mean: Any = None,
    name: str | None = None,
    trust_pickle: bool = False,
    precision: str = "native",
    out: str | Path | None = None,
    input_shape: Sequence[int] | None = None,
    output: str | None = None,
    workers: int | str | None = None,
    journal: str | Path | None = None,
    token_env: str | None = None,
    rate_limit: float | None = None,
) -> Target:
    """The target of an audit: opened once, its kind found, its data checked against it."""
    from divulge.oracles.factory import is_address

    remote = is_address(source)
    origin = str(source) if isinstance(source, str | Path) else "MODEL"
    if origin != "MODEL" and not remote:
        source = _loaded(source, access, trust_pickle=trust_pickle)
    outside = remote or isinstance(source, str | Path) or (guard and "label" not in guard)
    access = access or ("value" if outside else "weights")
    check_access(access)
    if access == "weights" and (remote or guard):
        raise InvalidInput("Weights cannot be granted through an address or a guard; choose value, gradient or label.")
    options: dict[str, Any] = {"budget": budget, "precision": precision, "input_shape": input_shape, "output": output}
    if remote:
        options |= {"journal": journal, "token_env": token_env, "rate_limit": rate_limit}
    make = _oracle_maker(source, options, guard=guard, seed=seed)
    first = make("gradient" if access == "weights" and not remote else access)
    module = _weights_of(source) if access == "weights" else None
    kind: Kind = kind_of_module(module) if module is not None else _kind_by_asking(make, access)
    inputs, labels, shape, columns = _training(training_data, first.input_dim, shape, columns)
    return Target(
        name=name or (Path(origin).name if origin != "MODEL" else type(source).__name__),
        kind=kind,
        access=access,
        input_dim=first.input_dim,
        output_dim=first.output_dim,
        make_oracle=make,
        model=module,
        estimator=None if isinstance(source, nn.Module) or remote or access != "weights" else source,
        inputs=inputs,
        labels=labels,
        unseen=None if unseen is None else fit_data(unseen, first.input_dim, "unseen data"),
        mean=None if mean is None else torch.as_tensor(mean, dtype=torch.float64).reshape(-1),
        recipe=recipe,
        shape=picture_shape(shape, first.input_dim),
        columns=tuple(columns),
        guards=guard,
        address=shlex.quote(origin),
        seed=seed,
        workers=workers,
        folder=None if out is None else Path(out),
    )


def _loaded(path: str | Path, access: Access | None, *, trust_pickle: bool) -> Any:
    """The model in a file; the file's own name for an ONNX graph that can be asked but not read."""
    try:
        return load_model(path, trust_pickle=trust_pickle)
    except UnsupportedModel:
        if Path(path).suffix.lower() != ".onnx" or access in ("weights", "gradient"):
            raise
        return path


def _oracle_maker(source: Any, options: dict[str, Any], *, guard: str, seed: int) -> Any:
    def make(access: Access) -> Oracle:
        inner: Access = "value" if access == "label" and guard else access
        view = oracle(source, access=inner, **options)
        if guard:
            from divulge.oracles.guards import guard as guards

            view = guards(guard, seed=seed)(view)
        if access == "label" and view.access != "label":
            from divulge.oracles.guards import LabelOnly

            view = LabelOnly(view)
        return view

    return make


def _kind_by_asking(make: Any, access: Access) -> Kind:
    if access == "label":
        return "smooth"  # labels tell nothing of the kind; the label attacks are for smooth networks
    return kind_by_asking(make("value"))


def _weights_of(source: Any) -> nn.Module | None:
    if isinstance(source, nn.Module):
        return source
    try:
        view = oracle(source, access="weights")
        weights: nn.Module = view.weights()
        return weights
    except (DivulgeError, AttributeError):
        return None


def _training(data: Any, input_dim: int, shape: Any, columns: Any) -> tuple[Any, Any, Any, Any]:
    """Inputs, labels, shape and column names out of (X, y) or a data set."""
    if data is None:
        return None, None, shape, columns
    if hasattr(data, "train"):
        shape = shape if shape is not None else data.shape
        columns = columns or getattr(data, "columns", ()) or ()
        data = data.train
    X, y = data
    inputs = fit_data(X, input_dim, "training data")
    labels = torch.as_tensor(y)
    if len(labels) != len(inputs):
        raise InvalidInput(f"The training data has {len(inputs)} rows and {len(labels)} labels.")
    return inputs, labels, shape, columns
