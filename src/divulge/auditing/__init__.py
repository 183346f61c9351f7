"""The audit: every attack that fits a target, run and gathered in one report."""

from divulge.auditing.audit import audit
from divulge.auditing.options import AuditOptions
from divulge.auditing.probes.probe import Probe, TimeUp, deadline
from divulge.auditing.registry import available_probes, register, unregister
from divulge.auditing.severity import severity_of
from divulge.auditing.target import Target
from divulge.report.findings import SEVERITIES, Finding, Picture, Skipped, Table

__all__ = [
    "SEVERITIES",
    "AuditOptions",
    "Finding",
    "Picture",
    "Probe",
    "Skipped",
    "Table",
    "Target",
    "TimeUp",
    "audit",
    "available_probes",
    "deadline",
    "register",
    "severity_of",
    "unregister",
]
