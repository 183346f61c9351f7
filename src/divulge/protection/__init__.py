"""How much protection is enough?"""

from divulge.protection.accounting import PrivacySpent, epsilon_spent, noise_for, privacy_spent, rdp_curve
from divulge.protection.bounds import (
    dp_from_robustness,
    gaussian_mu,
    largest_epsilon,
    largest_mu,
    largest_rho,
    reconstruction_bound,
    smallest_noise,
    subsampled_bound,
)
from divulge.protection.page import Enough, Page, Schedule, enough, guarantees, page, privacy_for
from divulge.protection.priors import Kappa, estimate_kappa, log_kappa_gaussian, log_kappa_uniform

__all__ = [
    "Enough", "Kappa", "Page", "PrivacySpent", "Schedule", "dp_from_robustness", "enough", "epsilon_spent",
    "estimate_kappa", "gaussian_mu", "guarantees", "largest_epsilon", "largest_mu", "largest_rho", "log_kappa_gaussian",
    "log_kappa_uniform", "noise_for", "page", "privacy_for", "privacy_spent", "rdp_curve", "reconstruction_bound",
    "smallest_noise", "subsampled_bound",
]  # fmt: skip
