"""The page a person looks at, and the same for programs."""

from divulge.report.compare import compare
from divulge.report.document import Report, schema

__all__ = ["Report", "compare", "schema"]
