"""Can they tell that somebody was in it? Membership inference, record by record."""

from __future__ import annotations

from divulge.membership.attack import METHODS, attack
from divulge.membership.canary_audit import EpsilonAudit, epsilon_audit
from divulge.membership.copies import CopyMembership, on_copy
from divulge.membership.epsilon import many_run_epsilon, one_run_epsilon, one_run_p_value
from divulge.membership.result import Membership

__all__ = [
    "METHODS",
    "CopyMembership",
    "EpsilonAudit",
    "Membership",
    "attack",
    "epsilon_audit",
    "many_run_epsilon",
    "on_copy",
    "one_run_epsilon",
    "one_run_p_value",
]
