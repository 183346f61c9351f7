"""Findings on disk as they are made, so that an audit that was stopped or killed continues where it was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from divulge.auditing.target import CHECKPOINTS
from divulge.core.errors import InvalidInput
from divulge.core.storage import write, write_json
from divulge.oracles.ledger import Spent
from divulge.report.findings import Finding, Picture, Table


class Store:
    """A folder with one JSON and its pictures for each finding, each file written whole or not at all.

    What another audit left in the folder is removed. With ``resume`` such a folder is refused.
    """

    def __init__(self, folder: Path, fingerprint: dict[str, Any], *, resume: bool) -> None:
        self.folder = folder / "findings"
        marker = self.folder / "audit.json"
        mine = json.loads(json.dumps(fingerprint, default=str))
        theirs = _read(marker)
        if resume and theirs is None:
            raise InvalidInput(f"There is no audit in {folder} to continue; start one there first.")
        if theirs is not None and theirs != mine:
            if resume:
                differing = sorted(key for key in {**theirs, **mine} if theirs.get(key) != mine.get(key))
                raise InvalidInput(
                    f"{folder} holds another audit (it differs in {', '.join(differing)}); resume with the same target "
                    "and options, or choose another folder."
                )
            for old in (self.folder, folder / CHECKPOINTS):
                shutil.rmtree(old, ignore_errors=True)
        write_json(marker, mine)

    def load(self, name: str) -> Finding | None:
        """The finding, if an earlier run finished it."""
        stored = _read(self.folder / f"{name}.json")
        if stored is None:
            return None
        queries = stored.pop("queries")
        stored["ledger"] = Spent(**{kind: queries[kind] for kind in ("value", "gradient", "label", "requests")})
        stored["pictures"] = tuple(
            Picture((self.folder / f"{name}-{i}.png").read_bytes(), p["alt"], p["caption"], p["wide"], p["records"])
            for i, p in enumerate(stored["pictures"])
        )
        stored["tables"] = tuple(
            Table(t["caption"], tuple(t["columns"]), tuple(tuple(row) for row in t["rows"]), t["records"])
            for t in stored["tables"]
        )
        stored |= {key: tuple(stored[key]) for key in ("remedies", "untested", "notes")}
        del stored["state"]  # which follows from the outcome
        return Finding(**stored)

    def save(self, finding: Finding) -> None:
        """Write the finding, its pictures first."""
        for i, picture in enumerate(finding.pictures):
            write(self.folder / f"{finding.name}-{i}.png", picture.png)
        plain = finding.as_dict()
        plain["pictures"] = [
            {"alt": p.alt, "caption": p.caption, "wide": p.wide, "records": p.records} for p in finding.pictures
        ]
        write_json(self.folder / f"{finding.name}.json", plain)


def _read(path: Path) -> dict[str, Any] | None:
    """The dictionary in a JSON file; None where there is none, or it cannot be read."""
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return stored if isinstance(stored, dict) else None
