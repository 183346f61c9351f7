"""``divulge reproduce``: the papers' experiments, at a scale that fits the machine or at their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from divulge.cli.common import Json, Quiet, Seed, Workers, jobs_of, session, show
from divulge.errors import InvalidInput

EXPERIMENTS = {
    "milli": "Milli et al. 2019: figures 2, 3 and 4",
    "chen": "Chen et al. 2021: random networks, clusters and bumps",
    "span": "Jayaram et al. 2020: figures 1, 2 and 3",
    "balle": "Balle et al. 2022: tables II and III, figures 5 and 7, appendices B, C, K and L",
    "balle_dp": "Balle et al. 2022: figures 9, 10 and 15, private training beside the bounds",
    "haim": "Haim et al. 2022: figures 2 to 5 on smaller sets",
    "chain": "from a prediction endpoint to training pictures",
}


def command(
    name: Annotated[
        str, typer.Argument(help="; ".join(f"{name.replace('_', '-')}: {what}" for name, what in EXPERIMENTS.items()))
    ],
    full: Annotated[bool, typer.Option("--full", help="The paper's own scale; may take days.")] = False,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="results/NAME by default.")] = None,
    workers: Workers = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Repeat a paper's experiments: tables, plots and a JSON of every point."""
    with session(json=json, quiet=quiet):
        from importlib import import_module
        from importlib.util import find_spec

        module = name.replace("-", "_")
        if module not in EXPERIMENTS or find_spec(f"divulge.reproduce.{module}") is None:
            known = [key for key in EXPERIMENTS if find_spec(f"divulge.reproduce.{key}") is not None]
            raise InvalidInput(f"There is no experiment {name!r}; choose one of {', '.join(known).replace('_', '-')}.")
        folder = out or Path("results") / module
        folder.mkdir(parents=True, exist_ok=True)
        result = import_module(f"divulge.reproduce.{module}").run(
            folder, full=full, seed=seed, workers=jobs_of(workers)
        )
        show(result, json_wanted=json, quiet=quiet, text=f"Wrote the results to {folder}.")
