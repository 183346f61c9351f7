"""What a caller knows of a network's depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from divulge.core.validation import checked_whole


@dataclass(frozen=True)
class Depth:
    """How many hidden layers there are at most, and their widths where the caller knows them."""

    most: int = 8
    widths: tuple[int, ...] | None = None


def checked_depth(layers: int, widths: Sequence[int] | None) -> Depth:
    """The parameters ``layers`` and ``widths`` of an attack, refused if they make no sense."""
    checked_whole("layers", layers, at_least=1)
    if widths is None:
        return Depth(layers)
    for width in widths:
        checked_whole("each of widths", width, at_least=1)
    return Depth(max(1, len(widths)), tuple(widths))
