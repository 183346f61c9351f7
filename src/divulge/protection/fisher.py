"""How precisely can a record be rebuilt? Lower limits on the error by Fisher information.

Guo, Karrer, Chaudhuri and van der Maaten 2022 limit the mean squared error of a reconstruction from below in two ways.
Only the abstract of that paper was at hand: both limits are derived here, and no theorem of theirs is claimed.

*From Renyi DP* (``unbiased_error_bound``). By the inequality of Hammersley, Chapman and Robbins an estimate without
bias has a variance of at least (step)^2 / chi-square divergence of the two models, for each step to another record;
the divergence is at most e^(epsilon_2) - 1, with epsilon_2 the Renyi divergence of order 2, and from every record one
can step at least half of a column's range. A step replaces the record: under the add-or-remove parameters used
here that is one removal and one addition, mu becomes 2 mu, and epsilon_2 = 4 mu^2. It holds for attacks without bias
only.

*From Fisher information leakage* (``fisher_error_bound``). The Fisher information of the released model about the
record limits the error locally (Cramer and Rao). Attackers with a prior are biased, so the Bayesian form is used
instead (van Trees 1968; Gill and Levit 1995), in its matrix form: for a Gaussian prior of covariance S the mean
squared error is at least trace((E I(x) + S^-1)^-1) / d, for every attack. It is tight where the model depends linearly
on the record.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divulge.core.errors import InvalidInput
from divulge.core.validation import checked_number

Array = NDArray[np.float64]


def unbiased_error_bound(ranges: Any, *, gaussian: float | None = None, zcdp: float | None = None) -> float:
    """The least mean squared error a column of any reconstruction without bias (after Guo et al. 2022).

    Parameters
    ----------
    ranges : array [d]
        The width of each column's range.
    gaussian : float, optional
        mu of Gaussian DP, for add-or-remove neighbours.
    zcdp : float, optional
        rho of zero-concentrated DP, for add-or-remove neighbours.

    Returns
    -------
    float
        In the square of the units of the ranges.

    Raises
    ------
    InvalidInput
        A range is negative, or the privacy spent is given in no way or in both.

    Examples
    --------
    >>> from divulge.protection import unbiased_error_bound
    >>> round(unbiased_error_bound([1.0, 1.0], gaussian=0.5), 3)
    0.145
    """
    widths = np.asarray(ranges, dtype=np.float64)
    if widths.ndim != 1 or not len(widths) or not np.isfinite(widths).all() or widths.min() < 0:
        raise InvalidInput("Ranges are widths, one a column, zero or more.")
    if (gaussian is None) == (zcdp is None):
        raise InvalidInput("Say the privacy spent in exactly one way: gaussian or zcdp.")
    rho = (
        checked_number("zcdp", zcdp, above=0) if gaussian is None else checked_number("mu", gaussian, above=0) ** 2 / 2
    )
    divergence = 8 * rho  # order 2 of 4 rho, that of one removal and one addition
    if divergence > 700:
        return 0.0
    return float(np.square(widths).mean() / (4 * math.expm1(divergence)))


def fisher_error_bound(information: Any, prior_covariance: Any) -> float:
    """The least mean squared error a column of any reconstruction, for a Gaussian prior (matrix van Trees inequality).

    Parameters
    ----------
    information : array [d, d]
        The Fisher information of the released model about the record, averaged over the prior.
    prior_covariance : array [d, d]
        The covariance of the prior.

    Returns
    -------
    float
        In the square of the units of the record.

    Raises
    ------
    InvalidInput
        A matrix is not square, symmetric and positive, or they differ in size.

    Examples
    --------
    >>> import numpy as np
    >>> from divulge.protection import fisher_error_bound
    >>> fisher_error_bound(np.eye(3), np.eye(3))
    0.5
    """
    known, prior = (np.asarray(matrix, dtype=np.float64) for matrix in (information, prior_covariance))
    if known.ndim != 2 or known.shape != prior.shape or known.shape[0] != known.shape[1]:
        raise InvalidInput(f"Both matrices are square and of one size; got {known.shape} and {prior.shape}.")
    for name, matrix in (("The information", known), ("The covariance", prior)):
        if not np.isfinite(matrix).all() or not np.allclose(matrix, matrix.T, rtol=1e-8, atol=1e-12):
            raise InvalidInput(f"{name} must be symmetric and finite.")
    values, vectors = np.linalg.eigh(prior)
    if values[0] < -1e-9 * max(values[-1], 1e-300):
        raise InvalidInput("The covariance must not be negative in any direction.")
    # (I + S^-1)^-1 = R (R I R + 1)^-1 R with R the root of S, which directions without variance do not upset
    root = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
    inside = np.linalg.eigvalsh(root @ known @ root)
    if inside[0] < -1e-6 * max(abs(inside[-1]), 1.0):
        raise InvalidInput("The information must not be negative in any direction.")
    middle = np.linalg.solve(root @ known @ root + np.eye(len(root)), root)
    return float(np.trace(root @ middle) / len(root))
