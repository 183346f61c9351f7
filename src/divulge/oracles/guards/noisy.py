"""Gaussian noise on every answer: fresh for every query, or fixed for every distinct input.

Fresh noise averages out when a client repeats a query. Fixed noise is a function of the input and a key, so repeating a
query gives nothing new; a client who may move the input a little still draws again.

Without a seed the noise comes from the operating system's cryptographic source, so that no client can compute and
subtract it. With a seed it comes from a public generator: a client who guesses the seed subtracts the noise.
"""

from __future__ import annotations

import hashlib
import os
import threading

import numpy as np
import torch
from torch import Tensor

from divulge.core.errors import InvalidInput
from divulge.core.validation import checked_seed
from divulge.oracles.base import Oracle, decide
from divulge.oracles.guards.base import Guard, checked_deviation

KEY_BYTES = 32


class Noisy(Guard):
    """Gaussian noise on every number. Labels are decided on noisy values.

    Parameters
    ----------
    oracle : Oracle
        What the guard protects.
    sigma : float
        Standard deviation of the noise, zero or more.
    seed : int or None, default 0
        A seed makes the noise repeatable, for tests and experiments; whoever guesses it can subtract the noise. None
        draws from the operating system's cryptographic source, as a server must.
    fixed : bool, default False
        Whether an input always gets the same noise, so that repeating a query does not average it out.

    Raises
    ------
    InvalidInput
        If ``sigma`` is negative or not finite, or the seed is not a whole number.

    Examples
    --------
    >>> import divulge, torch
    >>> from divulge.oracles import Noisy
    >>> oracle = divulge.oracle(lambda X: X.sum(1), input_shape=(2,))
    >>> noisy = Noisy(oracle, sigma=0.1, seed=None, fixed=True)
    >>> first, second = noisy.value([[1.0, 2.0]]), noisy.value([[1.0, 2.0]])
    >>> torch.equal(first, second), bool(abs(first - 3) < 1)
    (True, True)
    """

    def __init__(self, oracle: Oracle, sigma: float, seed: int | None = 0, *, fixed: bool = False) -> None:
        super().__init__(oracle)
        self.sigma = checked_deviation(sigma, "Noisy")
        self.fixed = bool(fixed)
        self._noise = FixedNoise(seed, sigma) if fixed else NoiseSource(seed, sigma)

    @property
    def eps(self) -> float:
        """The noise's standard deviation, or the number format's own precision where that is coarser."""
        return max(self.oracle.eps, self.sigma)

    @property
    def secret(self) -> bool:
        """Whether the noise comes from a secret source."""
        return self._noise.secret

    def _value(self, X: Tensor) -> Tensor:
        values = super()._value(X)
        return values + self._noise.like(values, X, "value")

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = super()._gradient(X)
        return values + self._noise.like(values, X, "value"), gradients + self._noise.like(gradients, X, "gradient")

    def _label(self, X: Tensor) -> Tensor:
        if not self.oracle.allows("value"):  # there are no values to add noise to
            return super()._label(X)
        values = self._finite(self._count_and_get_oracle("label", len(X))._value(X), "value")
        return decide(values + self._noise.like(values, X, "value"), self.threshold)


class NoiseSource:
    """Fresh Gaussian numbers, shared safely between threads: from a seeded stream, or from a secret source."""

    def __init__(self, seed: int | None, sigma: float) -> None:
        self._generator = None if seed is None else torch.Generator().manual_seed(checked_seed(seed))
        self._lock = threading.Lock()
        self._sigma = sigma

    @property
    def secret(self) -> bool:
        """Whether no seed can repeat the numbers."""
        return self._generator is None

    def like(self, tensor: Tensor, X: Tensor | None = None, kind: str = "value") -> Tensor:
        """Noise of the tensor's shape and number format."""
        if self._generator is None:
            draw = _gaussian(os.urandom(8 * tensor.numel())).reshape(tensor.shape)
        else:
            with self._lock:
                draw = torch.randn(tensor.shape, generator=self._generator, dtype=torch.float64)
        return (self._sigma * draw).to(tensor)


class FixedNoise(NoiseSource):
    """Gaussian numbers that are a function of the input row: SHAKE-256 of a key and the row."""

    def __init__(self, seed: int | None, sigma: float) -> None:
        super().__init__(seed, sigma)
        self._key = os.urandom(KEY_BYTES) if seed is None else hashlib.sha256(b"%d" % checked_seed(seed)).digest()

    def like(self, tensor: Tensor, X: Tensor | None = None, kind: str = "value") -> Tensor:
        """The noise that belongs to the rows X."""
        if X is None:
            raise InvalidInput("Fixed noise belongs to input rows, and none were given.")
        rows = (X.detach().cpu().double() + 0.0).contiguous().numpy()  # + 0.0: both zeros are the same input
        start = hashlib.shake_256(self._key + kind.encode())
        size = 8 * tensor[0].numel()
        drawn = bytearray()
        for row in rows:
            one = start.copy()
            one.update(row.tobytes())
            drawn += one.digest(size)
        return (self._sigma * _gaussian(bytes(drawn)).reshape(tensor.shape)).to(tensor)


def _gaussian(random: bytes) -> Tensor:
    """Standard normal numbers from random bytes, eight for each, by the inverse of the distribution function."""
    uniform = (np.frombuffer(random, dtype="<u8") >> np.uint64(11)).astype(np.float64)
    normal: Tensor = torch.special.ndtri(torch.from_numpy((uniform + 0.5) * 2.0**-53))
    return normal
