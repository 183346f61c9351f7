"""Which input directions does a model depend on? Span recovery and input obfuscation (Jayaram et al. 2020)."""

from divulge.span.from_gradients import from_gradients, query_points
from divulge.span.from_labels import from_labels
from divulge.span.obfuscation import Obfuscation, measure, obfuscate, relevant
from divulge.span.result import Span, load

__all__ = [
    "Span",
    "from_gradients",
    "from_labels",
    "query_points",
    "load",
    "Obfuscation",
    "measure",
    "obfuscate",
    "relevant",
]
