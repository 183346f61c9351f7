"""Which probes an audit runs: those of divulge, those that were registered, and those of installed packages.

A package brings probes of its own by an entry point of the group ``divulge.probes``, which names a :class:`Probe` or
several:

    [project.entry-points."divulge.probes"]
    mine = "my_package.my_module:PROBE"
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module

from divulge.auditing.probes.probe import Probe
from divulge.core.errors import InvalidInput
from divulge.core.plugins import installed

GROUP = "divulge.probes"
_MODULES = (
    "file_contents", "exact_copy", "label_copy", "last_layer", "span", "dp_training", "guards", "training_data",
    "known_start", "forest_table", "learned_copy", "informed", "membership", "copy_membership", "attributes",
    "price_of_protection",
)  # fmt: skip
_registered: list[Probe] = []


def register(probe: Probe) -> Probe:
    """Add a probe to every audit that this process runs from now on.

    Parameters
    ----------
    probe : Probe
        The probe. Its name must not be in use.

    Returns
    -------
    Probe
        The same probe.

    Raises
    ------
    InvalidInput
        If it is not a probe, or another probe has its name.

    Examples
    --------
    >>> from divulge.auditing import Finding, Probe, register, unregister
    >>> def run(target, seconds):
    ...     return Finding("constant", "copy", "label client", "It answers the same everywhere", "failed", "none",
    ...                    "Nothing was taken.", "Ten inputs were tried.")
    >>> register(Probe("constant", "A constant model", lambda target: "", run)).name
    'constant'
    >>> unregister("constant")
    """
    _check(probe, "register")
    if probe.name in {other.name for other in available_probes()}:
        raise InvalidInput(f"There is a probe called {probe.name!r} already; give this one another name.")
    _registered.append(probe)
    return probe


def unregister(name: str) -> None:
    """Remove a probe that was added with :func:`register`.

    Parameters
    ----------
    name : str
        The name of the probe.

    Raises
    ------
    InvalidInput
        If no probe of that name was registered.

    Examples
    --------
    >>> from divulge.auditing import unregister
    >>> unregister("never registered")
    Traceback (most recent call last):
        ...
    divulge.core.errors.InvalidInput: No probe called 'never registered' was registered.
    """
    kept = [probe for probe in _registered if probe.name != name]
    if len(kept) == len(_registered):
        raise InvalidInput(f"No probe called {name!r} was registered.")
    _registered[:] = kept


def available_probes() -> list[Probe]:
    """Every probe that an audit may run.

    Returns
    -------
    list of Probe
        The built-in probes, then those of installed packages, then the registered ones.

    Raises
    ------
    InvalidInput
        If an installed package names something that is not a probe, or cannot be imported.

    Examples
    --------
    >>> from divulge.auditing import available_probes
    >>> "copy-from-values" in {probe.name for probe in available_probes()}
    True
    """
    found = [probe for name in _MODULES for probe in import_module(f"divulge.auditing.probes.{name}").PROBES]
    for source, probe in _of_plugins():
        if probe.name in {other.name for other in found}:
            raise InvalidInput(f"The plug-in {source} brings a second probe called {probe.name!r}.")
        found.append(probe)
    return [*found, *_registered]


def _of_plugins() -> list[tuple[str, Probe]]:
    """The probes of installed packages, each with the name of its entry point."""
    brought: list[tuple[str, Probe]] = []
    for name, given in installed(GROUP).items():
        for probe in list(given) if isinstance(given, Iterable) else [given]:
            _check(probe, f"the plug-in {name}")
            brought.append((name, probe))
    return brought


def _check(probe: object, who: str) -> None:
    if not isinstance(probe, Probe):
        raise InvalidInput(f"A probe is a divulge.auditing.Probe; {who} got a {type(probe).__name__}.")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", probe.name):
        raise InvalidInput(f"A probe has a name of small letters, digits and hyphens; {who} got {probe.name!r}.")
