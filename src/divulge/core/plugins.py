"""Plug-ins: objects that other installed packages offer by a Python entry point."""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from divulge.core.errors import InvalidInput


def installed(group: str) -> dict[str, Any]:
    """The objects that installed packages offer under ``group``, by name; InvalidInput for one that does not load."""
    return _loaded(group, tuple(sys.path))


@cache
def _loaded(group: str, path: tuple[str, ...]) -> dict[str, Any]:
    """As ``installed``, looked up once for each search path."""
    return {point.name: _load(point) for point in entry_points(group=group)}


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # the package's own code runs here
        package = point.dist.name if point.dist is not None else "an unnamed package"
        raise InvalidInput(
            f"The plug-in {point.name} ({point.value}) of {package} cannot be loaded: {type(error).__name__}: {error}; "
            "repair or remove that package."
        ) from error
