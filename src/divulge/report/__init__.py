"""The report of an audit: a page for people, the same for programs, and what changed between two."""

from divulge.report.compare import Change, compare
from divulge.report.document import Report, schema
from divulge.report.history import PastAudit, history, remember
from divulge.report.regulation import ScopeRow
from divulge.report.verdict import Gate

__all__ = ["Change", "Gate", "PastAudit", "Report", "ScopeRow", "compare", "history", "remember", "schema"]
