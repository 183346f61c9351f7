"""``divulge compare``: what changed between two audits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from divulge.cli.common import Json, Quiet, session, show


def command(
    before: Annotated[Path, typer.Argument(help="report.json of the old version, or its folder.")],
    after: Annotated[Path, typer.Argument(help="report.json of the new version, or its folder.")],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what changed between two versions of a model, by their audits; exits 5 if more was taken."""
    with session(json=json, quiet=quiet):
        from divulge.report import compare
        from divulge.report.document import number

        changes = compare(before, after)
        lines = []
        for change in changes:
            lines.append(f"{change.verdict:<7}{change.before or '-':>9} -> {change.after or '-':<9} {change.title}")
            if change.verdict != "same":
                lines += [f"         {name}: {number(a)} -> {number(b)}" for name, (a, b) in change.measures.items()]
        result = {
            "changes": [
                {"name": c.name, "title": c.title, "verdict": c.verdict, "before": c.before, "after": c.after,
                 "measures": {name: list(pair) for name, pair in c.measures.items()}}
                for c in changes
            ]
        }  # fmt: skip
        show(result, json_wanted=json, quiet=quiet, text="\n".join(lines) or "Neither report has findings.")
    if any(change.alarming for change in changes):
        raise typer.Exit(5)
