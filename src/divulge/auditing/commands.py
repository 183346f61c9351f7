"""The audit on the command line: the shell commands that repeat a finding, and the one that made the report.

Nothing else in the library knows what the command line calls its commands and options.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from divulge.auditing.options import AuditOptions
from divulge.auditing.target import Target
from divulge.oracles import Access

_REMOTE = ("--token-env", "--rate-limit", "--request", "--response")
_TARGET_OPTIONS: dict[str, tuple[str, ...]] = {
    "audit": ("--guard", "--output", "--input-shape", "--fix", "--trust-pickle", *_REMOTE),
    "extract": ("--guard", "--output", "--input-shape", "--fix", "--trust-pickle", *_REMOTE),
    "span": ("--input-shape", "--fix", "--trust-pickle", *_REMOTE),
    "reconstruct": ("--trust-pickle",),
    "informed": ("--trust-pickle",),
    "contents": ("--trust-pickle",),
    "membership": ("--input-shape", "--fix", "--trust-pickle", *_REMOTE),
    "attributes": ("--input-shape", "--fix", "--trust-pickle", *_REMOTE),
}
"""The options about the target that each command has."""


def this_process() -> str:
    """The command that runs this process, if it is ``divulge``; otherwise nothing."""
    return shlex.join(["divulge", *sys.argv[1:]]) if Path(sys.argv[0]).name == "divulge" else ""


def extract(target: Target, access: Access, *, method: str = "") -> str:
    """The command that repeats an exact extraction."""
    return _repeat(target, "extract", "--access", access, *(["--method", method] if method else []))


def span(target: Target, access: Access) -> str:
    """The command that repeats a span recovery."""
    return _repeat(target, "span", "--access", access)


def contents(target: Target) -> str:
    """The command that lists what the file of a model contains."""
    known = _data(target)
    return _repeat(target, "contents", *(known[: known.index("--unseen")] if "--unseen" in known else known))


def reconstruct(target: Target) -> str:
    """The command that repeats a reconstruction from the weights."""
    return _repeat(target, "reconstruct", *_data(target), *(["--know-mean"] if target.mean is not None else []))


def reconstruct_from_start(target: Target, *, n: int | None = None) -> str:
    """The command that repeats a reconstruction from the difference to the start."""
    start = target.options.start
    named = str(start) if isinstance(start, str | Path) else "BASE"
    return _repeat(target, "reconstruct", "--start", named, *_data(target), *([] if n is None else ["--n", str(n)]))


def informed(target: Target, row: int) -> str:
    """The command that repeats the reconstruction of one record from all the others."""
    known = _data(target)[1:]
    if "--unseen" in known:  # which this command does not have
        place = known.index("--unseen")
        known = known[:place] + known[place + 2 :]
    return _repeat(target, "informed", *(["--known", *known] if known else []), "--leave-out", str(row))


def membership(target: Target) -> str:
    """The command that repeats a membership attack."""
    known = [
        "--members" if word == "--data" else "--non-members" if word == "--unseen" else word for word in _data(target)
    ]
    return _repeat(target, "membership", *known)


def attributes(target: Target, columns: list[str]) -> str:
    """The command that repeats an attack on hidden columns."""
    known = ["--non-members" if word == "--unseen" else word for word in _data(target)]
    return _repeat(target, "attributes", *(word for name in columns for word in ("--column", name)), *known)


def audit(target: Target, *, access: Access | None = None, guard: str = "") -> str:
    """The command that repeats an audit, with this access or behind this guard."""
    return _repeat(
        target,
        "audit",
        *(["--access", access] if access else []),
        *(["--guard", guard] if guard else []),
        *_data(target),
    )


def bound(*, kappa: float, gamma: float, steps: int, sampling_rate: float, delta: float) -> str:
    """The command that prints the noise that private training needs."""
    return (
        f"divulge bound --kappa {kappa:.4g} --gamma {gamma:.4g} --steps {steps} --sampling-rate {sampling_rate:.4g} "
        f"--delta {delta:.3g}"
    )


def _repeat(target: Target, verb: str, *words: str) -> str:
    """The command; where the command of the single attack lacks an option that was given, the audit with it."""
    given = _options(target.options)
    if any(option not in _TARGET_OPTIONS[verb] for option in given if option.startswith("--")):
        access: Access = words[words.index("--access") + 1] if "--access" in words else target.access  # type: ignore[assignment]
        return audit(target, access=access)
    return shlex.join(["divulge", verb, target.origin or "MODEL", *words, *given, "--seed", str(target.options.seed)])


def _data(target: Target) -> list[str]:
    """How the command line names the training data."""
    named = target.options.data_name
    if named is None:
        return ["--data", "TRAINING_DATA"] if target.inputs is not None else []
    return ["--data", *named] if named else []


def _options(options: AuditOptions) -> list[str]:
    """What the command line says about the target beside its name."""
    fixed = [word for name, value in (options.fixed or {}).items() for word in ("--fix", f"{name}={value}")]
    given = {
        "--guard": options.guard,
        "--output": options.output,
        "--input-shape": _extents(options.input_shape),
        "--token-env": options.token_env,
        "--rate-limit": "" if options.rate_limit is None else f"{options.rate_limit:g}",
        "--request": options.request if isinstance(options.request, str | None) else json.dumps(options.request),
        "--response": options.response,
    }
    words = [*(word for name, value in given.items() if value for word in (name, value)), *fixed]
    return [*words, "--trust-pickle"] if options.trust_pickle else words


def _extents(shape: object) -> str:
    """A shape, or several by name, as ``--input-shape`` takes them."""
    if isinstance(shape, Mapping):
        return ";".join(f"{name}={_extents(one)}" for name, one in shape.items())
    return "" if shape is None else ",".join(map(str, shape if isinstance(shape, Sequence) else [shape]))
