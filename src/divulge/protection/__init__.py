"""How much protection is enough?

What trains models is loaded on first use, because the bounds do without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from divulge.protection.advantage import reconstruction_advantage_bound
from divulge.protection.bounds import dp_from_robustness, reconstruction_bound
from divulge.protection.fisher import fisher_error_bound, unbiased_error_bound
from divulge.protection.guarantee import Guarantee, guarantee_of
from divulge.protection.information import Spread, error_bound, information_bound, log_kappa_covariance, spread_of
from divulge.protection.inverse_bounds import largest_epsilon, largest_mu, largest_rho, smallest_noise
from divulge.protection.many_records import many_records_bound, most_rebuilt
from divulge.protection.mechanisms import gaussian_mu, subsampled_bound
from divulge.protection.membership_bounds import membership_advantage_bound, membership_bound
from divulge.protection.price_curve import Limits, PriceCurve, PricePoint, Recommendation
from divulge.protection.priors import Kappa, estimate_kappa, log_kappa_gaussian, log_kappa_uniform
from divulge.protection.recommend import (
    BoundCurves,
    RequiredPrivacy,
    Schedule,
    bound_curves,
    guarantees,
    privacy_for,
    required_privacy,
)
from divulge.training.private.accounting import PrivacySpent, epsilon_spent, noise_for, privacy_spent, rdp_curve

if TYPE_CHECKING:
    from divulge.protection.price_study import price
    from divulge.training.private.logistic import PrivateEstimator, private_logistic
    from divulge.training.private.preprocessing import PrivateScale, private_scale

_HOME = {
    "price": "divulge.protection.price_study",
    **dict.fromkeys(("PrivateEstimator", "private_logistic"), "divulge.training.private.logistic"),
    **dict.fromkeys(("PrivateScale", "private_scale"), "divulge.training.private.preprocessing"),
}

__all__ = [
    "BoundCurves", "Guarantee", "Kappa", "Limits", "PriceCurve", "PricePoint", "PrivacySpent",
    "PrivateEstimator", "PrivateScale", "Recommendation", "RequiredPrivacy", "Schedule", "Spread",
    "bound_curves", "dp_from_robustness", "epsilon_spent", "error_bound", "estimate_kappa",
    "fisher_error_bound", "gaussian_mu", "guarantee_of", "guarantees", "information_bound", "largest_epsilon",
    "largest_mu", "largest_rho", "log_kappa_covariance", "log_kappa_gaussian", "log_kappa_uniform",
    "many_records_bound", "membership_advantage_bound", "membership_bound", "most_rebuilt", "noise_for",
    "price", "privacy_for", "privacy_spent", "private_logistic", "private_scale", "rdp_curve",
    "reconstruction_advantage_bound", "reconstruction_bound", "required_privacy", "smallest_noise", "spread_of",
    "subsampled_bound", "unbiased_error_bound",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'divulge.protection' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
