"""Every bound together: at one noise, inverted for the chance that is accepted, and along a grid of epsilon.

``divulge bound`` and the audit's finding on private training show it. The bounds are in ``divulge.protection.bounds``;
the accountant computes the epsilon that a noise spends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import brentq

from divulge.core import plots
from divulge.core.errors import InvalidInput
from divulge.protection import bounds, inverse_bounds, mechanisms
from divulge.training.private import accounting

if TYPE_CHECKING:
    from divulge.training import Privacy, Recipe

TIGHT = "tight"
RENYI = "Theorem 2 (RDP, best order)"
ZCDP = "Corollary 4 (zCDP)"
DP = "Corollary 3 plus delta"
PURE = "Corollary 3 (pure DP)"
BOUNDS = (TIGHT, RENYI, ZCDP, DP, PURE)
_EPSILONS = (0.1, 1e4)
_SAMPLED_NOISES = (20.0, 0.5)  # above, nothing happens; below, the accountant's grid grows
_SAMPLED_POINTS = 12


@dataclass(frozen=True)
class Schedule:
    """The part of a training run that the accountant needs: steps and sampling rate.

    Parameters
    ----------
    steps : int, default 100
        Noisy steps.
    sampling_rate : float, default 1.0
        Each record's chance to be in a step's batch; 1 for full batches.
    """

    steps: int = 100
    sampling_rate: float = 1.0

    @classmethod
    def of(cls, recipe: Recipe, records: int) -> Schedule:
        """How ``recipe`` trains privately on so many records: full batches, or Poisson samples as Opacus draws them."""
        if records < 1:
            raise InvalidInput(f"A schedule needs the number of records; got {records}.")
        from divulge.training.private.trainer import schedule

        return cls(*schedule(recipe, records))

    @property
    def full_batch(self) -> bool:
        return self.sampling_rate == 1.0


def privacy_for(recipe: Recipe, records: int, *, epsilon: float, delta: float = 1e-5, clip: float = 1.0) -> Privacy:
    """The private training of a recipe that spends (epsilon, delta), by the accountant.

    Parameters
    ----------
    recipe : Recipe
        Its epochs and batch size decide the schedule.
    records : int
        Training records.
    epsilon, delta : float
        What may be spent; delta is 1e-5 by default.
    clip : float, default 1.0
        The norm to which each example's gradient is clipped.

    Returns
    -------
    Privacy
        For ``dataclasses.replace(recipe, privacy=...)``.

    Raises
    ------
    InvalidInput
        There are no records, or the accountant cannot represent the epsilon.

    Examples
    --------
    >>> from divulge import Recipe
    >>> from divulge.protection import privacy_for
    >>> privacy = privacy_for(Recipe(widths=[4, 3], epochs=100), 120, epsilon=8.0)
    >>> round(privacy.noise_multiplier, 2)
    6.0
    """
    from divulge.training import Privacy  # torch, which the bounds do without

    schedule = Schedule.of(recipe, records)
    noise = accounting.noise_for(epsilon, delta=delta, steps=schedule.steps, sampling_rate=schedule.sampling_rate)
    return Privacy(noise_multiplier=noise, clip=clip, delta=delta)


@dataclass(frozen=True)
class RequiredPrivacy:
    """The smallest noise, and largest epsilon, that one bound requires.

    Parameters
    ----------
    bound : str
        The bound's name.
    epsilon, delta : float
        The privacy that may be spent.
    noise_multiplier : float, optional
        The noise that spends it. None for pure DP, which Gaussian noise never gives.
    """

    bound: str
    epsilon: float
    delta: float
    noise_multiplier: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if value is not None}


@dataclass(frozen=True)
class BoundCurves:
    """The bounds along a grid of noise.

    Parameters
    ----------
    log_kappa : float
        The logarithm of the chance of the best blind guess.
    delta : float
        The delta at which epsilon is stated.
    schedule : Schedule
        The training run.
    epsilons, noises : list of float
        The grid: ``noises[i]`` spends ``epsilons[i]``.
    log_gammas : dict of str to list of float
        For each bound the logarithm of the chance that it allows, along the grid.
    """

    log_kappa: float
    delta: float
    schedule: Schedule
    epsilons: list[float]
    noises: list[float]
    log_gammas: dict[str, list[float]]

    def plot(self, accepted: float | None = None) -> bytes:
        """A PNG of the curves; ``accepted`` draws the chance you accept."""
        figure, axes = epsilon_axes(self.delta)
        tiny = self.log_kappa < -600  # below what a float holds, so the exponents are drawn

        def shown(log: float) -> float:
            return log / math.log(10) if tiny else math.exp(log)

        for name, logs in self.log_gammas.items():  # Theorem 2 all but coincides with Corollary 4, which lies over it
            axes.plot(self.epsilons, [shown(log) for log in logs], label=name, linewidth=4 if name == RENYI else 1.5)
        axes.axhline(shown(self.log_kappa), color="grey", ls=":", label=f"blind guess ({chance(self.log_kappa)})")
        if accepted is not None:
            axes.axhline(shown(math.log(accepted)), color="black", ls="--", label=f"accepted ({accepted:.3g})")
        if not tiny:
            axes.set_yscale("log")
        axes.set_ylabel(("log10 of the " if tiny else "") + "chance of a reconstruction, at most")
        legend_above(axes)
        return plots.png(figure)


def epsilon_axes(delta: float) -> tuple[Any, Any]:
    """A figure with one pair of axes, epsilon along the lower."""
    figure, axes = plots.new_axes(6.4, 4.4)
    axes.set_xscale("log")
    axes.set_xlabel(f"epsilon at delta {delta:.3g}")
    axes.grid(alpha=0.3)
    return figure, axes


def legend_above(axes: Any, *others: Any) -> None:
    """One legend above these axes and those that share their place, where it hides no line."""
    handles, labels = axes.get_legend_handles_labels()
    for other in others:
        more = other.get_legend_handles_labels()
        handles, labels = handles + more[0], labels + more[1]
    axes.legend(handles, labels, frameon=False, fontsize=8, ncol=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def guarantees(
    noise_multiplier: float,
    *,
    log_kappa: float,
    schedule: Schedule,
    delta: float,
    names: Collection[str] = BOUNDS,
) -> tuple[float, dict[str, float]]:
    """What a noise multiplier spends, and the chance of a reconstruction that each bound allows.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise over the clipping norm.
    log_kappa : float
        The logarithm of the chance of the best blind guess.
    schedule : Schedule
        Steps and sampling rate.
    delta : float
        The delta at which epsilon is stated.
    names : collection of str, optional
        The bounds; all by default.

    Returns
    -------
    epsilon : float
        What is spent at ``delta``.
    log_gammas : dict of str to float
        The logarithm of the chance that each bound allows.

    Raises
    ------
    InvalidInput
        A parameter is out of its range.

    Examples
    --------
    >>> import math
    >>> from divulge.protection import Schedule, guarantees
    >>> epsilon, log_gammas = guarantees(10.0, log_kappa=math.log(1e-3), schedule=Schedule(100), delta=1e-5)
    >>> round(epsilon, 2), round(math.exp(log_gammas["tight"]), 4)
    (4.38, 0.0183)
    """
    every = _bounds(log_kappa, schedule, delta, names)
    gammas = {name: bound(noise_multiplier) for name, bound in every.items()}
    return _epsilon(noise_multiplier, schedule, delta), gammas


def required_privacy(
    log_kappa: float, gamma: float, *, schedule: Schedule, delta: float, names: Collection[str] = BOUNDS
) -> list[RequiredPrivacy]:
    """For each bound the smallest noise, and largest epsilon, at which it stays at or below gamma.

    Parameters
    ----------
    log_kappa : float
        The logarithm of the chance of the best blind guess.
    gamma : float
        The chance that is accepted, above kappa and below 1.
    schedule : Schedule
        Steps and sampling rate.
    delta : float
        The delta at which epsilon is stated.
    names : collection of str, optional
        The bounds; all by default.

    Returns
    -------
    list of RequiredPrivacy
        One a bound. Bounds that the schedule does not have, or that no noise satisfies, are left out.

    Raises
    ------
    InvalidInput
        gamma is not above kappa: no training can keep it there.

    Examples
    --------
    >>> import math
    >>> from divulge.protection import Schedule, required_privacy
    >>> tight = required_privacy(math.log(1e-3), 0.05, schedule=Schedule(100), delta=1e-5, names=["tight"])[0]
    >>> round(tight.epsilon, 2), round(tight.noise_multiplier, 2)
    (6.75, 6.92)
    """
    start = inverse_bounds.smallest_noise(
        log_kappa, gamma, steps=schedule.steps, sampling_rate=schedule.sampling_rate, theorem="gaussian"
    )
    rows = []
    for name, bound in _bounds(log_kappa, schedule, delta, names).items():
        noise = start if name == TIGHT else _smallest(bound, math.log(gamma), start)
        if noise is not None:
            rows.append(RequiredPrivacy(name, _epsilon(noise, schedule, delta), delta, noise))
    if PURE in names:
        rows.append(RequiredPrivacy(PURE, inverse_bounds.largest_epsilon(log_kappa, gamma), 0.0))
    return rows


def bound_curves(
    log_kappa: float, *, schedule: Schedule, delta: float, points: int = 100, names: Collection[str] = BOUNDS
) -> BoundCurves:
    """The bounds along a grid of epsilon from 0.1 to 10,000.

    Parameters
    ----------
    log_kappa : float
        The logarithm of the chance of the best blind guess.
    schedule : Schedule
        Steps and sampling rate.
    delta : float
        The delta at which epsilon is stated.
    points : int, default 100
        Points of the grid; at most 12 for sampled batches, where the accountant takes most of a second for each.
    names : collection of str, optional
        The bounds; all by default.

    Returns
    -------
    BoundCurves
        The bounds, and a plot of them.

    Raises
    ------
    InvalidInput
        A parameter is out of its range.

    Examples
    --------
    >>> import math
    >>> from divulge.protection import Schedule, bound_curves
    >>> bounds = bound_curves(math.log(1e-3), schedule=Schedule(100), delta=1e-5, points=5)
    >>> len(bounds.epsilons), sorted(bounds.log_gammas)[-1]
    (5, 'tight')
    """
    most, least = _SAMPLED_NOISES
    if schedule.full_batch:
        most, least = (accounting.noise_for(epsilon, delta=delta, steps=schedule.steps) for epsilon in _EPSILONS)
    else:
        points = min(points, _SAMPLED_POINTS)
    noises = np.geomspace(most, least, points).tolist()
    rows = [guarantees(noise, log_kappa=log_kappa, schedule=schedule, delta=delta, names=names) for noise in noises]
    return BoundCurves(
        log_kappa, delta, schedule, [epsilon for epsilon, _ in rows], noises,
        {name: [gammas[name] for _, gammas in rows] for name in rows[0][1]},
    )  # fmt: skip


def chance(log_probability: float) -> str:
    """A probability as text, however small."""
    if log_probability > -700:
        return f"{math.exp(log_probability):.3g}"
    return f"10^{log_probability / math.log(10):.0f}"


def _bounds(
    log_kappa: float, schedule: Schedule, delta: float, names: Collection[str] = BOUNDS
) -> dict[str, Callable[[float], float]]:
    """Each named bound that the schedule has, as a function from noise multiplier to log gamma."""
    steps, rate = schedule.steps, schedule.sampling_rate

    def tight(noise: float) -> float:
        if schedule.full_batch:
            return bounds.log_bound_gaussian(log_kappa, mechanisms.gaussian_mu(noise, steps))
        return mechanisms.log_subsampled_bound(log_kappa, noise, rate, steps)

    def renyi(noise: float) -> float:
        curve = accounting.rdp_curve(noise_multiplier=noise, steps=steps, sampling_rate=rate)
        return min(bounds.log_bound_rdp(log_kappa, *order) for order in curve)

    def dp(noise: float) -> float:
        return bounds.log_bound_dp(log_kappa, _epsilon(noise, schedule, delta), delta)

    found: dict[str, Callable[[float], float]] = {TIGHT: tight, RENYI: renyi, DP: dp}
    if schedule.full_batch:
        found[ZCDP] = lambda noise: bounds.log_bound_zcdp(log_kappa, mechanisms.gaussian_mu(noise, steps) ** 2 / 2)
    return {name: bound for name, bound in found.items() if name in names}


@lru_cache(maxsize=1024)
def _epsilon(noise: float, schedule: Schedule, delta: float) -> float:
    return accounting.epsilon_spent(
        noise_multiplier=noise, steps=schedule.steps, delta=delta, sampling_rate=schedule.sampling_rate
    )


def _smallest(bound: Callable[[float], float], log_gamma: float, start: float) -> float | None:
    """The least noise at which ``bound`` allows no more than gamma, from the tight bound's noise upwards; None where
    no noise suffices (gamma hardly above kappa, for a bound that exceeds kappa at any noise)."""
    low = high = math.log(start)
    step = 0.5
    while bound(math.exp(high)) > log_gamma:
        if step > 16:
            return None
        low, high, step = high, high + step, 2 * step
    if low == high:
        return start
    root: float = brentq(lambda log_noise: bound(math.exp(log_noise)) - log_gamma, low, high, xtol=1e-4)
    return math.exp(root + 1e-4)
