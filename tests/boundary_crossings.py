"""Where segments cross the decision boundary of a network that is known."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Decides(Protocol):
    def labels(self, x: np.ndarray) -> np.ndarray: ...


def crossings(network: Decides, X: np.ndarray, Y: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of the boundary [count, d] on segments from X to Y whose ends differ, and the labels on both sides."""
    chosen = np.nonzero(network.labels(X) != network.labels(Y))[0][:count]
    X, Y, low, high = X[chosen], Y[chosen], np.zeros(len(chosen)), np.ones(len(chosen))
    for _ in range(60):
        middle = (low + high) / 2
        same = network.labels(X + middle[:, None] * (Y - X)) == network.labels(X)
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    one, two = (X + t[:, None] * (Y - X) for t in (low, high))
    return one, np.stack([network.labels(one), network.labels(two)], axis=1)
