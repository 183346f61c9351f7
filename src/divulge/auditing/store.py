"""Findings on disk as they are made, so that an audit that was stopped or killed goes on where it was."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from divulge.auditing.finding import Finding, Picture, Table
from divulge.errors import InvalidInput
from divulge.oracles.base import Spent

KEPT = "kept"
"""Where attacks keep what they have computed, inside an audit's folder."""


class Store:
    """A folder with one JSON (and its pictures) a finding, each written whole or not at all.

    What another audit left in the folder is removed, unless this one is to go on with it, which is then refused.
    """

    def __init__(self, folder: Path, fingerprint: dict[str, Any], *, resume: bool) -> None:
        self.folder = folder / "findings"
        marker = self.folder / "audit.json"
        mine = json.loads(json.dumps(fingerprint, default=str))
        theirs = _read(marker)
        if resume and theirs is None:
            raise InvalidInput(f"There is no audit in {folder} to go on with; run it with --out first.")
        if theirs is not None and theirs != mine:
            if resume:
                differing = sorted(key for key in {**theirs, **mine} if theirs.get(key) != mine.get(key))
                raise InvalidInput(
                    f"{folder} holds another audit (it differs in {', '.join(differing)}); resume with the same target "
                    "and options, or choose another folder."
                )
            for old in (self.folder, folder / KEPT):
                shutil.rmtree(old, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        _write(marker, json.dumps(mine, indent=2).encode())

    def load(self, name: str) -> Finding | None:
        """The finding, if an earlier run finished it."""
        told = _read(self.folder / f"{name}.json")
        if told is None:
            return None
        queries = told.pop("queries")
        told["ledger"] = Spent(**{kind: queries[kind] for kind in ("value", "gradient", "label", "requests")})
        told["pictures"] = tuple(
            Picture((self.folder / f"{name}-{i}.png").read_bytes(), p["alt"], p["caption"], p["wide"])
            for i, p in enumerate(told["pictures"])
        )
        told["tables"] = tuple(
            Table(t["caption"], tuple(t["columns"]), tuple(tuple(row) for row in t["rows"])) for t in told["tables"]
        )
        told["remedies"], told["notes"] = tuple(told["remedies"]), tuple(told["notes"])
        return Finding(**told)

    def save(self, finding: Finding) -> None:
        for i, picture in enumerate(finding.pictures):
            _write(self.folder / f"{finding.name}-{i}.png", picture.png)
        plain = finding.as_dict()
        plain["pictures"] = [{"alt": p.alt, "caption": p.caption, "wide": p.wide} for p in finding.pictures]
        _write(self.folder / f"{finding.name}.json", json.dumps(plain, indent=2, default=str).encode())


def _read(marker: Path) -> dict[str, Any] | None:
    """What the audit in this folder was of; None where there is none, or nobody can tell."""
    try:
        told = json.loads(marker.read_text())
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def _write(path: Path, content: bytes) -> None:
    """All or nothing: a run killed in the middle leaves no half-written file behind."""
    temporary = path.with_suffix(path.suffix + ".part")
    temporary.write_bytes(content)
    os.replace(temporary, path)
