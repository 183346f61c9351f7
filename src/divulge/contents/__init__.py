"""What does the file of a model contain beside the model? Training records, sums, extremes and categories."""

from __future__ import annotations

from divulge.contents.read import read
from divulge.contents.result import Contents, Holding

__all__ = ["Contents", "Holding", "read"]
