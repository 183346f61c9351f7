"""``divulge contents``: what stands in the file of a model beside the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from divulge.cli.common import Json, Out, Quiet, Seed, session, show
from divulge.cli.target_options import TrustPickle


def command(
    target: Annotated[str, typer.Argument(help="A model file: a pickle, ONNX, safetensors, or a file of trees.")],
    data: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="The training data, to compare what the file holds with.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where named picture sets lie.")] = None,
    column: Annotated[
        str | None, typer.Option("--target", metavar="COLUMN", help="What is predicted, of your own table.")
    ] = None,
    show_records: Annotated[bool, typer.Option("--show-records", help="Print one of the records.")] = False,
    trust_pickle: TrustPickle = False,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Training records, sums, extremes and categories that stand in the file of a model."""
    with session(json=json, quiet=quiet):
        from divulge import contents

        known = _inputs(target, data, data_dir, column)
        found = contents.read(target, known, trust_pickle=trust_pickle)
        result: dict[str, Any] = {**found.as_dict(), "seed": seed}
        if show_records and found.records is not None:
            result["record"] = found.records[0].tolist()
        if out is not None:
            found.save(out)
        show(result, json_wanted=json, quiet=quiet, text=_text(result))
    if not found.success:
        raise typer.Exit(3)


def _inputs(target: str, data: str | None, data_dir: Path | None, column: str | None) -> Any:
    """The training inputs: as the user names them, or as ``divulge train`` recorded them beside the model."""
    from divulge.datasets import provenance

    known = provenance.data_of_model(target, data, data_dir, target=column)
    return None if known is None else known.train[0]


def _text(result: dict[str, Any]) -> str:
    lines = [f"  {h['kind']:<12}{h['count']:>8,}  {h['where']}: {h['detail']}" for h in result["holdings"]]
    heading = "What the file holds:" if result["success"] else result["reason"]
    record = [f"One of the records: {result['record']}"] if "record" in result else []
    return "\n".join([heading, *lines, *record])
