"""``divulge extract --method trees``: a decision tree or a small sum of trees, rebuilt from values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from divulge.cli.common import deliver_copy
from divulge.core.errors import DivulgeError

if TYPE_CHECKING:
    from torch import Tensor

    from divulge.extraction import TreeCopy
    from divulge.oracles import Oracle

NOT_COPIED = 3


def rebuild(
    oracle: Oracle, inputs: Tensor | None, *, checks: int | None, seed: int, out: Path | None, json: bool, quiet: bool
) -> None:
    """Rebuild the trees, write and show the copy; exits 3 if it is not exact."""
    from divulge.extraction import TreeCopy, from_tree_values

    verify = {} if checks is None else {"checks": checks}
    try:
        stolen = from_tree_values(oracle, inputs=inputs, seed=seed, **verify)
    except DivulgeError as error:
        if isinstance(error.partial, TreeCopy):
            deliver_copy(error.partial, out, _text(error.partial, out), json_wanted=json, quiet=quiet)
        raise
    deliver_copy(stolen, out, _text(stolen, out), json_wanted=json, quiet=quiet)
    if not stolen.exact:
        raise typer.Exit(NOT_COPIED)


def _text(stolen: TreeCopy, out: Path | None) -> str:
    parts = "leaves" if stolen.method == "path finding" else "cells of tables"
    verdict = "exact" if stolen.exact else "not exact"
    lines = [
        f"{verdict}: {stolen.leaves:,} {parts}, {stolen.thresholds:,} thresholds",
        f"asked {stolen.queries:,} values in {stolen.seconds:.1f} s, and {stolen.verification.total:,} more to verify "
        "the copy",
    ]
    claim = stolen.facts.get("verification", {}).get("claim", "")
    lines += [str(claim)] if stolen.exact and claim else []
    lines += [f"why: {stolen.reason}"] if stolen.reason else []
    lines += [f"written to {out}"] if out is not None else []
    return "\n".join(lines)
