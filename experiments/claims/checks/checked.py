"""One claim of a report beside what an independent computation gives."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Checked:
    """One claim, checked.

    Parameters
    ----------
    where : str
        The finding, or the part of the report.
    claim : str
        What the report says.
    measured : str
        What the independent computation gives.
    true : bool
        Whether the claim holds.
    """

    where: str
    claim: str
    measured: str
    true: bool

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def wrong(claims: list[Checked]) -> list[Checked]:
    """The claims that do not hold."""
    return [one for one in claims if not one.true]
