"""What divulge does under stress: hostile servers, malformed requests, kills, damaged journals, load, functions, sizes.

    python -m experiments reliability
    python -m experiments reliability --only kills --seeds 100

``--seeds`` is the number of kills, journals, functions or moments, and the seconds of the load. The functions go on
where an earlier run of the same ``--seed`` stopped.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from experiments import random_functions
from experiments.plan import Plan
from experiments.reliability import (
    damaged_journals,
    hostile_servers,
    interrupts,
    killed_runs,
    load,
    malformed_requests,
    sizes,
)

KILLS, JOURNALS, FUNCTIONS, MOMENTS, LOAD_SECONDS = 1000, 40, 2000, 20, 3600
FUNCTION_SECONDS = 8.0
"""For an attack on one of the functions."""


def run(plan: Plan) -> dict[str, Any]:
    """Every part that was asked for."""
    return plan.measure("reliability", {
        "hostile servers": hostile_servers.run,
        "malformed requests": malformed_requests.run,
        "journals": partial(damaged_journals.run, plan.seeds or JOURNALS, plan.seed),
        "kills": partial(killed_runs.run, plan.seeds or KILLS, plan.seed),
        "functions": partial(
            random_functions.run, plan.seeds or FUNCTIONS, plan.seed, plan.seconds, FUNCTION_SECONDS,
            plan.out / f"functions-{plan.seed}.jsonl",
        ),
        **{f"interrupts, {name}": partial(interrupts.run, plan.seeds or MOMENTS, plan.seed, name)
           for name in interrupts.NAMES},
        "load": partial(load.run, float(plan.seeds or LOAD_SECONDS)),
        **{f"size, {name}": partial(sizes.one, name) for name in sizes.CASES},
    })  # fmt: skip
