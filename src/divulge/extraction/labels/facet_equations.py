"""Least squares of which nearly all equations treat every input alike.

The unknowns are a matrix D [m, w] and a few numbers y. A facet gives an equation for each of w coordinates, all with
the same coefficients of D. One QR of a small matrix solves them for D. Single points mix the coordinates, and correct D
in as many dimensions as there are points. The matrix of all equations, as large as facets times inputs in one
direction and neurons times inputs in the other, is never written out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from divulge.extraction.labels.asking import Array

RIDGE = 1e-6
"""Weight of the step's length against its effect on the facets: what no facet tells is left to the points."""
SHIFTS = 8
"""How often the shift is raised; then the points' equations count each for itself."""
RANK = 1e-12
"""Singular value, relative to the largest, up to which numbers y are left alone; more where points are many and facets
few, which rounding makes imprecise."""


@dataclass(frozen=True, eq=False)
class FacetEquations:
    """Minimise |A D + (a y) b - facets|^2 + |sum S (X D^T) + p y - points|^2 over D and y."""

    A: Array  # [f, m]
    facets: Array  # [f, w]
    S: Array  # [n, m]
    X: Array  # [n, w]
    points: Array  # [n]
    a: Array  # [f, r], which facets each number of y moves
    b: Array  # [r, w], and along what
    p: Array  # [n, r]

    def solution(self) -> tuple[Array, Array]:
        """D [m, w] and y [r]."""
        m = self.A.shape[1]
        size = np.sqrt((self.A**2).sum(axis=0) + (self.S**2).sum(axis=0))
        size[size == 0] = 1
        Q, R = scipy.linalg.qr(np.concatenate([self.A, np.diag(RIDGE * size)]), check_finite=False)
        R, along, beside = R[:m], Q[: len(self.A), :m], Q[: len(self.A), m:]
        sigma = scipy.linalg.solve_triangular(R, self.S.T, trans="T", check_finite=False).T  # [n, m]
        kernel = (sigma @ sigma.T) * (self.X @ self.X.T)
        rank = max(RANK, float(np.finfo(float).eps * np.diag(kernel).max(initial=0.0)))
        factor = _shifted_factor(kernel)
        plain = along.T @ self.facets
        left = self.p - (sigma @ (along.T @ self.a)) * (self.X @ self.b.T)
        right = self.points - ((sigma @ plain) * self.X).sum(axis=1)
        white = scipy.linalg.solve_triangular(factor, np.column_stack([left, right]), lower=True, check_finite=False)
        basis = np.linalg.qr(self.b.T)[0]  # of the coordinates, those that y moves [w, q]
        outside = ((beside.T @ self.a)[:, None] * (self.b @ basis).T).reshape(-1, len(self.b))
        y = _least_squares(
            np.concatenate([outside, white[:, :-1]]),
            np.concatenate([(beside.T @ self.facets @ basis).reshape(-1), white[:, -1]]),
            rank,
        )
        rest = white[:, -1] - white[:, :-1] @ y
        pull = scipy.linalg.solve_triangular(factor, rest, trans="T", lower=True, check_finite=False)
        U = plain - (along.T @ (self.a * y)) @ self.b + (sigma * pull[:, None]).T @ self.X
        return np.asarray(scipy.linalg.solve_triangular(R, U, check_finite=False)), y


def _shifted_factor(kernel: Array) -> Array:
    """The Cholesky factor of the kernel and the identity, with as much more as rounding makes necessary."""
    shift = 1.0
    for _ in range(SHIFTS):
        shifted = kernel.copy()
        shifted[np.diag_indices_from(shifted)] += shift
        try:
            return np.asarray(scipy.linalg.cholesky(shifted, lower=True, overwrite_a=True, check_finite=False))
        except np.linalg.LinAlgError:
            shift *= 100
    return np.diag(np.sqrt(shift + np.maximum(np.nan_to_num(np.diag(kernel)), 0)))


def _least_squares(rows: Array, right: Array, rank: float) -> Array:
    """The shortest solution, in columns of unit length, without singular values up to ``rank``."""
    size = np.linalg.norm(rows, axis=0)
    size[size == 0] = 1
    if len(rows) > rows.shape[1]:
        q, rows = np.linalg.qr(rows / size)
        right = q.T @ right
    else:
        rows = rows / size
    return np.asarray(np.linalg.lstsq(rows, right, rcond=rank)[0] / size)
