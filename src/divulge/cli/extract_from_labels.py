"""``divulge extract --access label``: a copy from decisions alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from divulge.cli.common import deliver_copy
from divulge.core.errors import DivulgeError, InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

    from divulge.extraction import LabelCopy
    from divulge.oracles import Oracle

NOT_COPIED = 3


@dataclass(frozen=True)
class Asked:
    """The options of the command."""

    inputs: Tensor | None
    scale: float | None
    bounds: str | None
    checks: int | None
    seed: int


def rebuild(oracle: Oracle, asked: Asked, *, out: Path | None, onnx: bool, json: bool, quiet: bool) -> None:
    """Run the attack, write the copy and show the figures. Exits 3 if the copy is not equivalent."""
    from divulge import extraction

    checks = {} if asked.checks is None else {"checks": asked.checks}
    try:
        stolen = extraction.from_labels(
            oracle, inputs=asked.inputs, seed=asked.seed, scale=asked.scale, bounds=_bounds(asked.bounds), **checks
        )
    except DivulgeError as error:
        if isinstance(error.partial, extraction.LabelCopy):
            deliver_copy(error.partial, out, _text(error.partial, out), onnx=onnx, json_wanted=json, quiet=quiet)
        raise
    deliver_copy(stolen, out, _text(stolen, out), onnx=onnx, json_wanted=json, quiet=quiet)
    if not stolen.equivalent:
        raise typer.Exit(NOT_COPIED)


def _bounds(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidInput(f"--bounds takes two numbers such as 0,1; got {text!r}.") from error
    return low, high


def _text(stolen: LabelCopy, out: Path | None) -> str:
    layers = " + ".join(str(width) for width in stolen.widths) or "no"
    near = [f"{share:.2%} at {distance:g} from the boundary" for distance, share in stolen.agreement_near.items()]
    alike = [f"decides alike on {stolen.agreement:.2%} of {stolen.verified_rows:,} fresh rows", *near]
    lines = [
        f"{'equivalent' if stolen.equivalent else 'not equivalent'}: {layers} hidden neurons",
        ", ".join(alike) if stolen.verified_rows else "not compared with the target",
        f"asked {stolen.queries:,} labels in {stolen.requests:,} requests and {stolen.seconds:.1f} s, and "
        f"{stolen.verification.total:,} more to verify the copy",
    ]
    lines += [f"why: {stolen.reason}"] if stolen.reason else []
    lines += [f"note: {note}" for note in stolen.notes]
    lines += [f"written to {out}"] if out is not None else []
    return "\n".join(lines)
