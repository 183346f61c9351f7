"""The durable record of a remote oracle's answers, so that a killed run resumes without asking a row twice.

It is an SQLite file in write-ahead mode. Every response is one appended row, on disk before the attack sees the answer,
so killing the process at any moment loses no answer that was received. The key of a query row is a hash of its kind and
its exact bytes; the row itself is not stored, and neither is the bearer token. The positions of all keys are held in
memory (some 200 bytes a row) and include what other processes append. Each response carries a checksum, so that a
damaged one is refused and not read as an answer. A journal belongs to one target (its address and its server's
metadata) and is refused for any other.
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

from divulge.core.errors import DivulgeError, JournalMismatch, JournalUnusable
from divulge.oracles.ledger import Kind

FORMAT = 2
APPLICATION_ID = 0x64767567  # "dvug", in the file's header
KEY = 16  # bytes of a key


class Journal:
    """Answers by key. Safe for many threads, and for other processes that read or write the same file."""

    def __init__(self, path: str | Path, *, target: str, fingerprint: str) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._location: dict[bytes, tuple[int, int]] = {}  # key -> response id and row in it
        self._seen = 0
        self._last: tuple[int, bytes, int] | None = None  # the last response read; a resumed run reads in order
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
        self._db.execute("BEGIN IMMEDIATE")  # two runs that start together must not both create it
        try:
            if not tables:
                self._db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            self._db.execute("CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, is_ TEXT NOT NULL)")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS responses "
                "(id INTEGER PRIMARY KEY AUTOINCREMENT, keys BLOB NOT NULL, answers BLOB NOT NULL, "
                "checksum BLOB NOT NULL)"
            )
            mine = {"format": str(FORMAT), "target": target, "fingerprint": fingerprint}
            self._db.executemany("INSERT OR IGNORE INTO about VALUES (?, ?)", mine.items())
            theirs = dict(self._db.execute("SELECT name, is_ FROM about").fetchall())
        finally:
            self._db.execute("COMMIT")
        if theirs.keys() != mine.keys():
            raise self._damaged()
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
                self._read_appended()
                found: dict[bytes, bytes] = {}
                places = ((key, self._location[key]) for key in keys if key in self._location)
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
                response = b"".join(keys), answers.tobytes()
                self._db.execute(
                    "INSERT INTO responses (keys, answers, checksum) VALUES (?, ?, ?)",
                    (*response, _checksum(*response)),
                )
        except sqlite3.Error as error:
            raise self._unusable("written", error) from error

    def _read_appended(self) -> None:
        """Read the keys appended since the last call, by this process or another."""
        for number, keys in self._db.execute("SELECT id, keys FROM responses WHERE id > ?", (self._seen,)):
            if not isinstance(keys, bytes) or not keys or len(keys) % KEY:
                raise self._damaged()
            for row in range(len(keys) // KEY):
                self._location.setdefault(keys[row * KEY : (row + 1) * KEY], (number, row))
            self._seen = number

    def _response(self, number: int) -> tuple[bytes, int]:
        if self._last is None or self._last[0] != number:
            found = self._db.execute("SELECT keys, answers, checksum FROM responses WHERE id = ?", (number,)).fetchone()
            if found is None or not all(isinstance(part, bytes) for part in found) or _checksum(*found[:2]) != found[2]:
                raise self._damaged()
            self._last = (number, found[1], len(found[0]) // KEY)
        return self._last[1:]

    def __len__(self) -> int:
        with self._lock:
            self._read_appended()
            return len(self._location)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _damaged(self) -> JournalMismatch:
        return JournalMismatch(f"{self.path} is damaged: it does not hold what was written. Start a new journal.")

    def _unusable(self, done: str, error: sqlite3.Error) -> JournalUnusable:
        return JournalUnusable(
            f"The journal {self.path} cannot be {done}: {error}. Give a file in a folder that exists, on a disk with "
            "room."
        )


def _checksum(keys: bytes, answers: bytes) -> bytes:
    checksum = hashlib.blake2b(len(keys).to_bytes(8, "little"), digest_size=16)
    checksum.update(keys)
    checksum.update(answers)
    return checksum.digest()


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
