"""Hints in error messages: divulge writes them in Python's syntax, and the command line translates them.

A sentence that a library function raises says ``trust_pickle=True`` or ``divulge.oracle("net.pt", trust_pickle=True)``.
On the command line the same sentence says ``--trust-pickle`` or ``divulge audit net.pt --trust-pickle``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

OPTIONS = (
    "access", "budget", "columns", "fixed", "guard", "input_shape", "journal", "output", "rate_limit",
    "request", "response", "seed", "token_env", "trust_pickle",
)  # fmt: skip
"""The options of ``divulge.oracle`` that the commands have too."""
_FLAGS = {"fixed": "fix"}
"""Options that the commands call otherwise."""
_VALUE = r'"[^"]*"|\([^()]*\)|\{[^{}]*\}|[\w.]*\w'
_OPTION = re.compile(rf"\b({'|'.join(OPTIONS)})=({_VALUE})?")
_NAMED_SHAPE = re.compile(r'"(\w+)": \(([^()]*)\)')
_CALL = re.compile(rf'divulge\.\w+\("([^"]*)"((?:, \w+=(?:{_VALUE}))*)\)')


def for_command_line(sentence: str, words: Sequence[str]) -> str:
    """An error message with its hints in the syntax of the command line.

    Parameters
    ----------
    sentence : str
        A message with hints in Python's syntax.
    words : sequence of str
        What was typed after ``divulge``. A call in the message becomes this line, with the call's options added.

    Returns
    -------
    str

    Examples
    --------
    >>> typed = ["audit", "net.pt", "--seed", "3"]
    >>> for_command_line('Load it with divulge.oracle("net.pt", trust_pickle=True).', typed)
    'Load it with divulge audit net.pt --seed 3 --trust-pickle.'
    >>> for_command_line("Pass input_shape=(1, 28, 28).", typed)
    'Pass --input-shape 1,28,28.'
    >>> for_command_line('Say which with fixed={"sr": 16000}.', typed)
    'Say which with --fix sr=16000.'
    >>> for_command_line('Pass input_shape={"left": (3, 4), "right": (2,)}.', typed)
    "Pass --input-shape 'left=3,4;right=2'."
    >>> for_command_line("Describe its JSON with request= and response=.", typed)
    'Describe its JSON with --request and --response.'
    """
    sentence = _CALL.sub(lambda call: _line(words, call[1], call[2]), sentence)
    return _OPTION.sub(lambda option: _option(option[1], option[2]), sentence)


def _line(words: Sequence[str], target: str, options: str) -> str:
    """The line that was typed, with another target or more options."""
    typed = [target if _names(word, target) else word for word in words] or ["COMMAND", target]
    added = [_option(option[1], option[2]) for option in _OPTION.finditer(options)]
    return " ".join(["divulge", shlex.join(typed), *added])


def _names(word: str, target: str) -> bool:
    """Whether a word is the file that the target names, by itself or behind code: ``code.py:make@FILE``."""
    return Path(word) == Path(target.rpartition("@")[2])


def _extents(shape: str) -> str:
    """A shape as it is typed."""
    return ",".join(extent.strip().upper() for extent in shape.split(",") if extent.strip())


def _option(name: str, value: str | None) -> str:
    flag = "--" + _FLAGS.get(name, name.replace("_", "-"))
    if value is None or value == "True":
        return flag
    if value.startswith("("):
        return f"{flag} {_extents(value[1:-1])}"
    if named := _NAMED_SHAPE.findall(value):
        return f"{flag} '{';'.join(f'{part}={_extents(shape)}' for part, shape in named)}'"
    if value.startswith("{"):
        return f"{flag} {value[1:-1].replace(chr(34), '').replace(': ', '=')}"
    return f"{flag} {value.strip(chr(34))}"
