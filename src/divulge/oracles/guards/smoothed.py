"""SmoothGrad explanations (Milli 2019, appendix D)."""

from __future__ import annotations

from torch import Tensor

from divulge.core.errors import DivulgeError, InvalidInput
from divulge.oracles.base import Oracle
from divulge.oracles.guards.base import ROWS_AT_ONCE, Guard, checked_deviation
from divulge.oracles.guards.noisy import NoiseSource
from divulge.oracles.rows import in_batches


class Smoothed(Guard):
    """SmoothGrad: the mean gradient over points x + z, z ~ N(0, sigma^2 I) (Milli 2019, appendix D).

    The values stay those of x itself, as an explanation endpoint shows them.

    Parameters
    ----------
    oracle : Oracle
        What the guard protects. It must grant gradients for the guard to change anything.
    sigma : float
        Standard deviation of z, zero or more.
    samples : int, default 50
        Points averaged for each row.
    seed : int or None, default 0
        Fixes the points, for tests and experiments. None draws them from a secret source.

    Raises
    ------
    InvalidInput
        If ``sigma`` is negative or not finite, or ``samples`` is not a whole number from 1.

    Examples
    --------
    >>> import divulge, torch
    >>> from divulge.oracles import Smoothed
    >>> oracle = divulge.oracle(torch.nn.Linear(2, 1).double(), access="gradient")
    >>> guarded = Smoothed(oracle, sigma=0.1, samples=4)
    >>> values, gradients = guarded.gradient([[1.0, 2.0]])
    >>> guarded.ledger.gradient, guarded.cost.gradient
    (1, 4)
    """

    def __init__(self, oracle: Oracle, sigma: float, samples: int = 50, seed: int | None = 0) -> None:
        if samples != int(samples) or samples < 1:
            raise InvalidInput(f"Smoothed averages over at least one sample; got {samples}.")
        super().__init__(oracle)
        self.sigma, self.samples = checked_deviation(sigma, "Smoothed"), int(samples)
        self._noise = NoiseSource(seed, sigma)

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        try:
            values = self._value(X)
            (mean,) = in_batches(X, ROWS_AT_ONCE, lambda rows: (self._mean_gradient(rows),))
        except DivulgeError as error:  # the client has seen nothing of a mean that was not finished
            error.partial, error.rows_answered = None, 0  # type: ignore[attr-defined]
            raise
        return values, mean

    def _mean_gradient(self, X: Tensor) -> Tensor:
        total = X.new_zeros(len(X), self.output_dim, self.input_dim)
        remaining, most = self.samples, max(1, ROWS_AT_ONCE // len(X))
        while remaining:
            now = min(remaining, most)
            near = X.repeat(now, 1)
            near += self._noise.like(near)
            _, gradients = super()._gradient(near)
            total += gradients.reshape(now, len(X), self.output_dim, self.input_dim).sum(dim=0)
            remaining -= now
        return total / self.samples
