"""How many records are rebuilt at once? Bounds for an attacker who is after several people or several attributes.

Let k records be unknown and independent, let every blind guess at one of them succeed with chance kappa at most, and
let S be the number that an attack rebuilds. Its mean is at most k times the bound for one record. Its tail, P(S >= t),
is bounded in four ways, each derived here from first principles; the least of those that apply is taken. The question
is that of Swanberg, Annamalai, Hayes, Balle and Smith 2026; their text was not at hand, so no theorem of theirs is
claimed.

1. *Markov*: at most k gamma / t.
2. *Information*: where the model is independent of the records, S is below a binomial variable of k draws and chance
   kappa, so its tail is b = P(Bin(k, kappa) >= t). By the data-processing inequality the binary divergence of the real
   tail from b is at most I(X_1 .. X_k; model). The chain rule gives I <= k times the information about one record,
   because X_i is independent of the records after it and KL is convex.
3. *Group privacy*: the same b, and a mechanism that is mu-GDP for one record is k mu-GDP for k.
4. *Pure DP*: given the model and the records before it, the likelihood of record i lies between q e^-epsilon and
   q e^epsilon for a q that does not depend on it. So each success has chance at most
   p = kappa e^epsilon / (kappa e^epsilon + (1 - kappa) e^-epsilon) whatever happened before, and the tail is that of
   Bin(k, p) (after Steinke, Nasr and Jagielski 2023, who have kappa = 1/2).

Several attributes of *one* record need none of this: with kappa the chance that a blind guess gets at least t of them
right, ``reconstruction_bound`` limits the chance that an attack does.
"""

from __future__ import annotations

import math

import numpy as np

from divulge.core.validation import checked_number, checked_whole
from divulge.protection import bounds
from divulge.protection.information import information_bound

_SMALLEST = np.finfo(np.float64).tiny / np.finfo(np.float64).eps
"""Below this a tail has lost digits, or is 0 where it is not."""


def many_records_bound(
    kappa: float,
    records: int,
    rebuilt: int,
    *,
    epsilon: float | None = None,
    zcdp: float | None = None,
    gaussian: float | None = None,
) -> float:
    """The largest chance that an attack rebuilds at least so many of several unknown records.

    Parameters
    ----------
    kappa : float
        The chance of the best blind guess at one record, strictly between 0 and 1.
    records : int
        Unknown records. They are independent draws.
    rebuilt : int
        How many of them the attack rebuilds.
    epsilon : float, optional
        Of pure DP.
    zcdp : float, optional
        rho of zero-concentrated DP.
    gaussian : float, optional
        mu of Gaussian DP: sqrt(steps) / noise_multiplier for full-batch training.

    Returns
    -------
    float
        The chance, at most 1.

    Raises
    ------
    InvalidInput
        A parameter is out of its range, or the privacy spent is given in no way or in several.

    Examples
    --------
    >>> from divulge.protection import many_records_bound
    >>> round(many_records_bound(0.01, 100, 30, gaussian=1.0), 3)
    0.308
    >>> round(many_records_bound(0.01, 1, 1, gaussian=1.0), 3)  # one record: the bound for one
    0.092
    """
    from scipy.stats import binom  # takes half a second to load

    checked_whole("records", records, at_least=1)
    checked_whole("rebuilt", rebuilt, at_least=1, at_most=records)
    given = {"epsilon": epsilon, "zcdp": zcdp, "gaussian": gaussian}
    single = bounds.reconstruction_bound(kappa, **given)  # type: ignore[arg-type]
    nats = records * information_bound(epsilon=epsilon, zcdp=zcdp, gaussian=gaussian)
    log_blind = _log_tail(kappa, records, rebuilt)
    found = [1.0, records * single / rebuilt, _with_divergence(log_blind, nats)]
    if log_blind < 0:
        if gaussian is not None:
            found.append(math.exp(bounds.log_bound_gaussian(log_blind, records * gaussian)))
        elif zcdp is not None:
            found.append(math.exp(bounds.log_bound_zcdp(log_blind, records**2 * zcdp)))
    if epsilon is not None:
        odds = math.log(kappa) - math.log1p(-kappa) + 2 * epsilon
        found.append(float(binom.sf(rebuilt - 1, records, 1 / (1 + math.exp(-min(700.0, odds))))))
    return min(found)


def most_rebuilt(
    kappa: float,
    records: int,
    *,
    chance: float = 0.05,
    epsilon: float | None = None,
    zcdp: float | None = None,
    gaussian: float | None = None,
) -> int:
    """The number of records of which no attack rebuilds more, except with a small chance.

    Parameters
    ----------
    kappa : float
        The chance of the best blind guess at one record.
    records : int
        Unknown records, independent draws.
    chance : float, default 0.05
        The chance that is accepted.
    epsilon : float, optional
        Of pure DP.
    zcdp : float, optional
        rho of zero-concentrated DP.
    gaussian : float, optional
        mu of Gaussian DP.

    Returns
    -------
    int
        From 0 to ``records``.

    Raises
    ------
    InvalidInput
        A parameter is out of its range.

    Examples
    --------
    >>> from divulge.protection import most_rebuilt
    >>> most_rebuilt(0.01, 100, gaussian=0.1)
    8
    """
    checked_number("chance", chance, above=0, below=1)
    low, high = 0, checked_whole("records", records, at_least=1)
    while low < high:  # the bound falls with the number
        middle = (low + high) // 2
        if many_records_bound(kappa, records, middle + 1, epsilon=epsilon, zcdp=zcdp, gaussian=gaussian) <= chance:
            high = middle
        else:
            low = middle + 1
    return low


def _log_tail(kappa: float, records: int, rebuilt: int) -> float:
    """log P(Bin(records, kappa) >= rebuilt); Chernoff's limit where the tail is below the smallest numbers."""
    from scipy.stats import binom

    tail = float(binom.sf(rebuilt - 1, records, kappa))
    if tail > _SMALLEST:
        return math.log(tail)
    share = rebuilt / records  # above kappa, since the tail is small
    rest = 0.0 if rebuilt == records else (1 - share) * (math.log1p(-share) - math.log1p(-kappa))
    return -records * (share * (math.log(share) - math.log(kappa)) + rest)


def _with_divergence(log_blind: float, nats: float) -> float:
    """The largest p whose binary divergence from e^log_blind is at most ``nats``."""
    if log_blind >= 0 or nats >= -log_blind:
        return 1.0
    blind = math.exp(log_blind)
    low, high = blind, 1.0
    for _ in range(100):
        p = (low + high) / 2
        rest = 0.0 if p == 1 else (1 - p) * (math.log1p(-p) - math.log1p(-blind))
        if p * (np.log(p) - log_blind) + rest > nats:
            high = p
        else:
            low = p
    return high
