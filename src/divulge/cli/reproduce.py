"""``divulge reproduce``: the papers' experiments, at a scale that fits the machine or at a larger one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from divulge.cli.common import Json, Quiet, Seed, Workers, jobs_of, seconds_of, session, show
from divulge.core.errors import InvalidInput, MissingData

ALIASES = {"span": "jayaram"}
"""Other names by which an experiment can be called."""


def command(
    name: Annotated[str | None, typer.Argument(help="The experiment; --list says which there are.")] = None,
    list_all: Annotated[
        bool,
        typer.Option(
            "--list",
            help="Every experiment with its time and whether it was run here, and every figure, table and theorem.",
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PART", help="Only the parts whose name holds this; may be given again."),
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Networks, sets or targets of each part.")] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="5m", help="Begin no part after this; the one under way ends.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="A larger scale, nearer the paper's; may take days.")] = False,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="results/NAME by default.")] = None,
    workers: Workers = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Repeat a paper's experiments: every number as it comes, then tables, plots and a JSON of every point."""
    with session(json=json, quiet=quiet):
        from importlib import import_module

        _find_experiments()
        from experiments.catalogue import PAPERS, listing, printed
        from experiments.papers.contents import ITEMS, printed_items
        from experiments.plan import Plan

        if list_all:
            rows = listing(PAPERS, Path("results"))
            items = [item.as_dict() for item in ITEMS]
            text = f"{printed(rows)}\n\n{printed_items()}"
            show({"experiments": rows, "items": items}, json_wanted=json, quiet=quiet, text=text)
            return
        known = [experiment.name for experiment in PAPERS]
        if name is None or ALIASES.get(name, name).replace("_", "-") not in known:
            what = "Name an experiment" if name is None else f"There is no experiment {name!r}; choose one"
            raise InvalidInput(f"{what}: {', '.join(known)}. divulge reproduce --list says what each shows.")
        module = ALIASES.get(name, name).replace("-", "_")
        folder = out or Path("results") / module
        folder.mkdir(parents=True, exist_ok=True)
        experiment = import_module(f"experiments.papers.{module}")
        plan = Plan(  # its time begins once everything is imported
            folder, full=full, seed=seed, workers=jobs_of(workers), only=tuple(only or ()), seeds=seeds,
            seconds=None if time is None else seconds_of(time), loud=not (json or quiet),
        )  # fmt: skip
        result = experiment.run(plan)
        left = f" Not begun in time: {'; '.join(plan.left)}." if plan.left else ""
        show(result, json_wanted=json, quiet=quiet, text=f"Wrote the results to {folder}.{left}")


def _find_experiments() -> None:
    """Make ``experiments`` importable from a clone: the experiments are no part of the installed package."""
    from importlib.util import find_spec

    clone = Path(__file__).resolve().parents[3]
    if (clone / "experiments" / "papers").is_dir() and str(clone) not in sys.path:
        sys.path.insert(0, str(clone))
    if find_spec("experiments") is None or find_spec("experiments.papers") is None:
        raise MissingData(
            "The experiments are not in the installed package: clone the repository and run divulge reproduce there."
        )
