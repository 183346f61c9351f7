"""Lower limits on epsilon: from guesses about one model, and from the scores of many.

One run (Steinke, Nasr and Jagielski 2023, Theorem 5.2): some records were put into the training set by the flip of a
coin. Whoever sees the model guesses for some of them whether they were in, and abstains for the rest. Under (epsilon,
delta)-DP the number of right guesses among r is hardly larger than a binomial with chance e^epsilon / (1 + e^epsilon);
the largest epsilon that the count contradicts is the limit. How many guesses are made is tried for a few fixed numbers,
and the confidence is split over them; or it is planned from what the privacy in question allows at best, before any
score is seen, and costs no confidence.

Many runs (Jagielski, Ullman and Oprea 2020): one record is in or out by a coin in each run. One half of the runs
chooses a threshold, the other half tests it by exact limits of both error rates.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc

from divulge.core.errors import InvalidInput
from divulge.core.roc import implied_epsilon
from divulge.core.validation import checked_number, checked_whole

Array = NDArray[np.float64]
SHARES = (0.01, 0.05, 0.2, 0.5)
"""Shares of the records that are guessed in; as many are guessed out, or none."""
PLANNED_SHARES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
"""Shares of the records that a plan may guess in."""
REHEARSALS = 10
"""Draws of the best possible scores from which a plan is made."""
THRESHOLDS = 200
"""Thresholds that the first half of many runs tries."""
LARGEST_EPSILON = 100.0
MOST = 20_000
"""Records among which guesses are made."""


def one_run_p_value(right: int, guesses: int, records: int, epsilon: float, delta: float) -> float:
    """The chance, at most, of so many right guesses under (epsilon, delta)-DP.

    Parameters
    ----------
    right, guesses, records : int
        Right guesses, guesses, and records that a coin put in or left out.
    epsilon, delta : float
        The privacy in question.

    Returns
    -------
    float

    Examples
    --------
    >>> from divulge.membership import one_run_p_value
    >>> round(one_run_p_value(75, 100, 100, epsilon=0.0, delta=0.0), 9)
    2.82e-07
    """
    chance = 1 / (1 + np.exp(-epsilon))
    if right == 0:
        return 1.0
    beta = float(bdtrc(right - 1, guesses, chance))
    if delta == 0:
        return beta
    steps = np.arange(1, right + 1)
    lower = np.where(steps < right, bdtr(np.maximum(right - steps - 1, 0), guesses, chance), 0.0)
    below = bdtr(right - 1, guesses, chance) - lower  # P[right > W >= right - i]
    return min(1.0, beta + float((below / steps).max()) * delta * 2 * records)


def one_run_epsilon(right: int, guesses: int, records: int, *, delta: float = 1e-5, confidence: float = 0.95) -> float:
    """The largest epsilon that the number of right guesses contradicts.

    Parameters
    ----------
    right, guesses, records : int
        Right guesses, guesses, and records that a coin put in or left out.
    delta : float, default 1e-5
        The delta of (epsilon, delta)-DP.
    confidence : float, default 0.95
        With which the limit holds.

    Returns
    -------
    float
        The lower limit; 0 if nothing is contradicted.

    Raises
    ------
    InvalidInput
        If the counts do not make sense.

    Examples
    --------
    >>> from divulge.membership import one_run_epsilon
    >>> one_run_epsilon(50, 100, 100)
    0.0
    >>> round(one_run_epsilon(95, 100, 100), 2)
    2.17
    """
    checked_whole("records", records, at_least=1)
    checked_number("confidence", confidence, above=0, below=1)
    checked_number("delta", delta, at_least=0, below=1)
    if not 0 <= right <= guesses <= records:
        raise InvalidInput(f"Right guesses, guesses and records ascend; got {right}, {guesses} and {records}.")
    error = 1 - confidence
    if guesses == 0 or one_run_p_value(right, guesses, records, 0.0, delta) > error:
        return 0.0
    low, high = 0.0, LARGEST_EPSILON
    for _ in range(40):
        middle = (low + high) / 2
        if one_run_p_value(right, guesses, records, middle, delta) <= error:
            low = middle
        else:
            high = middle
    return low


def epsilon_of_scores(
    members: Array, others: Array, *, delta: float = 1e-5, confidence: float = 0.95, seed: int = 0, coins: bool = False
) -> float:
    """The limit from the scores of members and non-members.

    The theorem wants every record to be in or out by a coin of its own. Unless ``coins`` says that both sides came
    about so, as many records of either side are drawn as coins would have chosen.
    """
    rng = np.random.default_rng([seed, 3])
    if not coins:
        smaller = min(len(members), len(others), MOST // 2)
        total = max(1, 2 * smaller - int(np.ceil(4 * np.sqrt(2 * smaller))))
        inside = min(int(rng.binomial(total, 0.5)), len(members))
        members = rng.permutation(members)[:inside]
        others = rng.permutation(others)[: total - inside]
    ranked = _ranked(members, others, rng)
    plans = [(max(1, int(share * len(ranked))), both) for share in SHARES for both in (False, True)]
    split = 1 - (1 - confidence) / len(plans)
    return max(
        one_run_epsilon(*counted(ranked, guesses, both), delta=delta, confidence=split) for guesses, both in plans
    )


def _ranked(members: Array, others: Array, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Whether each record was in, the highest score first; ties are broken at random."""
    scores = np.concatenate([members, others])
    truth = np.repeat([True, False], [len(members), len(others)])
    shuffled = rng.permutation(len(scores))
    return np.asarray(truth[shuffled[np.argsort(-scores[shuffled], kind="stable")]])


