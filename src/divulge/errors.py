"""Every way divulge can say no. Each error is one clear sentence: what was wrong, what was expected, what to do.

An error raised in the middle of an attack carries in ``partial`` whatever was already rebuilt and paid for in queries.
"""

from __future__ import annotations

from typing import Any


class DivulgeError(Exception):
    """Base of all errors that divulge raises on purpose."""

    exit_code = 2

    def __init__(self, message: str, *, partial: Any = None) -> None:
        quoted = message.endswith("..") and not message.endswith("...")  # what it quotes ended in a full stop too
        super().__init__(message[:-1] if quoted else message)
        self.partial = partial


# -- what the user handed in ------------------------------------------------------------------------------------------


class InvalidInput(DivulgeError, ValueError):
    """A parameter or a file that does not make sense."""


class NonFiniteInput(InvalidInput):
    """Query rows that hold NaN or infinity."""


class WrongShape(InvalidInput):
    """Query rows of the wrong width, or data that does not fit the model."""


class EmptyBatch(InvalidInput):
    """A query with no rows."""


class UnknownAccess(InvalidInput):
    """An access level that does not exist."""


class AccessDenied(InvalidInput):
    """A question that the granted access level does not cover."""


class UnsupportedModel(InvalidInput):
    """A model that this attack or reader cannot handle; the sentence names the layer or operator."""


class UntrustedFile(InvalidInput):
    """A file that could run code when loaded, and the user did not say to trust it."""


class MissingData(InvalidInput):
    """A data set that is not on disk."""


class MissingPackage(InvalidInput):
    """An optional package that is not installed; the sentence names the extra that brings it."""


# -- what the target did ----------------------------------------------------------------------------------------------


class TargetError(DivulgeError):
    """The target misbehaved."""

    exit_code = 3


class NonFiniteAnswer(TargetError):
    """The model answered NaN or infinity."""


class NotDeterministic(TargetError):
    """The model answered the same row differently twice."""


class ServerError(TargetError):
    """A remote model could not be asked, or answered nonsense."""


class ServerUnreachable(ServerError):
    """Nothing listens there, or the connection broke."""


class ServerTimeout(ServerError):
    """The server took too long."""


class ServerRedirected(ServerError):
    """The server pointed elsewhere; queries are never sent on to another address."""


class ServerRefused(ServerError):
    """The server said no (not authorised, not found, too large), and asking again would not help."""


class ServerFailed(ServerError):
    """The server kept answering "too many requests" or "internal error" after every retry."""


class BadAnswer(ServerError):
    """The server answered with something other than the promised tensor."""


# -- how the run ended ------------------------------------------------------------------------------------------------


class BudgetExhausted(DivulgeError):
    """The next row would exceed the query budget; nothing beyond it was asked."""

    exit_code = 4


class AttackFailed(DivulgeError):
    """An attack ran and did not succeed."""

    exit_code = 3


class JournalMismatch(InvalidInput):
    """A journal that belongs to another target or another run."""


class JournalUnusable(InvalidInput):
    """A journal that cannot be opened, read or written."""
