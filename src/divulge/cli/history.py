"""``divulge history``: several audits side by side and over time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from divulge.cli.common import Json, Out, Quiet, UnusedSeed, session, show


def command(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER|FILE", help="The folder of your audits, or an SQLite file of them.")
    ],
    add: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="First add the audits in this folder to the SQLite file. Can be repeated."),
    ] = None,
    seed: UnusedSeed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show every audit in a folder or an SQLite file, by model and date; with --out also as a page."""
    with session(json=json, quiet=quiet):
        from divulge.core.errors import InvalidInput
        from divulge.core.storage import write
        from divulge.report import history, remember
        from divulge.report.history import page, unreadable

        if add and source.is_dir():
            raise InvalidInput(f"--add adds audits to an SQLite file; {source} is a folder, which holds them itself.")
        for folder in add or []:
            remember(folder, source)
        audits = history(source)
        lines = [
            f"{audit.date or '-':<11} {audit.severity if audit.state == 'taken' else audit.state:<13} {audit.model}"
            for audit in audits
        ]
        left_out = [path for folder in (source, *(add or [])) for path in unreadable(folder)]
        lines += [f"Left out, since it is no report that can be read: {path}" for path in left_out]
        result: dict[str, object] = {
            "audits": [audit.as_dict() for audit in audits], "left_out": [str(path) for path in left_out],
        }  # fmt: skip
        if out is not None:
            path = write(out / "history.html", page(audits, out))
            result["files"] = [str(path)]
            lines.append(f"Written to {path}.")
        show(result, json_wanted=json, quiet=quiet, text="\n".join(lines))
