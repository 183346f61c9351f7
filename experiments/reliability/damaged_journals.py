"""Journals with flipped bits, cut ends, foreign pages and changed rows: a damaged one is refused, or answers rightly.

A row that the damage took is asked again; a number that it changed must never be an answer.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from divulge import serving
from divulge.core.errors import DivulgeError
from divulge.models import MLP
from divulge.oracles.remote.http import HttpOracle

ROWS = 200
KINDS = ("bits", "cut", "zeros", "noise", "answers", "keys", "rows", "text")


def damage(path: Path, kind: str, draw: random.Random) -> None:
    """Damage a journal in one way."""
    content = bytearray(path.read_bytes())
    if kind == "bits":
        for _ in range(draw.randint(1, 20)):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del content[draw.randrange(len(content)) :]
    elif kind in ("zeros", "noise"):
        start = draw.randrange(len(content))
        size = min(draw.choice([64, 1024, 4096]), len(content) - start)
        content[start : start + size] = bytes(size) if kind == "zeros" else draw.randbytes(size)
    if kind in ("bits", "cut", "zeros", "noise"):
        path.write_bytes(bytes(content))
        return
    with sqlite3.connect(path) as db:
        number, keys, answers = draw.choice(db.execute("SELECT id, keys, answers FROM responses").fetchall())
        if kind == "answers":
            changed = bytearray(answers)
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
            db.execute("UPDATE responses SET answers = ? WHERE id = ?", (bytes(changed), number))
        elif kind == "keys":
            db.execute("UPDATE responses SET keys = ? WHERE id = ?", (keys[16:] + keys[:16], number))
        elif kind == "rows":
            db.execute(
                "UPDATE responses SET answers = (SELECT answers FROM responses WHERE id != ? LIMIT 1) WHERE id = ?",
                (number, number),
            )
        else:
            db.execute("UPDATE responses SET answers = ? WHERE id = ?", ("text", number))


def run(count: int = 40, seed: int = 0) -> dict[str, Any]:
    """So many journals, damaged in every way in turn."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    model = MLP([5, 4, 1]).double()
    X = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    truth = model(X).detach().numpy()
    counts = {"refused": 0, "right": 0, "false": 0, "foreign": 0}
    with tempfile.TemporaryDirectory() as temporary, serving.running(model) as url:
        whole, path = Path(temporary) / "whole.db", Path(temporary) / "answers.db"
        with HttpOracle(url, journal=whole, batch_size=10) as oracle:
            oracle.value(X)
        for case in range(count):
            for old in Path(temporary).glob("answers.db*"):
                old.unlink()
            shutil.copy(whole, path)
            damage(path, KINDS[case % len(KINDS)], draw)
            try:
                with HttpOracle(url, journal=path, batch_size=10) as oracle:
                    same = np.array_equal(oracle.value(X).numpy(), truth)
                counts["right" if same else "false"] += 1
            except DivulgeError:
                counts["refused"] += 1
            except Exception:  # what the cases look for
                counts["foreign"] += 1
    return {"journals": count, **counts}
