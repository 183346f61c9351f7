"""``divulge reconstruct`` of a random forest: its training table from its own counts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from divulge.cli.common import show

if TYPE_CHECKING:
    from torch import Tensor

SECONDS = 60.0
NOT_FOUND = 3


def rebuild(
    forest: Any, truth: Tensor | None, seconds: float | None, *, seed: int, out: Path, json: bool, quiet: bool
) -> None:
    """Rebuild the table, write it, and compare it with the true one where that is known; exits 3 if none was found."""
    from divulge import reconstruction

    found = reconstruction.from_forest(forest, seconds=SECONDS if seconds is None else seconds, seed=seed)
    found.save(out)
    match = None if truth is None or not found.success else found.match(truth.reshape(len(truth), -1))
    result = {**found.as_dict(), "match": None if match is None else match.as_dict(), "folder": str(out)}
    text = f"{len(found.samples)} rows that meet all counts of the forest, in {found.seconds:.1f} s; written to {out}"
    if match is not None:
        text += (
            f"\n{match.error:.1%} of the cells are wrong, {match.exact_rows} rows are exact; by chance "
            f"{match.random:.1%}, with columns shuffled {match.shuffled:.1%}"
        )
    text = "\n".join([text if found.success else f"no table: {found.reason}", *(f"note: {one}" for one in found.notes)])
    show(result, json_wanted=json, quiet=quiet, text=text)
    if not found.success:
        raise typer.Exit(NOT_FOUND)
