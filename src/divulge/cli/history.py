"""``divulge history``: several audits side by side and over time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from divulge.cli.common import Json, Out, Quiet, session, show


def command(
    folder: Annotated[Path, typer.Argument(help="The folder that holds the folders of your audits.")],
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show every audit in a folder, by model and date; with --out also as a page."""
    with session(json=json, quiet=quiet):
        from divulge.core.storage import write
        from divulge.report import history
        from divulge.report.history import page

        audits = history(folder)
        lines = [
            f"{audit.date or '-':<11} {audit.severity if audit.state == 'taken' else audit.state:<13} {audit.model}"
            for audit in audits
        ]
        result: dict[str, object] = {"audits": [audit.as_dict() for audit in audits]}
        if out is not None:
            path = write(out / "history.html", page(audits, out))
            result["files"] = [str(path)]
            lines.append(f"Written to {path}.")
        show(result, json_wanted=json, quiet=quiet, text="\n".join(lines))
