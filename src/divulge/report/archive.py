"""Reports of audits in one SQLite file, for those who keep no folders: each document as it was written.

A report is added once, however often it is offered: its key is the SHA-256 digest of its text. The documents are JSON
text in the column ``document`` of the table ``audits``, so that any SQLite client can read them.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from divulge.core.errors import InvalidInput

APPLICATION_ID = 0x64767261  # "dvra", in the file's header
_TABLE = "CREATE TABLE IF NOT EXISTS audits (digest TEXT PRIMARY KEY, path TEXT NOT NULL, document TEXT NOT NULL)"


def is_archive(path: Path) -> bool:
    """Whether a file is an SQLite database."""
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def add(archive: Path, reports: Iterable[Path]) -> int:
    """Put reports into the file, which is made if it is not there.

    Parameters
    ----------
    archive : Path
        The SQLite file.
    reports : iterable of Path
        Each a report.json.

    Returns
    -------
    int
        How many were not in it before.

    Raises
    ------
    InvalidInput
        If the file belongs to another program, or cannot be written.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    with _opened(archive) as db, db:
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(_TABLE)
        _check(db, archive)
        before = db.total_changes
        for path in reports:
            text = path.read_text(encoding="utf-8")
            key = hashlib.sha256(text.encode()).hexdigest()
            db.execute("INSERT OR IGNORE INTO audits VALUES (?, ?, ?)", (key, str(path.absolute()), text))
        return db.total_changes - before


def documents(archive: Path) -> Iterator[tuple[Path, str]]:
    """Every report in the file: where it was when it was added, and its text.

    Parameters
    ----------
    archive : Path
        The SQLite file.

    Yields
    ------
    (Path, str)

    Raises
    ------
    InvalidInput
        If the file belongs to another program, or is damaged.
    """
    with _opened(archive) as db:
        _check(db, archive)
        for path, text in db.execute("SELECT path, document FROM audits ORDER BY rowid"):
            yield Path(path), text


@contextmanager
def _opened(archive: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(archive, timeout=60)) as db:
            yield db
    except sqlite3.Error as error:
        raise InvalidInput(f"{archive} cannot be used as an archive of audits: {error}.") from error


def _check(db: sqlite3.Connection, archive: Path) -> None:
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise InvalidInput(
            f"{archive} is a database of another program, no archive of audits; divulge history NEW.sqlite --add "
            "AUDITS makes one."
        )
