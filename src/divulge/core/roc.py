"""How well scores tell one group from another: the ROC curve, its area, and the rate at a low false positive rate.

Intervals hold for finite samples or are asymptotic, and each function says which. The area's interval is that of DeLong
et al. 1988, on the logit scale. The interval of a true positive rate at a given false positive rate also covers that
the threshold is estimated: order statistics bound the threshold (free of the distribution), and Clopper and Pearson's
limits bound the rate at it. Everything sorts once, so a million scores take a second and memory is linear.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from divulge.core.errors import InvalidInput
from divulge.core.statistics import rate_at_least, rate_at_most
from divulge.core.validation import checked_number

Scores = NDArray[np.float64]


class Estimate(NamedTuple):
    """A figure with its confidence interval, unpackable as ``value, low, high``."""

    value: float
    low: float
    high: float


class RocCurve(NamedTuple):
    """The rates along all thresholds, from (0, 0) to (1, 1)."""

    fpr: Scores
    tpr: Scores


def roc_curve(positive: Scores, negative: Scores) -> RocCurve:
    """The ROC curve of scores that are higher for the positive group.

    Parameters
    ----------
    positive, negative : array [n], array [m]
        Finite scores of the two groups.

    Returns
    -------
    RocCurve
        False and true positive rates at every distinct threshold.

    Examples
    --------
    >>> import numpy as np
    >>> curve = roc_curve(np.array([2.0, 1.0]), np.array([1.0, 0.0]))
    >>> curve.fpr.tolist(), curve.tpr.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    inside, outside = _sorted(positive), _sorted(negative)
    thresholds = np.unique(np.concatenate([inside, outside]))[::-1]
    tpr = 1 - np.searchsorted(inside, thresholds, side="left") / len(inside)
    fpr = 1 - np.searchsorted(outside, thresholds, side="left") / len(outside)
    return RocCurve(np.concatenate([[0.0], fpr]), np.concatenate([[0.0], tpr]))


def area(positive: Scores, negative: Scores, confidence: float = 0.95) -> Estimate:
    """The area under the ROC curve with its asymptotic interval (DeLong 1988, on the logit scale).

    Where the groups do not overlap at all the variance is zero, and the interval is that of as many separated pairs as
    the smaller group has scores.

    Parameters
    ----------
    positive, negative : array [n], array [m]
        Finite scores; ties count half.
    confidence : float, default 0.95
        Of the interval.

    Returns
    -------
    Estimate
        The area, and its limits.

    Examples
    --------
    >>> import numpy as np
    >>> round(area(np.array([0.0, 1.0, 2.0]), np.array([0.0, 0.5])).value, 3)
    0.75
    """
    inside, outside = _sorted(positive), _sorted(negative)
    above = _placements(inside, outside)  # for each positive: the share of negatives below it
    below = _placements(outside, inside)
    auc = float(above.mean())
    smaller = min(len(inside), len(outside))
    variance = 0.0 if smaller < 2 else above.var(ddof=1) / len(inside) + below.var(ddof=1) / len(outside)
    error = (1 - confidence) / 2
    if variance <= 0 or not 0 < auc < 1:
        hits = min(smaller, math.floor(auc * smaller + 1e-9))
        return Estimate(auc, rate_at_least(hits, smaller, error=error), rate_at_most(hits, smaller, error=error))
    half = float(-ndtri(error)) * math.sqrt(variance) / (auc * (1 - auc))
    centre = math.log(auc / (1 - auc))
    return Estimate(auc, _expit(centre - half), _expit(centre + half))


def area_difference(first: tuple[Scores, Scores], second: tuple[Scores, Scores], confidence: float = 0.95) -> Estimate:
    """How much larger the second test's area is than the first's on the same records (DeLong 1988, paired).

    Parameters
    ----------
    first, second : (array [n], array [m])
        Finite scores of the positive and of the negative group by each test, in the same order.
    confidence : float, default 0.95
        Of the asymptotic interval.

    Returns
    -------
    Estimate
        The difference, and its limits.

    Examples
    --------
    >>> import numpy as np
    >>> scores = np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.5])
    >>> area_difference(scores, scores)
    Estimate(value=0.0, low=0.0, high=0.0)
    """
    if any(len(one) != len(other) or len(one) < 2 for one, other in zip(first, second, strict=True)):
        raise InvalidInput("Paired areas need both tests' scores of the same records, two of each group at least.")
    value, variance = 0.0, 0.0
    for side in (0, 1):
        shares = [_placements(np.asarray(pair[side]), _sorted(pair[1 - side])) for pair in (first, second)]
        difference = shares[1] - shares[0]
        value = float(difference.mean()) if side == 0 else value
        variance += float(difference.var(ddof=1)) / len(difference)
    half = float(-ndtri((1 - confidence) / 2)) * math.sqrt(variance)
    return Estimate(value, value - half, value + half)


