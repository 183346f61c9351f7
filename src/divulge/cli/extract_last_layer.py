"""``divulge extract --method last-layer``: the width of the last layer and its weights up to an invertible matrix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from divulge.cli.common import show

if TYPE_CHECKING:
    from divulge.oracles import Oracle

NOT_FOUND = 3


def find(oracle: Oracle, *, seed: int, out: Path | None, json: bool, quiet: bool) -> None:
    """Find the last layer, write and show it; exits 3 if it was not found."""
    from divulge.extraction import last_layer

    found = last_layer(oracle, seed=seed)
    if out is not None:
        found.save(out)
    said = (
        f"width {found.width} of the last layer, up to an invertible matrix; fresh answers are off by "
        f"{found.error:.1e} of their spread ({found.queries:,} values, {found.seconds:.1f} s)"
    )
    show(found.as_dict(), json_wanted=json, quiet=quiet, text=said if found.success else f"not found: {found.reason}")
    if not found.success:
        raise typer.Exit(NOT_FOUND)
