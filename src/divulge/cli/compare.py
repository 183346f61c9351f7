"""``divulge compare``: what changed between two audits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from divulge.cli.common import GATE_INCONCLUSIVE, GATE_NOT_MET, Json, Out, Quiet, UnusedSeed, session, show
from divulge.core.storage import write_json


def command(
    before: Annotated[Path, typer.Argument(help="report.json of the old version, or its folder.")],
    after: Annotated[Path, typer.Argument(help="report.json of the new version, or its folder.")],
    seed: UnusedSeed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what changed between two versions of a model, by their audits.

    Exits 5 if more was taken, and 6 if an attack that did not run to its end in one of them could say so.
    """
    with session(json=json, quiet=quiet):
        from divulge.report import compare
        from divulge.report.text import number

        changes = compare(before, after)
        lines = []
        for change in changes:
            standing = f"{change.before or '-':>12} -> {change.after or '-':<12}"
            lines.append(f"{change.verdict:<13}{standing} {change.title}")
            if change.why:
                lines.append(f"             {change.why}")
            if change.verdict != "same":
                lines += [
                    f"             {name}: {number(a)} -> {number(b)}" for name, (a, b) in change.measures.items()
                ]
        result = {
            "changes": [
                {"name": c.name, "title": c.title, "verdict": c.verdict, "before": c.before, "after": c.after,
                 "measures": {name: list(pair) for name, pair in c.measures.items()}, "why": c.why}
                for c in changes
            ]
        }  # fmt: skip
        if out is not None:
            write_json(out / "compare.json", result)
        show(result, json_wanted=json, quiet=quiet, text="\n".join(lines) or "Neither report has findings.")
    if any(change.alarming for change in changes):
        raise typer.Exit(GATE_NOT_MET)
    if any(change.open for change in changes):
        raise typer.Exit(GATE_INCONCLUSIVE)
