"""What ``divulge bound`` says beyond the chance of one reconstruction, with a sentence for whoever decides.

The bounds are those of ``divulge.protection``: advantage, information, many records, error, and error by Fisher
information. Each entry names where it comes from and what it assumes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from divulge.core.errors import InvalidInput

if TYPE_CHECKING:
    from divulge.protection import Schedule

MOST_COLUMNS = 5000
FISHER_COLUMNS, FISHER_RECORDS = 200, 20
"""The most columns for a Fisher information, and over how many records it is averaged."""
SHOWN = 0.001
"""The least share that the sentences, with one digit of a percentage, can show."""


def membership_limit(accepted: str | None, schedule: Schedule, delta: float) -> dict[str, Any] | None:
    """The least noise, and largest epsilon, that keep the accepted share of members found; None without a limit."""
    from divulge.protection import Limits, smallest_noise
    from divulge.training.private import accounting

    limits = Limits.parse(accepted, None)
    if limits.membership is None:
        return None
    share, rate = limits.membership
    training: Any = {"steps": schedule.steps, "sampling_rate": schedule.sampling_rate}
    noise = smallest_noise(math.log(rate), share, **training)
    epsilon = accounting.epsilon_spent(noise_multiplier=noise, delta=delta, **training)
    sentence = (
        f"To keep the share of members found at or below {share:.2%} at {rate:.2%} false positives: noise multiplier "
        f"{noise:.4g}, epsilon {epsilon:.4g}."
    )
    return {"share": share, "false_positive_rate": rate, "noise_multiplier": noise, "epsilon": epsilon,
            "sentence": sentence}  # fmt: skip


def further_bounds(
    noise: float, schedule: Schedule, delta: float, *, log_kappa: float, rows: Any, units: str, many: int
) -> dict[str, dict[str, Any]]:
    """The further bounds at a noise: by name the value, where it comes from, and a sentence."""
    from divulge.protection import gaussian_mu, information_bound, rdp_curve, reconstruction_advantage_bound
    from divulge.training.private import accounting

    if many < 1:
        raise InvalidInput(f"--many is a number of records; got {many}.")
    if schedule.full_batch:
        spent: dict[str, Any] = {"gaussian": gaussian_mu(noise, schedule.steps)}
        advantage, nats = reconstruction_advantage_bound(**spent), information_bound(**spent)
    else:
        training: Any = {"noise_multiplier": noise, "steps": schedule.steps, "sampling_rate": schedule.sampling_rate}
        epsilon = accounting.epsilon_spent(delta=delta, **training)
        advantage = reconstruction_advantage_bound(epsilon=epsilon, delta=delta)
        nats, spent = information_bound(rdp=rdp_curve(**training)), {"zcdp": None}
    found = {"Whatever they know": _advantage(advantage), "Information": _information(nats)}
    if spent.get("gaussian") is not None and log_kappa > -700:
        found["Many records"] = _many(math.exp(log_kappa), many, spent)
    if rows is not None and rows.shape[1] <= MOST_COLUMNS:
        found["Error"] = _error(rows, nats, units)
    if rows is not None and spent.get("gaussian") is not None:
        found["Error without bias"] = _unbiased(rows, spent["gaussian"])
    return found


def fisher_limit(records: Any, noise: float, schedule: Schedule, delta: float, seed: int) -> dict[str, Any]:
    """The error that the Fisher information of a private logistic regression on the records leaves to every attack."""
    import numpy as np

    from divulge.informed.private_linear import fisher_information
    from divulge.protection import fisher_error_bound, private_logistic
    from divulge.training.private import accounting

    if records is None or records.y.is_floating_point():
        raise InvalidInput("--fisher takes the records of --data and their classes.")
    X, y = records.X.flatten(1).double().numpy(), records.y.numpy()
    if X.shape[1] > FISHER_COLUMNS:
        raise InvalidInput(f"--fisher is for tables of up to {FISHER_COLUMNS} columns; these have {X.shape[1]:,}.")
    epsilon = accounting.epsilon_spent(
        noise_multiplier=noise, delta=delta, steps=schedule.steps, sampling_rate=schedule.sampling_rate
    )
    low, high = X.min(axis=0), X.max(axis=0)
    ranges = np.column_stack([low, np.where(high > low, high, low + 1)])
    released = private_logistic(X, y, epsilon=epsilon, delta=delta, ranges=ranges, seed=seed)
    chosen = np.random.default_rng(seed).permutation(len(X))[:FISHER_RECORDS]
    information = np.mean([fisher_information(released, X, y, int(record)) for record in chosen], axis=0)
    covariance = np.atleast_2d(np.cov(X.T))
    share = fisher_error_bound(information, covariance) / max(float(np.trace(covariance)) / len(covariance), 1e-300)
    return {
        "value": share, "epsilon": epsilon, "records": len(chosen),
        "from": "Fisher information leakage (the idea of Guo et al. 2022), for a prior by van Trees 1968",
        "sentence": _unless_void(share, f"of a logistic regression on these records that is released with epsilon "
        f"{epsilon:.4g} (noise in its weights) every reconstruction misses at least {share:.1%} of the variance on "
        "average, if records vary like a Gaussian with the covariance of these. The Fisher information, which says how "
        f"sharply the released weights depend on a record, is averaged over {len(chosen)} records, so this is an "
        "estimate."),
    }  # fmt: skip


def _unbiased(rows: Any, mu: float) -> dict[str, Any]:
    from divulge.protection import unbiased_error_bound

    widths = (rows.flatten(1).max(dim=0).values - rows.flatten(1).min(dim=0).values).double()
    size = math.sqrt(max(float(widths.square().mean()), 1e-300))
    share = math.sqrt(unbiased_error_bound(widths.numpy(), gaussian=mu)) / size
    return {
        "value": share,
        "from": "inequality of Hammersley, Chapman and Robbins, Renyi DP of order 2 (the idea of Guo et al. 2022)",
        "sentence": _unless_void(share, f"a reconstruction that is right on average (without bias) misses a column by "
        f"at least {share:.1%} of its range, as a root of the mean square. An attack that leans on what records "
        "usually look like is biased, and this does not hold for it."),
    }  # fmt: skip


def _advantage(value: float) -> dict[str, Any]:
    return {
        "value": value,
        "from": "total variation of the models with and without the record (after Guerra-Balboa et al. 2026)",
        "sentence": _unless_void(1 - value, "taking part raises the chance of any attack on a record by at most "
        f"{points(value)}, also for somebody who knows most of the record already. The chances above do not "
        "hold for them."),
    }  # fmt: skip


def points(share: float) -> str:
    """A difference of shares in points; a small one is not written as none."""
    return "0.1 points" if 0 < share < SHOWN else f"{100 * share:.1f} points"


def _unless_void(share: float, sentence: str) -> str:
    """The sentence, or that there is no limit: what is left to prove is less than the figures show."""
    return sentence if share >= SHOWN else "no limit at this privacy: what is proven is less than a thousandth."


def _information(nats: float) -> dict[str, Any]:
    return {
        "value": nats,
        "from": "mutual information is at most the divergence of the models with and without the record",
        "sentence": f"the model says at most {_amount(nats / math.log(2))} bits about one record.",
    }


def _many(kappa: float, many: int, spent: dict[str, Any]) -> dict[str, Any]:
    from divulge.protection import most_rebuilt, reconstruction_bound

    expected, most = many * reconstruction_bound(kappa, **spent), most_rebuilt(kappa, many, **spent)
    certain = f"no more than {most:,} except with a chance of 5 %"
    void = "no smaller number can be promised with 95 % certainty"
    return {
        "value": most, "records": many, "expected": expected,
        "from": "Markov's inequality, data processing and group privacy; see divulge.protection.many_records_bound",
        "sentence": f"of {many:,} unknown independent records at most {_amount(expected)} are rebuilt on average, and "
        f"{certain if most < many else void}.",
    }  # fmt: skip


def _amount(number: float) -> str:
    """Three digits of a small number, whole steps of a large one."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def _error(rows: Any, nats: float, units: str) -> dict[str, Any]:
    from divulge.protection import error_bound, spread_of

    spread = spread_of(rows)  # already in the units asked for
    share = error_bound(spread, nats)
    unit = "in units of each column's spread" if units == "scaled" else "in the units of the data"
    return {
        "value": share, "effective_dimension": spread.effective_dimension,
        "from": "the rate-distortion function of a Gaussian prior (Shannon 1959)",
        "sentence": _unless_void(share, "if records vary like a Gaussian with the covariance of these ("
        f"{spread.effective_dimension:.1f} effective directions), every reconstruction misses at least {share:.1%} of "
        f"the variance on average ({unit})."),
    }  # fmt: skip
