"""``divulge data``: which data sets are on disk, and fetching those that are not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from divulge.cli.common import Json, Quiet, session, show
from divulge.errors import MissingData


def command(
    name: Annotated[str | None, typer.Argument(help="A data set; by default all of them.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch it from its public home if missing.")] = False,
    data_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where picture sets lie.")] = None,
    mirror: Annotated[str | None, typer.Option(metavar="URL", help="Another home that holds the same files.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show the data sets that divulge knows by name, and check that they are whole."""
    with session(json=json, quiet=quiet):
        from divulge import datasets

        if name is not None:
            if download:
                datasets.download(name, data_dir, home=mirror)
            told = {name: _state(datasets.load(name, data_dir))}
        else:
            told = {known: _look(known, data_dir) for known in datasets.names()}
        text = "\n".join(f"{known}: {state['told']}" for known, state in told.items())
        show(told, json_wanted=json, quiet=quiet, text=text)


def _look(name: str, data_dir: Path | None) -> dict[str, Any]:
    from divulge import datasets

    try:
        return _state(datasets.load(name, data_dir))
    except MissingData:
        return {"present": False, "told": f"not on disk; fetch it with `divulge data {name} --download`"}


def _state(dataset: Any) -> dict[str, Any]:
    rows = {"train": len(dataset.stored_train.y), "test": len(dataset.stored_test.y)}
    told = f"{rows['train']} training and {rows['test']} test rows of shape {dataset.shape}"
    return {"present": True, **rows, "shape": list(dataset.shape), "classes": list(dataset.classes), "told": told}
