"""One record of a network, the whole attack on the clock: 8,000 shadow models, the ridge reconstructor, and training
inverted from where it ends, for 50 targets, on all cores. Balle 2022's MNIST setting with 1,000 known digits; the
targets are none that ``divulge reproduce balle`` attacks. The released models are not on the clock.
``python -m experiments informed_networks``."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from divulge import informed
from divulge.core import workers as pool
from experiments.papers.balle import Lab
from experiments.plan import Plan

TARGETS, RUNS = 50, 86
FIRST = 300  # in the seed's order of digits


def run(plan: Plan) -> dict[str, Any]:
    """The whole attack, each stage timed."""
    workers = plan.workers if isinstance(plan.workers, int) else os.cpu_count() or 1
    return plan.measure("informed_networks", {f"{TARGETS} targets": lambda: attack(workers, plan)})


def attack(workers: int, plan: Plan) -> dict[str, Any]:
    """Shadow models, ridge, and training inverted for every target."""
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        found = work()
        seconds[name] = time.perf_counter() - began
        plan.show(name, {"seconds": seconds[name]})
        return found

    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), full=False, seed=plan.seed, workers=workers)
        recipe, known, targets = lab.recipe(), lab.fixed(), lab.rows(FIRST, TARGETS)
        released = lab.released(recipe, known, targets)
        shadows = timed("8,000 shadow models", lambda: lab.shadows(recipe, 8000))
        learned = timed("ridge", lambda: informed.reconstructor(recipe, *known, *lab.pool(), models=shadows))
        starts = timed("records read off", lambda: learned(released))
        each = -(-TARGETS // workers)
        jobs = [(released[first : first + each], starts[first : first + each]) for first in range(0, TARGETS, each)]
        search = partial(invert, recipe, known)
        found = timed("training inverted", lambda: pool.run(search, jobs, workers=workers))
    result: dict[str, Any] = {"workers": workers, "seconds": seconds, "minutes": sum(seconds.values()) / 60}
    for name, records in (("ridge", starts), ("direct", [record for group in found for record in group])):
        errors = torch.tensor([record.error(x) for record, x in zip(records, targets[0], strict=True)])
        result[name] = {"mean": float(errors.mean()), "median": float(errors.median()), "errors": errors.tolist()}
        result[name]["trusted"] = sum(record.trusted for record in records)
    return result


def invert(recipe: Any, known: Any, job: Any) -> list[informed.Record]:
    """Training inverted for some of the released models, from the records read off them."""
    released, starts = job
    labels = [record.y for record in starts]
    found: list[informed.Record] = informed.direct(recipe, released, *known, start=starts, labels=labels, runs=RUNS)
    return found
