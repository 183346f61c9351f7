"""``divulge data``: which data sets are on disk, and fetching those that are not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from divulge.cli.common import Json, Out, Quiet, UnusedSeed, session, show
from divulge.cli.target_options import DataDir
from divulge.core.errors import MissingData
from divulge.core.storage import write_json


def command(
    name: Annotated[str | None, typer.Argument(help="A data set; by default all of them.")] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Download it from its public source if it is missing.")
    ] = False,
    data_dir: DataDir = None,
    mirror: Annotated[str | None, typer.Option(metavar="URL", help="Another source of the same files.")] = None,
    seed: UnusedSeed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the data sets that divulge knows by name, and check that their files are complete."""
    with session(json=json, quiet=quiet):
        from divulge import datasets

        if name is not None:
            if download:
                datasets.download(name, data_dir, home=mirror)
            states = {name: _state(datasets.load(name, data_dir))}
        else:
            states = {known: _look(known, data_dir) for known in datasets.names()}
        text = "\n".join(f"{known}: {state['summary']}" for known, state in states.items())
        if out is not None:
            write_json(out / "data.json", states)
        show(states, json_wanted=json, quiet=quiet, text=text)


def _look(name: str, data_dir: Path | None) -> dict[str, Any]:
    from divulge import datasets

    try:
        return _state(datasets.load(name, data_dir))
    except MissingData:
        return {"present": False, "summary": f"not on disk; fetch it with `divulge data {name} --download`"}


def _state(dataset: Any) -> dict[str, Any]:
    rows = {"train": len(dataset.stored_train.y), "test": len(dataset.stored_test.y)}
    summary = f"{rows['train']} training and {rows['test']} test rows of shape {dataset.shape}"
    return {"present": True, **rows, "shape": list(dataset.shape), "classes": list(dataset.classes), "summary": summary}
