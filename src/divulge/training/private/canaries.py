"""Canaries inside private training: made-up records whose gradient lies along one coordinate, put in by a coin.

Nasr et al. 2023 and Steinke, Nasr and Jagielski 2023, section 6 ("Dirac canaries"): a canary's gradient is zero but for
one parameter of its own. It is far longer than the clipping norm and passes through the trainer's own clipping,
sampling and noise, so that a fault in any of them shows. Whoever watches the noisy sums of every step knows the other
records and subtracts theirs; what is left at the canary's parameter is noise, and the canary where it was in.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from divulge.core.errors import InvalidInput
from divulge.training.private.mlp_clipping import factors
from divulge.training.private.randomness import Randomness

LENGTH = 100.0
"""The norm of a canary's gradient before clipping, in units of the clipping norm."""


class GradientCanaries:
    """Canaries for one run of private training, and how much each step's noisy sum says that they were in.

    Parameters
    ----------
    included : array of bool [m]
        Which canaries the coins put in.
    parameters : int
        Parameters of the model; each canary takes one of them.
    noise_multiplier : float
        The noise that the recipe names, by which the sums are read.
    sampling_rate : float
        Each record's chance to be in a step.
    seed : int
        Chooses the canaries' parameters.

    Raises
    ------
    InvalidInput
        There are more canaries than parameters.
    """

    def __init__(
        self, included: NDArray[np.bool_], parameters: int, *, noise_multiplier: float, sampling_rate: float, seed: int
    ) -> None:
        if len(included) > parameters:
            raise InvalidInput(
                f"Each canary takes a parameter of its own; {len(included):,} canaries do not fit into a model of "
                f"{parameters:,} parameters."
            )
        order = np.random.default_rng([seed, 11]).permutation(parameters)[: len(included)]
        self.included = included
        self.coordinates = torch.as_tensor(order)
        """The parameter of each canary [m], counted over all of the model's."""
        self.scores = np.zeros(len(included))
        """The log likelihood ratio of in against out [m], over the steps so far."""
        self._noise, self._rate = noise_multiplier, sampling_rate
        self._clean = torch.zeros(len(included))
        self._clip = 1.0

    def insert(self, sums: list[Tensor], clip: float, source: Randomness) -> None:
        """Add the clipped gradients of the canaries of this step to the clipped sums [1, ...] of the records."""
        flat = torch.cat([one.reshape(-1) for one in sums])
        self._clip, self._clean = clip, flat[self.coordinates].clone()
        drawn = np.ones(len(self.included), dtype=bool)
        if self._rate < 1:
            drawn[:] = False
            drawn[source.sample(len(drawn), self._rate).numpy()] = True
        length = torch.tensor(LENGTH * clip, dtype=flat.dtype)
        flat[self.coordinates[torch.as_tensor(drawn & self.included)]] += length * factors(length, clip)
        first = 0
        for one in sums:
            one.copy_(flat[first : first + one.numel()].view_as(one))
            first += one.numel()

    def observe(self, noisy: list[Tensor]) -> None:
        """Read the noisy sums of this step."""
        flat = torch.cat([one.reshape(-1) for one in noisy])
        seen = ((flat[self.coordinates] - self._clean) / self._clip).double().numpy()
        self.scores += log_ratio(seen, self._noise, self._rate)


def log_ratio(seen: NDArray[np.float64], noise_multiplier: float, sampling_rate: float) -> NDArray[np.float64]:
    """log p(seen | in) - log p(seen | out) of one step, for noise N(0, noise_multiplier^2) and a canary of length 1."""
    if noise_multiplier == 0:
        return seen
    gain = (2 * seen - 1) / (2 * noise_multiplier**2)
    if sampling_rate == 1:
        return np.asarray(gain)
    return np.asarray(np.logaddexp(np.log1p(-sampling_rate), np.log(sampling_rate) + gain))
