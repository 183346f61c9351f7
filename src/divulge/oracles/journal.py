"""The durable record of a remote oracle's answers: a run that died resumes from it and asks nothing twice.

An SQLite file in write-ahead mode. Every response is one appended row, on disk before the attack sees the answer, so
killing the process at any moment loses no answer that was received. A question's row is known by a hash of its kind
and its exact bytes; the row itself is not kept, and neither is the bearer token. Which hash is where is held in memory
(some 200 bytes a row) and follows what other processes append. A journal belongs to one target (its address and what
its server says about the model) and is refused for any other.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divulge.errors import DivulgeError, JournalMismatch, JournalUnusable
from divulge.oracles.base import Kind

FORMAT = 1
APPLICATION_ID = 0x64767567  # "dvug", in the file's header
KEY = 16  # bytes of a key


class Journal:
    """Answers by key. Safe for many threads, and for other processes that read or write the same file."""

    def __init__(self, path: str | Path, *, target: str, fingerprint: str) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._where: dict[bytes, tuple[int, int]] = {}  # key -> response and row in it
        self._seen = 0
        self._last: tuple[int, bytes, int] | None = None  # a resumed run asks in the order of the first
        try:
            self._db = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._unusable("opened", error) from error
        try:
            self._open(target, fingerprint)
        except DivulgeError:
            self._db.close()
            raise
        except sqlite3.Error as error:
            self._db.close()
            raise self._unusable("opened", error) from error

    def _open(self, target: str, fingerprint: str) -> None:
        identity = self._db.execute("PRAGMA application_id").fetchone()[0]
        tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and identity != APPLICATION_ID:
            raise JournalMismatch(f"{self.path} is a database of another program, not a journal; choose another file.")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("BEGIN IMMEDIATE")  # two runs that start together must not both found it
        try:
            if not tables:
                self._db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            self._db.execute("CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, is_ TEXT NOT NULL)")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS responses "
                "(id INTEGER PRIMARY KEY AUTOINCREMENT, keys BLOB NOT NULL, answers BLOB NOT NULL)"
            )
            mine = {"format": str(FORMAT), "target": target, "fingerprint": fingerprint}
            self._db.executemany("INSERT OR IGNORE INTO about VALUES (?, ?)", mine.items())
            theirs = dict(self._db.execute("SELECT name, is_ FROM about").fetchall())
        finally:
            self._db.execute("COMMIT")
        if theirs["format"] != mine["format"]:
            raise JournalMismatch(
                f"{self.path} was written by another version of divulge (format {theirs['format']}, this one writes "
                f"{FORMAT}); start a new journal."
            )
        if theirs["target"] != target:
            raise JournalMismatch(
                f"{self.path} is the journal of {theirs['target']}, not of {target}; give each target its own journal."
            )
        if theirs["fingerprint"] != fingerprint:
            raise JournalMismatch(
                f"{self.path} was written when the model at {target} had other inputs, outputs or version; its answers "
                "are of another model. Start a new journal."
            )

    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The recorded answers among ``keys``."""
        try:
            with self._lock:
                self._follow()
                found: dict[bytes, bytes] = {}
                places = ((key, self._where[key]) for key in keys if key in self._where)
                for response, some in groupby(sorted(places, key=lambda place: place[1]), lambda place: place[1][0]):
                    blob, count = self._response(response)
                    width = len(blob) // count
                    found.update((key, blob[row * width : (row + 1) * width]) for key, (_, row) in some)
                return found
        except sqlite3.Error as error:
            raise self._unusable("read", error) from error

    def write(self, keys: Sequence[bytes], answers: NDArray[Any]) -> None:
        """Record one response, a row of ``answers`` for each key; returns when it is on disk."""
        try:
            with self._lock:
                self._db.execute(
                    "INSERT INTO responses (keys, answers) VALUES (?, ?)", (b"".join(keys), answers.tobytes())
                )
        except sqlite3.Error as error:
            raise self._unusable("written", error) from error

    def _follow(self) -> None:
        """Learn what was appended since the last look, by this process or another."""
        for number, keys in self._db.execute("SELECT id, keys FROM responses WHERE id > ?", (self._seen,)):
            for row in range(len(keys) // KEY):
                self._where.setdefault(keys[row * KEY : (row + 1) * KEY], (number, row))
            self._seen = number

    def _response(self, number: int) -> tuple[bytes, int]:
        if self._last is None or self._last[0] != number:
            keys, blob = self._db.execute(
                "SELECT length(keys), answers FROM responses WHERE id = ?", (number,)
            ).fetchone()
            self._last = (number, blob, keys // KEY)
        return self._last[1:]

    def __len__(self) -> int:
        with self._lock:
            self._follow()
            return len(self._where)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _unusable(self, done: str, error: sqlite3.Error) -> JournalUnusable:
        return JournalUnusable(
            f"The journal {self.path} cannot be {done}: {error}. Give a file in a folder that exists, on a disk with "
            "room."
        )


def keys_of(kind: Kind, rows: NDArray[Any]) -> list[bytes]:
    """A key for each row: the hash of the kind of question, the number format and the row's exact bytes."""
    rows = np.ascontiguousarray(rows)
    start = hashlib.blake2b(digest_size=KEY, person=f"{kind}:{rows.dtype.str}".encode())
    width = rows.shape[1] * rows.itemsize
    flat = rows.data.cast("B")
    keys = []
    for place in range(0, len(flat), width):
        one = start.copy()
        one.update(flat[place : place + width])
        keys.append(one.digest())
    return keys
