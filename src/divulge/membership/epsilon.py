"""A lower limit on epsilon from guesses about one model (Steinke, Nasr and Jagielski 2023, Theorem 5.2).

Some records were put into the training set by the flip of a coin. Whoever sees the model guesses for some of them
whether they were in, and abstains for the rest. Under (epsilon, delta)-DP the number of right guesses among r is hardly
larger than a binomial with chance e^epsilon / (1 + e^epsilon); the largest epsilon that the count contradicts is the
limit. How many guesses are made is tried for a few fixed numbers, and the confidence is split over them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from divulge.core.errors import InvalidInput
from divulge.core.validation import checked_number, checked_whole

Array = NDArray[np.float64]
SHARES = (0.01, 0.05, 0.2, 0.5)
"""Shares of the records that are guessed in; as many are guessed out, or none."""
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
    beta = float(binom.sf(right - 1, guesses, chance))
    if delta == 0 or right == 0:
        return min(1.0, beta)
    steps = np.arange(1, right + 1)
    below = np.cumsum(binom.pmf(right - steps, guesses, chance))  # P[right > W >= right - i]
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
    scores = np.concatenate([members, others])
    truth = np.repeat([True, False], [len(members), len(others)])
    shuffled = rng.permutation(len(scores))  # ties are broken at random
    order = shuffled[np.argsort(-scores[shuffled], kind="stable")]
    ranked = truth[order]
    best, tests = 0.0, 2 * len(SHARES)
    for share in SHARES:
        guessed = max(1, int(share * len(ranked)))
        caught = int(ranked[:guessed].sum())
        cleared = int((~ranked[-guessed:]).sum())
        for right, guesses in ((caught, guessed), (caught + cleared, 2 * guessed)):
            split = 1 - (1 - confidence) / tests
            found = one_run_epsilon(
                right, min(guesses, len(ranked)), len(ranked), delta=delta, confidence=split
            )  # fmt: skip
            best = max(best, found)
    return best