def counted(ranked: NDArray[np.bool_], guesses: int, both: bool) -> tuple[int, int, int]:
    """Right guesses, guesses and records, where the first ``guesses`` are said to be in, and as many last ones out."""
    m = len(ranked)
    guesses = min(guesses, m // 2) if both else min(guesses, m)
    caught = int(ranked[:guesses].sum())
    if not both:
        return caught, guesses, m
    return caught + int((~ranked[m - guesses :]).sum()), 2 * guesses, m


Plan = tuple[int, bool]
"""How many records are guessed in, and whether as many are guessed out."""


def planned_guesses(
    ideal: Callable[[np.random.Generator], tuple[Array, Array]], *, delta: float, confidence: float
) -> Plan:
    """The number of guesses that the best possible scores would do best with.

    ``ideal`` draws scores of records that were in and of others, as the privacy in question allows at best. The plan
    depends on nothing else, so that a test by it keeps its whole confidence.
    """
    rng = np.random.default_rng(0)
    draws = [_ranked(*ideal(rng), rng) for _ in range(REHEARSALS)]
    best, plan = -1.0, (1, True)
    for share in PLANNED_SHARES:
        for both in (False, True):
            guesses = max(1, int(share * len(draws[0])))
            counts = [counted(ranked, guesses, both) for ranked in draws]
            right = int(np.mean([count[0] for count in counts]))
            found = one_run_epsilon(min(right, counts[0][1]), *counts[0][1:], delta=delta, confidence=confidence)
            if found > best:
                best, plan = found, (guesses, both)
    return plan


def planned_epsilon(
    members: Array, others: Array, plan: Plan, *, delta: float, confidence: float, seed: int
) -> tuple[float, int, int]:
    """The limit by a plan that was made beforehand, the right guesses and the guesses."""
    ranked = _ranked(members, others, np.random.default_rng([seed, 3]))
    right, guesses, records = counted(ranked, *plan)
    return one_run_epsilon(right, guesses, records, delta=delta, confidence=confidence), right, guesses


def many_run_epsilon(members: Array, others: Array, *, delta: float = 1e-5, confidence: float = 0.95) -> float:
    """The largest epsilon that the scores of many runs contradict.

    Parameters
    ----------
    members, others : array [n], array [m]
        A score from each run in which the record was in, and from each in which it was not, in the order of the runs;
        higher says in. Runs are independent.
    delta : float, default 1e-5
        The delta of (epsilon, delta)-DP.
    confidence : float, default 0.95
        With which the limit holds.

    Returns
    -------
    float
        The lower limit; 0 if nothing is contradicted.

    Raises
    ------
    InvalidInput
        If a side has fewer than two scores, or a score is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from divulge.membership import many_run_epsilon
    >>> rng = np.random.default_rng(0)
    >>> many_run_epsilon(rng.normal(3.0, 1.0, 500), rng.normal(0.0, 1.0, 500)) > 2
    True
    """
    inside, outside = np.asarray(members, dtype=np.float64), np.asarray(others, dtype=np.float64)
    if min(len(inside), len(outside)) < 2 or not (np.isfinite(inside).all() and np.isfinite(outside).all()):
        raise InvalidInput("Many runs need at least two finite scores with the record and two without it.")
    checked_number("confidence", confidence, above=0, below=1)
    checked_number("delta", delta, at_least=0, below=1)

    def implied(turn: int, threshold: float) -> float:
        hits, alarms = inside[turn::2] > threshold, outside[turn::2] > threshold
        counts = int(hits.sum()), len(hits), int(alarms.sum()), len(alarms)
        return implied_epsilon(*counts, delta=delta, error=1 - confidence)

    tried = np.unique(np.concatenate([inside[::2], outside[::2]]))
    tried = tried[np.unique(np.linspace(0, len(tried) - 1, THRESHOLDS).astype(int))]
    return implied(1, max(tried.tolist(), key=lambda threshold: implied(0, threshold)))
