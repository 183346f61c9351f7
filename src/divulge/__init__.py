"""divulge: what does a trained model give away?

Everything here is loaded on first use, so that ``import divulge`` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from divulge.core.errors import DivulgeError

__version__ = "0.1.0"

_SUBPACKAGES = {
    "attributes", "auditing", "contents", "core", "datasets", "errors", "extraction", "informed", "membership",
    "models", "oracles", "protection", "reconstruction", "report", "serving", "span", "training",
}  # fmt: skip
_MODULES = {"progress": "divulge.core.progress", "workers": "divulge.core.workers"}
_NAMES = {"oracle": "divulge.oracles", "Recipe": "divulge.training", "audit": "divulge.auditing"}

__all__ = ["DivulgeError", "Recipe", "audit", "oracle", *sorted({*_SUBPACKAGES, *_MODULES}), "__version__"]

if TYPE_CHECKING:
    from divulge.auditing.audit import audit
    from divulge.oracles import oracle
    from divulge.training import Recipe


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(import_module(_NAMES[name]), name)
        globals()[name] = value  # over the submodule of the same name that the import just bound
        return value
    if name in _SUBPACKAGES:
        return import_module(f"divulge.{name}")
    if name in _MODULES:
        return import_module(_MODULES[name])
    raise AttributeError(f"module 'divulge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
