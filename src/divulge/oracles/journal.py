"""The durable record of a remote oracle's answers: a run that died resumes from it and asks nothing twice.

An SQLite file in write-ahead mode. Every response is one transaction that is on disk before the attack sees the
answer, so killing the process at any moment loses no answer that was received. A row is known by a hash of the kind of
question and its exact bytes; the row itself is not kept, and neither is the bearer token. A journal belongs to one
target (its address and what its server says about the model) and is refused for any other.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divulge.errors import DivulgeError, JournalMismatch, JournalUnusable
from divulge.oracles.base import Kind

FORMAT = 1
APPLICATION_ID = 0x64767567  # "dvug", in the file's header
CHUNK = 500  # keys looked up by one statement


class Journal:
    """Answers by key. Safe for many threads, and for other processes that read or write the same file."""

    def __init__(self, path: str | Path, *, target: str, fingerprint: str) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
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
            self._db.execute("CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, answer BLOB NOT NULL)")
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
        found: dict[bytes, bytes] = {}
        try:
            with self._lock:
                for start in range(0, len(keys), CHUNK):
                    some = keys[start : start + CHUNK]
                    marks = ",".join("?" * len(some))
                    found.update(self._db.execute(f"SELECT key, answer FROM answers WHERE key IN ({marks})", some))
        except sqlite3.Error as error:
            raise self._unusable("read", error) from error
        return found

    def write(self, keys: Sequence[bytes], answers: NDArray[Any]) -> None:
        """Record one response, a row of ``answers`` for each key; returns when it is on disk."""
        rows = [(key, row.tobytes()) for key, row in zip(keys, answers, strict=True)]
        try:
            with self._lock:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    self._db.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
                self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._unusable("written", error) from error

    def __len__(self) -> int:
        with self._lock:
            return int(self._db.execute("SELECT count(*) FROM answers").fetchone()[0])

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
    start = hashlib.blake2b(digest_size=16, person=f"{kind}:{rows.dtype.str}".encode())
    width = rows.shape[1] * rows.itemsize
    flat = rows.data.cast("B")
    keys = []
    for place in range(0, len(flat), width):
        one = start.copy()
        one.update(flat[place : place + width])
        keys.append(one.digest())
    return keys
