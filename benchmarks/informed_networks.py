"""One record of a network, the whole attack on the clock: 8,000 shadow models, the ridge reconstructor, and training
inverted from where it ends, for 50 targets, on all cores. Balle 2022's MNIST setting with 1,000 known digits; the
targets are none that ``divulge reproduce balle`` attacks. The released models are not on the clock.
``python -m benchmarks informed_networks``."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from divulge import informed
from divulge import workers as pool
from divulge.reproduce.balle import Lab

TARGETS, RUNS = 50, 86
FIRST = 300  # in the seed's order of digits


def main() -> None:
    workers = os.cpu_count() or 1
    parts: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        found = work()
        parts[name] = time.perf_counter() - began
        print(f"{name}: {parts[name]:.0f} s", flush=True)
        return found

    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), full=False, seed=0, workers=workers)
        recipe, known, targets = lab.recipe(), lab.fixed(), lab.rows(FIRST, TARGETS)
        released = lab.released(recipe, known, targets)
        shadows = timed("8,000 shadow models", lambda: lab.shadows(recipe, 8000))
        attack = timed("ridge", lambda: informed.reconstructor(recipe, *known, *lab.pool(), models=shadows))
        starts = timed("50 records read off", lambda: attack(released))
        each = -(-TARGETS // workers)
        jobs = [(released[first : first + each], starts[first : first + each]) for first in range(0, TARGETS, each)]
        search = partial(invert, recipe, known)
        found = timed("training inverted", lambda: pool.run(search, jobs, workers=workers))
    result: dict[str, Any] = {"workers": workers, "seconds": parts, "minutes": sum(parts.values()) / 60}
    for name, records in (("ridge", starts), ("direct", [record for group in found for record in group])):
        errors = torch.tensor([record.error(x) for record, x in zip(records, targets[0], strict=True)])
        result[name] = {"mean": float(errors.mean()), "median": float(errors.median()), "errors": errors.tolist()}
        result[name]["trusted"] = sum(record.trusted for record in records)
        print(f"{name}: mean squared error {errors.mean():.2g}, median {errors.median():.2g}, "
              f"{result[name]['trusted']} of {TARGETS} trusted")  # fmt: skip
    print(f"{result['minutes']:.1f} minutes in all with {workers} workers")
    Path("results").mkdir(exist_ok=True)
    Path("results/informed_networks.json").write_text(json.dumps(result, indent=2) + "\n")


def invert(recipe: Any, known: Any, job: Any) -> list[informed.Record]:
    """Training inverted for some of the released models, from the records read off them."""
    released, starts = job
    labels = [record.y for record in starts]
    found: list[informed.Record] = informed.direct(recipe, released, *known, start=starts, labels=labels, runs=RUNS)
    return found


if __name__ == "__main__":
    main()
