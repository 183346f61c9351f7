"""Text for a person: numbers as people write them, and text from models, files and servers made safe to print."""

from __future__ import annotations

import math
import unicodedata

_SHOWN = "\N{REPLACEMENT CHARACTER}"
_SPACES = "\t\n\r\v\f\N{NEXT LINE}\N{LINE SEPARATOR}\N{PARAGRAPH SEPARATOR}"


def number(value: object) -> str:
    """A value for a person: thousands separated, small and large numbers in three digits, a dash for no number.

    Examples
    --------
    >>> number(12345), number(1e-9), number(True), number(None)
    ('12,345', '1.00e-09', 'yes', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "–"
        return f"{value:,.4g}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.2e}"
    if isinstance(value, list | tuple):
        return ", ".join(number(part) for part in value)
    return str(value)


def clean(text: str) -> str:
    """One line of text without anything that a terminal or a browser would act on.

    Parameters
    ----------
    text : str
        Text of unknown origin.

    Returns
    -------
    str
        The text with line breaks and tabs as spaces. Control characters (such as the escape byte of terminal colours),
        marks that change the direction of writing, and other characters that have no shape are each shown as U+FFFD.

    Examples
    --------
    >>> clean("red: \\x1b[31m, reversed: \\u202e")
    'red: \ufffd[31m, reversed: \ufffd'
    """
    return "".join(" " if char in _SPACES else _SHOWN if _shapeless(char) else char for char in text)


def clean_lines(text: str) -> str:
    """As :func:`clean`, line by line.

    Examples
    --------
    >>> clean_lines("one\\ntwo\\x07")
    'one\\ntwo\ufffd'
    """
    return "\n".join(clean(line) for line in text.split("\n"))


def _shapeless(char: str) -> bool:
    """Control, format, surrogate and private-use characters."""
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co")