def rate_at(positive: Scores, negative: Scores, fpr: float, confidence: float = 0.95) -> Estimate:
    """The true positive rate at a false positive rate, with an interval that covers the threshold's error too.

    Parameters
    ----------
    positive, negative : array [n], array [m]
        Finite scores.
    fpr : float
        The false positive rate, strictly between 0 and 1. It takes at least ``1 / fpr`` negatives to show it.
    confidence : float, default 0.95
        Of the interval, at least, for every sample size.

    Returns
    -------
    Estimate
        The largest true positive rate whose threshold keeps the observed false positive rate at or below ``fpr``, and
        its limits.

    Raises
    ------
    InvalidInput
        If ``fpr`` is not strictly between 0 and 1, or the negatives are too few to show it.

    Examples
    --------
    >>> import numpy as np
    >>> negatives = np.arange(100.0)
    >>> rate_at(negatives + 50, negatives, 0.1).value
    0.6
    """
    level = checked_number("A false positive rate", fpr, above=0, below=1)
    inside, outside = _sorted(positive), _sorted(negative)
    n, m = len(inside), len(outside)
    if m * level < 1 - 1e-9:
        raise InvalidInput(
            f"{m:,} non-members cannot show a false positive rate of {level:g}; it takes at least "
            f"{math.ceil(1 / level - 1e-9):,}. Give more non-members or ask for a higher rate."
        )
    from scipy.stats import binom  # takes half a second to load

    tail = (1 - confidence) / 4  # each side: half for the threshold, half for the rate at it
    fewest, most = int(binom.ppf(tail, m, level)), int(binom.isf(tail, m, level))
    hits = _above(inside, outside, math.floor(level * m + 1e-9))
    low = rate_at_least(_above(inside, outside, fewest - 1), n, error=tail) if fewest >= 1 else 0.0
    high = rate_at_most(_above(inside, outside, most), n, error=tail)
    return Estimate(hits / n, min(low, hits / n), max(high, hits / n))


def implied_epsilon(hits: int, n: int, alarms: int, m: int, *, delta: float, error: float) -> float:
    """The epsilon that a test's counts imply: (epsilon, delta)-DP forces TPR <= e^epsilon FPR + delta, and its mirror.

    Parameters
    ----------
    hits, n : int
        How often the test said yes where the answer is yes, and of how many.
    alarms, m : int
        How often it said yes where the answer is no, and of how many.
    delta : float
        The delta of (epsilon, delta)-DP.
    error : float
        The chance, at most, that one of the two rates lies beyond its limit; each gets half.

    Returns
    -------
    float
        A lower limit on epsilon; 0 if the counts imply none.

    Examples
    --------
    >>> round(implied_epsilon(90, 100, 10, 100, delta=0.0, error=0.05), 2)
    1.54
    >>> implied_epsilon(50, 100, 50, 100, delta=0.0, error=0.05)
    0.0
    """
    caught, clear = rate_at_least(hits, n, error=error / 2), rate_at_least(m - alarms, m, error=error / 2)
    best = 0.0
    for power, wrong in ((caught, 1 - clear), (clear, 1 - caught)):
        if power > delta and wrong > 0:
            best = max(best, math.log((power - delta) / wrong))
    return best


def _above(inside: Scores, outside: Scores, allowed: int) -> int:
    """Positives above the negative that ``allowed`` others exceed; all of them where there is no such negative."""
    if allowed >= len(outside):
        return len(inside)
    return len(inside) - int(np.searchsorted(inside, outside[-1 - allowed], side="right"))


def _placements(own: Scores, others: Scores) -> Scores:
    below = np.searchsorted(others, own, side="left") + np.searchsorted(others, own, side="right")
    return below / (2.0 * len(others))


def _expit(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0


def _sorted(scores: Scores) -> Scores:
    values = np.sort(np.asarray(scores, dtype=np.float64))
    if len(values) == 0 or not np.isfinite(values).all():
        raise InvalidInput("Both groups need at least one score, and every score is finite.")
    return values
