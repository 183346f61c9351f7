"""``python -m experiments NAME``: one of our measurements; ``--list`` says which there are.

    python -m experiments --list
    python -m experiments extraction_values --only 64-16-1 --seeds 3 --time 5m

Every number is printed as it comes and written to results/NAME.json. The papers' experiments: ``divulge reproduce``.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from divulge.cli.common import seconds_of
from divulge.core.errors import DivulgeError
from experiments.catalogue import BENCHMARKS, listing, printed
from experiments.plan import Plan

OUT = Path("results")


def main(arguments: list[str]) -> None:
    """Run what was named."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="every measurement, its time, and whether it was run here")
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="parts whose name holds this")
    parser.add_argument("--seeds", type=int, help="networks, sets or targets of each part")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--time", type=seconds_of, metavar="5m", help="begin no part after this")
    parser.add_argument("--workers", type=int)
    chosen = parser.parse_args(arguments)
    known = [experiment.name for experiment in BENCHMARKS]
    if chosen.list or not chosen.names:
        print(printed(listing(BENCHMARKS, OUT)))
        return
    for name in chosen.names:
        if name not in known:
            sys.exit(f"There is no measurement {name!r}; choose among {', '.join(known)}.")
        OUT.mkdir(exist_ok=True)
        experiment = import_module(f"experiments.benchmarks.{name}")
        plan = Plan(  # its time begins once everything is imported
            OUT, seed=chosen.seed, seeds=chosen.seeds, seconds=chosen.time, only=tuple(chosen.only),
            workers=chosen.workers,
        )  # fmt: skip
        print(f"== {name}", flush=True)
        try:
            experiment.run(plan)
        except DivulgeError as error:
            sys.exit(f"{name}: {error}")
        if plan.left:
            print(f"Not begun in time: {'; '.join(plan.left)}.")


if __name__ == "__main__":
    main(sys.argv[1:])
