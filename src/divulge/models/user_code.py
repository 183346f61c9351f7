"""The user's own code by name: ``"package.module:function"`` or ``"file.py:function"``.

Importing runs the code, so a name of this form is followed only where the user wrote it, or said to trust the file that
holds it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from divulge.core.errors import InvalidInput


def is_reference(text: str | Path) -> bool:
    """Whether this reads as ``package.module:function`` or ``file.py:function`` rather than as a path."""
    where, colon, name = str(text).rpartition(":")
    return bool(colon) and name.isidentifier() and len(where) > 1 and not Path(text).exists()


def import_object(reference: str) -> object:
    """The object that ``module:name`` or ``file.py:name`` names. The current folder is searched first."""
    where, _, name = reference.rpartition(":")
    try:
        with _current_folder_first():
            module = _file_module(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except Exception as error:  # the user's code runs here
        raise InvalidInput(
            f"{where!r} of {reference!r} could not be imported ({type(error).__name__}: {error}); it must be installed "
            "or in the current folder."
        ) from error
    if not hasattr(module, name):
        raise InvalidInput(f"{where!r} has no function {name!r}.")
    found: object = getattr(module, name)
    return found


def import_function(reference: str) -> Callable[..., Any]:
    """The function that ``module:name`` or ``file.py:name`` names."""
    found = import_object(reference)
    if not callable(found):
        where, _, name = reference.rpartition(":")
        raise InvalidInput(f"{where!r} has no function {name!r}; it is a {type(found).__name__}.")
    return found


def _file_module(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def names_of_main(reference: str) -> Iterator[None]:
    """Let a pickle find the names of a script as it left them, in ``__main__``: those of the file that is named."""
    name = reference.rpartition(":")[2]
    owner = import_object(reference)
    parts = [owner, *vars(owner).values()] if isinstance(owner, type) else [owner]
    found = next((dict(part.__globals__) for part in parts if hasattr(part, "__globals__")), {})
    found[name] = owner
    main = sys.modules["__main__"]
    added = {key: value for key, value in found.items() if not hasattr(main, key)}
    vars(main).update(added)
    try:
        yield
    finally:
        for key in added:
            vars(main).pop(key, None)


@contextmanager
def _current_folder_first() -> Iterator[None]:
    """Let an installed command find modules in the folder it is called from."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
