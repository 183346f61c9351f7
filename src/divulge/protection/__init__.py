"""How much protection is enough?"""

from divulge.protection.accounting import PrivacySpent, noise_for, privacy_spent
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
from divulge.protection.priors import Kappa, estimate_kappa, log_kappa_gaussian, log_kappa_uniform

__all__ = [
    "Kappa",
    "PrivacySpent",
    "dp_from_robustness",
    "estimate_kappa",
    "gaussian_mu",
    "largest_epsilon",
    "largest_mu",
    "largest_rho",
    "log_kappa_gaussian",
    "log_kappa_uniform",
    "noise_for",
    "privacy_spent",
    "reconstruction_bound",
    "smallest_noise",
    "subsampled_bound",
]
