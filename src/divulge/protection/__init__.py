"""How much protection is enough?"""

from divulge.protection.bounds import dp_from_robustness, reconstruction_bound
from divulge.protection.guarantee import Guarantee, guarantee_of
from divulge.protection.inverse_bounds import largest_epsilon, largest_mu, largest_rho, smallest_noise
from divulge.protection.mechanisms import gaussian_mu, subsampled_bound
from divulge.protection.membership_bounds import membership_advantage_bound, membership_bound
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

__all__ = [
    "BoundCurves", "Guarantee", "Kappa", "PrivacySpent", "RequiredPrivacy", "Schedule", "bound_curves",
    "dp_from_robustness", "epsilon_spent", "estimate_kappa", "gaussian_mu", "guarantee_of", "guarantees",
    "largest_epsilon", "largest_mu", "largest_rho", "log_kappa_gaussian", "log_kappa_uniform",
    "membership_advantage_bound", "membership_bound", "noise_for", "privacy_for", "privacy_spent", "rdp_curve",
    "reconstruction_bound", "required_privacy", "smallest_noise", "subsampled_bound",
]  # fmt: skip
