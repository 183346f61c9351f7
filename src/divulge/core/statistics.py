"""Confidence limits for a rate that was counted: Clopper and Pearson 1934, exact for every number of trials.

The limits are quantiles of the beta distribution. ``scipy.stats.binomtest(...).proportion_ci(method="exact")`` finds
the same limits by a root search that stops at an absolute 2e-12, which is the fourth digit of a rate near 1e-9, and
takes ten milliseconds; ``scipy.special.betaincinv`` is exact to rounding and a thousand times as fast.
"""

from __future__ import annotations

from collections.abc import Iterator

from scipy.special import betaincinv

from divulge.core.errors import InvalidInput


def rate_at_least(hits: int, trials: int, *, error: float) -> float:
    """The one-sided lower limit of a rate.

    Parameters
    ----------
    hits, trials : int
        How often it happened, and of how many.
    error : float
        The chance, at most, that the true rate lies below the limit.

    Returns
    -------
    float
        The limit; 0 without a hit.

    Raises
    ------
    InvalidInput
        If the counts or the chance do not make sense.

    Examples
    --------
    >>> round(rate_at_least(10, 10, error=0.05), 4)
    0.7411
    """
    _check(hits, trials, error)
    return float(betaincinv(hits, trials - hits + 1, error)) if hits else 0.0


def rate_at_most(hits: int, trials: int, *, error: float) -> float:
    """The one-sided upper limit of a rate.

    Parameters
    ----------
    hits, trials : int
        How often it happened, and of how many.
    error : float
        The chance, at most, that the true rate lies above the limit.

    Returns
    -------
    float
        The limit; 1 if it happened every time.

    Raises
    ------
    InvalidInput
        If the counts or the chance do not make sense.

    Examples
    --------
    >>> round(rate_at_most(0, 10, error=0.05), 4)
    0.2589
    """
    _check(hits, trials, error)
    return float(betaincinv(hits + 1, trials - hits, 1 - error)) if hits < trials else 1.0


def clopper_pearson(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The two-sided interval of a rate; each side may be wrong with half of ``1 - confidence``.

    Parameters
    ----------
    hits, trials : int
        How often it happened, and of how many.
    confidence : float, default 0.95
        The chance, at least, that the interval holds the true rate.

    Returns
    -------
    tuple of float
        The lower and the upper limit.

    Raises
    ------
    InvalidInput
        If the counts or the confidence do not make sense.

    Examples
    --------
    >>> low, high = clopper_pearson(8, 10)
    >>> round(low, 4), round(high, 4)
    (0.4439, 0.9748)
    """
    error = (1 - confidence) / 2
    return rate_at_least(hits, trials, error=error), rate_at_most(hits, trials, error=error)


def _check(hits: int, trials: int, error: float) -> None:
    if not 0 <= hits <= trials or trials < 1:
        raise InvalidInput(f"A rate needs at least one trial and no more hits than trials; got {hits} of {trials}.")
    if not 0 < error < 1:
        raise InvalidInput(f"The chance of an error lies strictly between 0 and 1; got {error}.")


class WithInterval(float):
    """A number that carries its confidence interval: it compares as a number and unpacks as ``value, low, high``.

    Parameters
    ----------
    value : float
        The estimate.
    low, high : float
        The limits of its interval.

    Examples
    --------
    >>> gain = WithInterval(0.2, 0.1, 0.3)
    >>> gain > 0.15, tuple(gain)
    (True, (0.2, 0.1, 0.3))
    """

    low: float
    high: float

    def __new__(cls, value: float, low: float, high: float) -> WithInterval:
        """The number with its limits."""
        made = super().__new__(cls, value)
        made.low, made.high = float(low), float(high)
        return made

    def __iter__(self) -> Iterator[float]:
        return iter((float(self), self.low, self.high))

    def __reduce__(self) -> tuple[type[WithInterval], tuple[float, float, float]]:
        return WithInterval, (float(self), self.low, self.high)
