"""The guarantee that a privately trained model has, read from its recipe or from the folder it was saved in.

A guarantee holds against someone who knows everything but the noise and the samples. It is not claimed where those can
be repeated from a seed. It covers the training alone: what was computed from the data before training, such as a
scaling by the data's own extremes, is named as not covered.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divulge.core.errors import InvalidInput
from divulge.protection import bounds, mechanisms
from divulge.protection.recommend import Schedule
from divulge.training.private import accounting

if TYPE_CHECKING:
    from divulge.training import Recipe


@dataclass(frozen=True)
class Guarantee:
    """What differential privacy guarantees for one trained model.

    Attributes
    ----------
    holds : bool
        Whether the guarantee can be claimed.
    reason : str
        Why it cannot, such as "seeded: no guarantee"; empty where it holds.
    accounted_epsilon : float
        The epsilon that the accountant computes for the noise, as if nobody knew a seed; infinite without noise.
    delta : float
        The delta that goes with it.
    noise_multiplier, clip : float
        The noise over the clipping norm, and the clipping norm.
    schedule : Schedule
        The number of steps, and each record's chance to be in one.
    not_covered : tuple of str
        What was computed from the data outside the private training.
    """

    holds: bool
    reason: str
    accounted_epsilon: float
    delta: float
    noise_multiplier: float
    clip: float
    schedule: Schedule
    not_covered: tuple[str, ...] = ()

    @property
    def epsilon(self) -> float:
        """The epsilon that is guaranteed; infinite where the guarantee does not hold."""
        return self.accounted_epsilon if self.holds else math.inf

    def bound(self, kappa: float | None = None, *, log_kappa: float | None = None) -> float:
        """The largest chance of a reconstruction, if a blind guess has chance ``kappa``; 1 where nothing holds.

        Parameters
        ----------
        kappa : float, optional
            The chance of the best blind guess. Give this or ``log_kappa``.
        log_kappa : float, optional
            Its logarithm.

        Returns
        -------
        float
            The tight bound: that of the Gaussian mechanism for full batches, of its privacy-loss distribution for
            sampled ones.
        """
        if not self.holds:
            return 1.0
        steps, rate = self.schedule.steps, self.schedule.sampling_rate
        if self.schedule.full_batch:
            mu = mechanisms.gaussian_mu(self.noise_multiplier, steps)
            return bounds.reconstruction_bound(kappa, log_kappa=log_kappa, gaussian=mu)
        return mechanisms.subsampled_bound(
            kappa, log_kappa=log_kappa, noise_multiplier=self.noise_multiplier, sampling_rate=rate, steps=steps
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; an infinite epsilon is None."""
        return {
            "holds": self.holds,
            "reason": self.reason,
            "epsilon": self.epsilon if math.isfinite(self.epsilon) else None,
            "accounted_epsilon": self.accounted_epsilon if math.isfinite(self.accounted_epsilon) else None,
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
            "clip": self.clip,
            "steps": self.schedule.steps,
            "sampling_rate": self.schedule.sampling_rate,
            "not_covered": list(self.not_covered),
        }

    def __str__(self) -> str:
        if not self.holds:
            return self.reason
        text = f"epsilon {self.epsilon:.4g} at delta {self.delta:g}"
        return text + (f"; not covered: {'; '.join(self.not_covered)}" if self.not_covered else "")


def guarantee_of(
    trained: str | Path | Recipe, *, rows: int | None = None, delta: float | None = None
) -> Guarantee | None:
    """The guarantee of a privately trained model, from its recipe or from the folder it was saved in.

    Parameters
    ----------
    trained : str, Path or Recipe
        The folder that ``divulge train`` wrote, a recipe.json, or the recipe itself.
    rows : int, optional
        The number of training rows. It is read from data.json beside the recipe where it is left out; full-batch
        recipes do not need it.
    delta : float, optional
        The delta for which epsilon is stated; the recipe's own by default.

    Returns
    -------
    Guarantee or None
        None where the recipe trains without privacy.

    Raises
    ------
    InvalidInput
        There is no recipe, or ``rows`` is missing for a recipe with mini-batches.

    Examples
    --------
    >>> from divulge import Recipe
    >>> from divulge.protection import guarantee_of
    >>> from divulge.training import Privacy
    >>> recipe = Recipe(widths=[4, 3], epochs=50, privacy=Privacy(noise_multiplier=10.0))
    >>> guarantee = guarantee_of(recipe)
    >>> round(guarantee.epsilon, 2), round(guarantee.bound(kappa=0.01), 3)
    (2.94, 0.053)
    >>> seeded = Recipe(widths=[4, 3], epochs=50, privacy=Privacy(noise_multiplier=10.0, noise_seed=1))
    >>> print(guarantee_of(seeded))
    seeded: no guarantee
    """
    from divulge.training import Recipe

    record: dict[str, Any] = {}
    if isinstance(trained, Recipe):
        recipe = trained
    else:
        path = Path(trained)
        recipe = Recipe.load(path, trust_code=True)  # nothing is built or run here
        record = _data_record((path if path.suffix != ".json" else path.parent) / "data.json")
    privacy = recipe.privacy
    if privacy is None:
        return None
    count = rows if rows is not None else len(record["row_numbers"]) if record else None
    if count is None and recipe.batch_size is not None:
        raise InvalidInput("This recipe trains in mini-batches; say with rows= of how many training rows.")
    schedule, delta = Schedule.of(recipe, count or 1), delta or privacy.delta
    epsilon = math.inf
    if privacy.noise_multiplier > 0:
        epsilon = accounting.epsilon_spent(
            noise_multiplier=privacy.noise_multiplier, steps=schedule.steps, sampling_rate=schedule.sampling_rate,
            delta=delta,
        )  # fmt: skip
    holds = math.isfinite(epsilon) and privacy.noise_seed is None
    return Guarantee(
        holds, "" if holds else privacy.claim, epsilon, delta, float(privacy.noise_multiplier), float(privacy.clip),
        schedule, _not_covered(record),
    )  # fmt: skip


def _data_record(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        len(record["row_numbers"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidInput(f"{path} does not say which rows were used: {error}.") from error
    return record


def _not_covered(record: dict[str, Any]) -> tuple[str, ...]:
    """What data.json says was computed from the data before training."""
    found = []
    if record.get("scaling") == "extremes":
        found.append("the columns were scaled by the data's own extremes (declare them with --bounds)")
    if record.get("centred"):
        found.append("the training mean was subtracted")
    return tuple(found)
