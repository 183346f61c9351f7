"""The audit: every attack that fits a target, run and gathered in one report."""

from divulge.auditing.finding import SEVERITIES, Finding, Picture, Skipped, Table
from divulge.auditing.run import audit

__all__ = ["SEVERITIES", "Finding", "Picture", "Skipped", "Table", "audit"]
