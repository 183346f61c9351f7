"""The range of the inputs' values, and the mean that was subtracted from them before training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.core.errors import InvalidInput, NonFiniteInput, WrongShape

Bound = float | Tensor


@dataclass(frozen=True)
class ValueBounds:
    """The entries of x + mean lie in [low, high]. An unknown mean is None and is fitted."""

    low: Tensor | float
    high: Tensor | float
    mean: Tensor | None

    @property
    def width(self) -> float:
        """The average distance of the bounds."""
        return float((torch.as_tensor(self.high) - torch.as_tensor(self.low)).mean())


def checked_bounds(input_dim: int, mean: Tensor | None, value_range: tuple[Bound, Bound] | None) -> ValueBounds | None:
    """The bounds that a caller gave, or None where ``value_range`` is None."""
    if mean is not None:
        mean = torch.as_tensor(mean).detach().double().reshape(-1)
        if len(mean) != input_dim:
            raise WrongShape(f"The mean has {len(mean)} entries, and the model takes {input_dim}.")
        if not bool(torch.isfinite(mean).all()):
            raise NonFiniteInput("The mean holds NaN or infinity; every entry must be finite.")
    if value_range is None:
        return None
    low, high = (torch.as_tensor(bound, dtype=torch.float64) for bound in value_range)
    if not bool((low < high).all()):
        raise InvalidInput("value_range is (low, high) with low below high.")
    return ValueBounds(low, high, mean)


def infer_mean(samples: Tensor, low: Bound, high: Bound, fitted: Tensor) -> Tensor:
    """The mean [d] that puts the samples [m, d] inside [low, high].

    The spread of the samples leaves an interval for each entry. The outermost tenth of the samples is left out, because
    it may be wrong. Many values near the lower end of the interval indicate a dark background at ``low``, many near
    its upper end a bright one at ``high``. Otherwise the middle is taken. ``fitted`` is returned for fewer than two
    samples.
    """
    if len(samples) < 2:
        return fitted
    bottom, top = torch.as_tensor(low).to(samples), torch.as_tensor(high).to(samples)
    smallest, largest = torch.quantile(samples, torch.tensor([0.1, 0.9]).to(samples), dim=0)
    varied = (largest - smallest) > 0.3 * (top - bottom)
    mean: Tensor = (bottom - smallest + top - largest) / 2
    if bool(varied.any()):
        near = 0.1 * (top - bottom)
        dark = float(((samples - smallest).abs() < near)[:, varied].double().mean())
        bright = float(((largest - samples).abs() < near)[:, varied].double().mean())
        if dark > max(0.2, 1.5 * bright):
            mean = bottom - smallest
        elif bright > max(0.2, 1.5 * dark):
            mean = top - largest
    return mean
