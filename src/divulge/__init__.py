"""divulge: what does a trained model give away?

Everything here is loaded on first use, so that ``import divulge`` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from divulge.errors import DivulgeError

__version__ = "0.1.0"

_SUBPACKAGES = {
    "auditing", "datasets", "errors", "extraction", "informed", "models", "oracles", "progress", "protection",
    "reconstruction", "report", "span", "training", "workers",
}  # fmt: skip
_NAMES = {"oracle": "divulge.oracles", "Recipe": "divulge.training", "audit": "divulge.auditing"}

__all__ = ["DivulgeError", "Recipe", "audit", "oracle", *sorted(_SUBPACKAGES), "__version__"]

if TYPE_CHECKING:
    from divulge.auditing import audit
    from divulge.oracles import oracle
    from divulge.training import Recipe


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(import_module(_NAMES[name]), name)
        globals()[name] = value  # over the submodule of the same name that the import just bound
        return value
    if name in _SUBPACKAGES:
        return import_module(f"divulge.{name}")
    raise AttributeError(f"module 'divulge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
