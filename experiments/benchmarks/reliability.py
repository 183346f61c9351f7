"""What divulge does under stress: hostile servers, malformed requests, kills, damaged journals, load, functions, sizes.

    python -m experiments reliability
    python -m experiments reliability --only kills --seeds 100

``--seeds`` is the number of kills, journals or functions, and the seconds of the load.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from experiments import random_functions
from experiments.plan import Plan
from experiments.reliability import damaged_journals, hostile_servers, killed_runs, load, malformed_requests, sizes

KILLS, JOURNALS, FUNCTIONS, LOAD_SECONDS = 1000, 40, 2000, 3600


def run(plan: Plan) -> dict[str, Any]:
    """Every part that was asked for."""
    return plan.measure("reliability", {
        "hostile servers": hostile_servers.run,
        "malformed requests": malformed_requests.run,
        "journals": partial(damaged_journals.run, plan.seeds or JOURNALS, plan.seed),
        "kills": partial(killed_runs.run, plan.seeds or KILLS, plan.seed),
        "functions": partial(random_functions.run, plan.seeds or FUNCTIONS, plan.seed, plan.seconds),
        "load": partial(load.run, float(plan.seeds or LOAD_SECONDS)),
        **{f"size, {name}": partial(sizes.one, name) for name in sizes.CASES},
    })  # fmt: skip
