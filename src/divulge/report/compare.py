"""What changed between two audits: for a new version of a model, before it replaces the old one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from divulge.auditing.finding import SEVERITIES
from divulge.errors import InvalidInput


@dataclass(frozen=True)
class Change:
    """One finding in two reports; None where the other report does not have it."""

    name: str
    title: str
    before: str | None
    after: str | None
    measures: dict[str, tuple[Any, Any]]

    @property
    def verdict(self) -> str:
        if self.before is None or self.after is None:
            return "new" if self.before is None else "gone"
        step = SEVERITIES.index(self.after) - SEVERITIES.index(self.before)
        return "worse" if step > 0 else "better" if step < 0 else "same"

    @property
    def alarming(self) -> bool:
        """Something was taken that was not taken before, or that matters more now."""
        return self.verdict == "worse" or (self.verdict == "new" and self.after != "none")


def compare(before: str | Path, after: str | Path) -> list[Change]:
    """The findings of two report.json files side by side, worst changes first."""
    old, new = (_findings(path) for path in (before, after))
    changes = []
    for name in [*new, *(name for name in old if name not in new)]:
        a, b = old.get(name), new.get(name)
        measures = {
            key: ((a or {}).get("measures", {}).get(key), (b or {}).get("measures", {}).get(key))
            for key in {**(a or {}).get("measures", {}), **(b or {}).get("measures", {})}
        }
        changes.append(
            Change(
                name=name,
                title=(b or a or {})["title"],
                before=a["severity"] if a else None,
                after=b["severity"] if b else None,
                measures={key: pair for key, pair in measures.items() if pair[0] != pair[1]},
            )
        )
    order = ["worse", "new", "gone", "better", "same"]
    return sorted(changes, key=lambda change: order.index(change.verdict))


def _findings(path: str | Path) -> dict[str, dict[str, Any]]:
    path = Path(path)
    path = path / "report.json" if path.is_dir() else path
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return {finding["name"]: finding for finding in document["findings"]}
    except FileNotFoundError as error:
        raise InvalidInput(f"{path} is not there; give the report.json that divulge audit wrote.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} is not a report that divulge audit wrote.") from error
