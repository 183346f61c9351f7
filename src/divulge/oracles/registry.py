"""Oracles of the user's own: ``divulge.oracle`` asks each plug-in first whether it can open a source.

A plug-in joins by an entry point of the group ``divulge.oracles`` in its package, or by ``register``. Either way it is
an ``OracleOpener``: a function that returns an Oracle for the sources that it knows, and None for all others.
"""

from __future__ import annotations

from typing import Protocol

from divulge.core.errors import InvalidInput
from divulge.core.plugins import installed
from divulge.oracles.base import Oracle
from divulge.oracles.options import OracleOptions

ENTRY_POINTS = "divulge.oracles"


class OracleOpener(Protocol):
    """A function ``opener(source, options)``: an Oracle, or None if the source is not its own."""

    def __call__(self, source: object, options: OracleOptions) -> Oracle | None: ...


def register(name: str, opener: OracleOpener) -> None:
    """Add an oracle of your own, so that ``divulge.oracle`` opens its sources.

    A package does the same without a call by an entry point of the group ``divulge.oracles``, whose object is the
    opener. Plug-ins are asked before the built-in oracles, the registered ones first.

    Parameters
    ----------
    name : str
        What the plug-in is called. A name that is taken is refused.
    opener : callable
        ``opener(source, options)`` returns an Oracle, or None if the source is not its own.

    Raises
    ------
    InvalidInput
        If the name is taken.

    Examples
    --------
    >>> import divulge
    >>> from divulge import oracles
    >>> class Total(oracles.Oracle):
    ...     def _value(self, X):
    ...         return X.sum(dim=1, keepdim=True)
    >>> def open_total(source, options):
    ...     if source != "total://3":
    ...         return None
    ...     return Total(input_dim=3, output_dim=1, access=options.access, budget=options.budget)
    >>> oracles.register("total", open_total)
    >>> divulge.oracle("total://3").value([[1.0, 2.0, 3.0]])
    tensor([[6.]], dtype=torch.float64)
    >>> oracles.unregister("total")
    """
    if name in _openers():
        raise InvalidInput(f"There is an oracle plug-in {name!r} already; choose another name.")
    _REGISTERED[name] = opener


def unregister(name: str) -> None:
    """Remove an oracle that ``register`` added.

    Parameters
    ----------
    name : str
        The name it was registered under. An unknown name is ignored.

    Examples
    --------
    >>> import divulge
    >>> divulge.oracles.unregister("never registered")
    """
    _REGISTERED.pop(name, None)


def open_by_plugin(source: object, options: OracleOptions) -> Oracle | None:
    """The oracle of the first plug-in that knows the source, or None."""
    for name, opener in _openers().items():
        opened = opener(source, options)
        if opened is None:
            continue
        if not isinstance(opened, Oracle):
            raise InvalidInput(f"The oracle plug-in {name!r} returned a {type(opened).__name__}, not an Oracle.")
        return opened
    return None


def _openers() -> dict[str, OracleOpener]:
    return {**_REGISTERED, **{n: o for n, o in installed(ENTRY_POINTS).items() if n not in _REGISTERED}}


_REGISTERED: dict[str, OracleOpener] = {}
