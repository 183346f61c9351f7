"""Several audits side by side and over time: every report in a folder or an SQLite file, as a table and a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from divulge.core.errors import InvalidInput
from divulge.report import archive
from divulge.report.compare import standings

_SMALLEST = {"schema_version", "target", "findings", "severity"}


@dataclass(frozen=True)
class PastAudit:
    """One audit of a history.

    Parameters
    ----------
    path : Path
        Its report.json.
    model, date, version : str
        The name of the model, the day of the audit, and the version of divulge.
    state, severity : str
        Its verdict.
    attacks : dict
        For each attack that fits the model: its severity, "not taken", "inconclusive" or "not tried".
    digest : str
        Digest of the model; empty where the report has none.
    """

    path: Path
    model: str
    date: str
    version: str
    state: str
    severity: str
    attacks: dict[str, str]
    digest: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**self.__dict__, "path": str(self.path)}


def history(source: str | Path) -> list[PastAudit]:
    """Every audit in a folder and below it, or in an SQLite file of audits, by model and then by date.

    Parameters
    ----------
    source : path
        A folder that holds reports (report.json), or the SQLite file that :func:`remember` writes.

    Returns
    -------
    list of PastAudit
        The audits. A report of an earlier version is read as far as it goes.

    Raises
    ------
    InvalidInput
        If it is not there, is no SQLite file of audits, or holds no report of an audit.

    Examples
    --------
    >>> import tempfile
    >>> from divulge.report import Report, history
    >>> folder = tempfile.mkdtemp()
    >>> report = Report({"name": "m", "kind": "a linear model"}, [], [], seconds=1.0, seed=0, date="2026-01-31")
    >>> path = report.save(folder + "/first/report.json")
    >>> [(audit.model, audit.date, audit.state) for audit in history(folder)]
    [('m', '2026-01-31', 'inconclusive')]
    """
    source = Path(source)
    if source.is_file():
        if not archive.is_archive(source):
            raise InvalidInput(f"{source} is neither a folder of audits nor an SQLite file of them.")
        found = [audit for path, text in archive.documents(source) if (audit := _read(path, text)) is not None]
    elif source.is_dir():
        found = [audit for path in _reports(source) if (audit := _read(path)) is not None]
    else:
        raise InvalidInput(f"There is no {source}; give the folder that holds the folders of your audits.")
    if not found:
        raise InvalidInput(f"{source} holds no report.json of an audit; divulge audit MODEL --out FOLDER makes one.")
    return sorted(found, key=lambda audit: (audit.model, audit.date, str(audit.path)))


def unreadable(source: str | Path) -> list[Path]:
    """The files of a folder that are named like a report and are none that can be read.

    Parameters
    ----------
    source : path
        What :func:`history` read; an SQLite file has none.

    Returns
    -------
    list of Path
    """
    return [path for path in Path(source).rglob("report.json") if _read(path) is None]


def remember(source: str | Path, database: str | Path) -> int:
    """Add every audit in a folder to an SQLite file, in which each stands once.

    Parameters
    ----------
    source : path
        A folder that holds reports, or one report.json.
    database : path
        The SQLite file, which is made if it is not there.

    Returns
    -------
    int
        How many audits were not in it before.

    Raises
    ------
    InvalidInput
        If there is no audit, or the file belongs to another program.

    Examples
    --------
    >>> import tempfile
    >>> from divulge.report import Report, history, remember
    >>> folder = tempfile.mkdtemp()
    >>> report = Report({"name": "m", "kind": "a linear model"}, [], [], seconds=1.0, seed=0, date="2026-01-31")
    >>> path = report.save(folder + "/first/report.json")
    >>> remember(path, folder + "/audits.sqlite"), remember(folder, folder + "/audits.sqlite")
    (1, 0)
    >>> [audit.model for audit in history(folder + "/audits.sqlite")]
    ['m']
    """
    source = Path(source)
    paths = [source] if source.is_file() else _reports(source)
    audits = [path for path in paths if _read(path) is not None]
    if not audits:
        raise InvalidInput(f"There is no report.json of an audit in {source}.")
    return archive.add(Path(database), audits)


def _reports(folder: Path) -> list[Path]:
    return sorted(folder.rglob("report*.json"))


def page(audits: Sequence[PastAudit], folder: str | Path = ".") -> str:
    """The audits as one page: a row an audit, a column an attack.

    Parameters
    ----------
    audits : sequence of PastAudit
        What :func:`history` read.
    folder : path, default "."
        Where the page will lie. It links to the report.html of each audit that lies in this folder or below it.

    Returns
    -------
    str
        HTML without scripts or requests.
    """
    from divulge.report.document import environment, style

    attacks = list(dict.fromkeys(name for audit in audits for name in audit.attacks))
    rows = [(audit, _link(audit, Path(folder))) for audit in audits]
    template = environment(autoescape=True).get_template("history.html")
    return str(template.render(rows=rows, attacks=attacks, style=style()))


def _link(audit: PastAudit, folder: Path) -> str:
    """The relative address of the page of an audit; empty where there is none below the folder."""
    beside = audit.path.with_suffix(".html").resolve()
    if not beside.is_file() or not beside.is_relative_to(folder.resolve()):
        return ""
    return quote(beside.relative_to(folder.resolve()).as_posix())


def _read(path: Path, text: str | None = None) -> PastAudit | None:
    """The audit of a report, by the text of the file unless that is given; None for other files."""
    try:
        document = json.loads(path.read_text(encoding="utf-8") if text is None else text)
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict) or not document.keys() >= _SMALLEST or "bomFormat" in document:
        return None
    try:
        return PastAudit(
            path, str(document["target"].get("name", "")), str(document.get("date", "")),
            str(document.get("versions", {}).get("divulge", "")), str(document.get("state", "unknown")),
            str(document["severity"]), standings(document), str(document.get("digests", {}).get("model", "")),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError):
        return None
