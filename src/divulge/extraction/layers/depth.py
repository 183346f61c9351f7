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

    def notes(self, widths: list[int]) -> tuple[str, ...]:
        """What to say of hidden layers of other widths than were expected."""
        if not widths or self.widths is None or list(self.widths) == widths:
            return ()
        return (
            f"Hidden layers of {widths} neurons were found where you expected {list(self.widths)}: dead neurons leave "
            "no trace, and neurons on the same hyperplane count as one.",
        )


def checked_depth(layers: int, widths: Sequence[int] | None) -> Depth:
    """The parameters ``layers`` and ``widths`` of an attack, refused if they make no sense."""
    checked_whole("layers", layers, at_least=1)
    if widths is None:
        return Depth(layers)
    for width in widths:
        checked_whole("each of widths", width, at_least=1)
    return Depth(max(1, len(widths)), tuple(widths))
