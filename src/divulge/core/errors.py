"""The errors that divulge raises. Each is one clear sentence: what was wrong, what was expected, what to do.

An error raised in the middle of an attack carries in ``partial`` whatever was already rebuilt and paid for in queries.
"""

from __future__ import annotations

from typing import Any

from divulge.core.text import clean_lines


class DivulgeError(Exception):
    """The base of all errors that divulge raises on purpose.

    Parameters
    ----------
    message : str
        One sentence.
    partial : object, optional
        What an attack had rebuilt when it was stopped; it was paid for in queries, and is not lost.

    Examples
    --------
    >>> import divulge
    >>> try:
    ...     divulge.datasets.load("nothing")
    ... except divulge.DivulgeError as error:
    ...     error.exit_code
    2
    """

    exit_code = 2

    def __init__(self, message: str, *, partial: Any = None) -> None:
        message = clean_lines(message)  # it may quote names from models, files and servers
        quoted = message.endswith("..") and not message.endswith("...")  # what it quotes ended in a full stop too
        super().__init__(message[:-1] if quoted else message)
        self.partial = partial


# -- what the user handed in ------------------------------------------------------------------------------------------


class InvalidInput(DivulgeError, ValueError):
    """A parameter, a row or a file that does not make sense; raised before anything runs."""


class NonFiniteInput(InvalidInput):
    """Raised for rows, weights or data that hold NaN or infinity."""


class WrongShape(InvalidInput):
    """Raised for rows of the wrong width, and for data or weights that do not fit the model."""


class EmptyBatch(InvalidInput):
    """Raised for a query or a data set without rows."""


class UnknownAccess(InvalidInput):
    """Raised for an access level other than label, value, gradient and weights."""


class AccessDenied(InvalidInput):
    """Raised when a question needs more than the granted access: a gradient from an oracle of values."""


class UnsupportedModel(InvalidInput):
    """Raised for a model that this attack or reader cannot handle; the sentence names the layer or operator."""


class UntrustedFile(InvalidInput):
    """Raised for a file that could run code when it is loaded, unless the user said to trust it."""


class MissingData(InvalidInput):
    """Raised when a named data set is not on disk; the sentence says how to download it."""


class MissingPackage(InvalidInput):
    """Raised when an optional package is not installed; the sentence names the extra that brings it."""


# -- what the target did ----------------------------------------------------------------------------------------------


class TargetError(DivulgeError):
    """The base of errors that the target caused."""

    exit_code = 3


class NonFiniteAnswer(TargetError):
    """Raised when the model answered NaN or infinity."""


class NotDeterministic(TargetError):
    """Raised when the model answered the same row differently twice."""


class ServerError(TargetError):
    """The base of errors of a remote model: it could not be asked, or its answer is of no use."""


class ServerUnreachable(ServerError):
    """Raised when there is no server at the address, or the connection broke."""


class ServerTimeout(ServerError):
    """Raised when the server did not answer in time."""


class ServerRedirected(ServerError):
    """Raised when the server points to another address; queries are never sent on to it."""


class ServerRefused(ServerError):
    """Raised when the server refuses (not authorised, not found, too large) and another try would not help."""


class ServerFailed(ServerError):
    """Raised when the server kept answering "too many requests" or "internal error" after every retry."""


class BadAnswer(ServerError):
    """Raised when the server answered with something other than the promised tensor."""


# -- how the run ended ------------------------------------------------------------------------------------------------


class BudgetExhausted(DivulgeError):
    """Raised when the next row would exceed the query budget; nothing beyond it was asked."""

    exit_code = 4


class WorkerLost(DivulgeError):
    """Raised when a job took its worker down every time it was tried, or the scheduler of a cluster was lost."""

    exit_code = 3


class AttackFailed(DivulgeError):
    """Raised when an attack ran and has nothing to return; ``partial`` may hold what was rebuilt."""

    exit_code = 3


class OutOfMemory(DivulgeError):
    """Raised when a step needs more memory than it may use; the sentence says how much."""

    exit_code = 3


class JournalMismatch(InvalidInput):
    """Raised for a journal that belongs to another target or another run."""


class JournalUnusable(InvalidInput):
    """Raised for a journal that cannot be opened, read or written."""
