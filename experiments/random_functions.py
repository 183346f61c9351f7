"""Random functions of many kinds, on which an attack may fail but must not claim an exact copy that is wrong.

The functions are in ``random_cases.py``. ``outcome`` runs one attack on one of them and judges what it claims; ``run``
counts the outcomes of many.
"""

from __future__ import annotations

import json
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import divulge
from divulge import extraction
from divulge.auditing.hard_stop import hard_stop
from divulge.auditing.probes.probe import TimeUp, deadline
from divulge.extraction import Extraction, TreeCopy
from experiments.random_cases import DOUBLE, EXTREMES, KINDS, Case, Function, random_case


class Target(nn.Module):
    """A case as a module, so that it has gradients."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function, self.unused = function, nn.Parameter(torch.zeros(1, dtype=DOUBLE))

    def forward(self, X: Tensor) -> Tensor:
        return self.function(X)


LIMIT = 20.0
"""Seconds that an attack may take on one of these small functions."""
LATE = 1.15
"""A run that takes longer than this many times its limit is late."""
FAULTS = ("false exact", "foreign error", "late")
"""The states that no run may end in."""
ROUNDING = 1e-5
"""A copy is wrong in a row if it is off by more than this part of the answers' standard deviation."""
DRAWN = 20_000
ATTACKS: dict[str, tuple[str, Callable[..., Extraction | TreeCopy]]] = {
    "from_gradients": ("gradient", extraction.from_gradients),
    "from_values": ("value", extraction.from_values),
    "worst_case": ("value", extraction.worst_case),
    "softmax_regression": ("gradient", extraction.softmax_regression),
    "from_tree_values": ("value", extraction.from_tree_values),
}
"""Every attack that may call a copy exact; ``deep_from_gradients`` is ``from_gradients`` under another name."""


@dataclass(frozen=True)
class Outcome:
    """What an attack claimed about a random function, and whether it is true."""

    seed: int
    kind: str
    attack: str
    state: str
    """"exact", "false exact", "not exact", "refused" (a DivulgeError), "foreign error" (any other), "stopped" (at its
    time) or "late" (it did not stop in time)."""
    seconds: float
    said: str = ""


def outcome(seed: int, attack: str, *, kind: str | None = None, limit: float = LIMIT) -> Outcome:
    """One attack on case number ``seed``, its claim judged on rows that it never saw.

    ``exact`` states a share of inputs on which the copy may be wrong. It is false if the copy is wrong on more than
    that share of 20,000 rows like the data, beyond chance.

    Parameters
    ----------
    seed : int
        Number of the case, and the attack's seed.
    attack : str
        One of ``ATTACKS``.
    kind : str, optional
        As for :func:`random_case`.
    limit : float
        Seconds for the attack.

    Returns
    -------
    Outcome
        What the attack claimed and whether that is true.
    """
    case, (access, run_attack) = random_case(seed, kind), ATTACKS[attack]
    target = divulge.oracle(Target(case.function), access=access, input_shape=[case.inputs])
    began = time.perf_counter()
    try:
        with hard_stop(1.05 * limit, given=limit), deadline(limit), np.errstate(all="ignore"):
            stolen = run_attack(target, inputs=case.rows, seed=seed)
        seconds = time.perf_counter() - began
        state, said = _judged(case, stolen)
    except TimeUp:
        state, said, seconds = "stopped", "", time.perf_counter() - began
    except divulge.DivulgeError as error:
        state, said, seconds = "refused", str(error), time.perf_counter() - began
    except Exception as error:
        said, seconds = "".join(traceback.format_exception(error)), time.perf_counter() - began
        state = "foreign error"
    late = state not in FAULTS and seconds > LATE * limit
    return Outcome(seed, case.kind, attack, "late" if late else state, seconds, said)


def _judged(case: Case, stolen: Extraction | TreeCopy) -> tuple[str, str]:
    if not stolen.exact:
        return "not exact", stolen.reason
    share, allowed = _wrong(case, stolen), float(stolen.facts["verification"]["share"])
    if share > allowed + 4 * (allowed / DRAWN) ** 0.5:
        return "false exact", f"wrong on {share:.2%}"
    return "exact", f"{share:.2%}"


def _wrong(case: Case, stolen: Extraction | TreeCopy) -> float:
    """The share of rows like the data on which the copy is wrong."""
    X = case.draw(DRAWN, seed=987_654)
    with torch.no_grad():
        truth, copy = case.function(X), stolen.model(X.to(DOUBLE)).reshape(DRAWN, -1)
    finite = torch.isfinite(truth).all(dim=1)
    size = truth[finite].abs().amax().clamp_min(1e-300)  # squares of 1e200 and of 1e-200 are no float64 numbers
    deviation = (truth[finite] / size).std(dim=0).max().clamp_min(1e-300)
    right = finite & ((truth / size - copy / size).abs().amax(dim=1) <= ROUNDING * deviation)
    return 1 - float(right.double().mean())


def run(
    count: int = 2000,
    seed: int = 0,
    seconds: float | None = None,
    limit: float = LIMIT,
    record: Path | None = None,
) -> dict[str, Any]:
    """All exact attacks on random functions of every kind, extremes among them.

    Parameters
    ----------
    count : int
        Functions; the kinds take turns.
    seed : int
        Number of the first case.
    seconds : float, optional
        No function is begun after so many seconds.
    limit : float
        Seconds for an attack on a function.
    record : Path, optional
        A file that keeps every outcome as it comes. A run goes on with what an earlier one left there.

    Returns
    -------
    dict
        How many runs ended in each state, the slowest run, and every run that ended as none may.
    """
    torch.set_num_threads(1)
    kinds = [*KINDS, *EXTREMES]
    done = _recorded(record)
    found: list[Outcome] = []
    begun, functions = time.monotonic(), 0
    while functions < count:
        key = seed + functions
        if any((key, attack) not in done for attack in ATTACKS):
            if seconds is not None and time.monotonic() - begun > seconds:
                break
            for attack in ATTACKS:
                done[key, attack] = outcome(key, attack, kind=kinds[functions % len(kinds)], limit=limit)
                _record(record, done[key, attack])
        found += [done[key, attack] for attack in ATTACKS]
        functions += 1
    states = Counter(one.state for one in found)
    bad = [
        f"{one.attack} on {one.kind}, seed {one.seed}: {one.state}, {one.said[-200:]}"
        for one in found
        if one.state in FAULTS
    ]
    slowest = max((one.seconds for one in found), default=0.0)
    return {"functions": functions, "runs": len(found), **dict(sorted(states.items())), "slowest_seconds": slowest,
            "bad": bad}  # fmt: skip


def _recorded(record: Path | None) -> dict[tuple[int, str], Outcome]:
    """The outcomes that a file keeps; a last line that was cut short is asked again."""
    done: dict[tuple[int, str], Outcome] = {}
    for line in record.read_text().splitlines() if record is not None and record.exists() else ():
        with suppress(ValueError, TypeError):
            one = Outcome(**json.loads(line))
            done[one.seed, one.attack] = one
    return done


def _record(record: Path | None, one: Outcome) -> None:
    if record is not None:
        with record.open("a") as file:
            file.write(json.dumps(asdict(one)) + "\n")
