"""The small tables that a notebook shows of a result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from divulge.core.text import clean, number

_LEFT = ' style="text-align:left"'


def cell(value: object, length: int = 300) -> str:
    """A value as escaped text of at most so many characters.

    Examples
    --------
    >>> cell("a < b")
    'a &lt; b'
    >>> cell("<<<<", length=10)
    '&lt;&lt;…'
    """
    parts: list[str] = []
    left = length
    for character in clean(number(value)):
        escaped = escape(character)
        left -= len(escaped)
        if left < 0:
            return "".join([*parts, "…"])
        parts.append(escaped)
    return "".join(parts)


def table(
    title: str, rows: Iterable[Sequence[object]], *, header: Sequence[object] = (), most: int = 40, length: int = 300
) -> str:
    """A table with a title. Everything in it is escaped and cut to a readable length.

    Parameters
    ----------
    title : str
        The line above the table.
    rows : iterable of sequences
        Their cells; the first of each is its name.
    header : sequence, optional
        The names of the columns.
    most : int, default 40
        Rows shown; those beyond are counted.
    length : int, default 300
        Characters of a cell.

    Returns
    -------
    str
        HTML without scripts and requests.

    Examples
    --------
    >>> table("Extraction: succeeded", [("width", 12)]).count("<tr>")
    1
    """
    lines = list(rows)
    head = "".join(f"<th{_LEFT}>{cell(name, length)}</th>" for name in header)
    parts = [f"<p><b>{cell(title, length)}</b></p><table>", f"<tr>{head}</tr>" if head else ""]
    for name, *values in lines[:most]:
        cells = "".join(f"<td{_LEFT}>{cell(value, length)}</td>" for value in values)
        parts.append(f"<tr><th{_LEFT}>{cell(name, length)}</th>{cells}</tr>")
    hidden = len(lines) - most
    return "".join([*parts, "</table>", f"<p>{hidden:,} more rows.</p>" if hidden > 0 else ""])
