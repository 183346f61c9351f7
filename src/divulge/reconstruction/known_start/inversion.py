"""From the features of a picture back to the picture, through a known extractor.

The features of a training picture come out of the difference of the first dense layer behind the extractor. The picture
is the one whose features are nearest, by Adam from grey and then by L-BFGS, inside the range of values. Behind pooling
many pictures have nearly these features, so the descent begins with a weight on the total variation, which fades. Where
features are zero the extractor's last ReLU was off, which the same objective says: a feature above zero is an error.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from divulge.core import progress
from divulge.core.optim import Descent
from divulge.reconstruction.known_start.layers import Features

STEPS, FEWER_STEPS = 1000, 400
"""Steps of the descent: as a rule, and where the features are not exact anyway. 20 pictures behind a max-pool (seed
6000): 13 above SSIM 0.9 after 400, 15 after 1000."""
POLISH = 120
RATE = 0.05
SMOOTHNESS, FADED_AT = 0.3, 0.8
"""Weight of the total variation at first, and the share of the steps after which it is zero. Chosen on 8 CIFAR-10
pictures from their exact features behind a convolution and a max-pool: none above SSIM 0.9 without it, 6 with it."""
RANGE_WEIGHT = 10.0
"""Weight of the squared distance from the range of values."""


def invert(
    features: Features, wanted: Tensor, shape: tuple[int, ...], value_range: tuple[float, float],
    *, steps: int = STEPS,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Pictures [m, d] whose features are nearest to ``wanted`` [m, f], and the share of the features missed, [m]."""
    goal = wanted.float()
    drawn = torch.randn(8, *shape, generator=torch.Generator().manual_seed(0))
    if bool((features(drawn) >= 0).all()):  # behind a ReLU
        goal = goal.clamp_min(0)
    size = goal.square().sum(dim=1).clamp_min(1e-30)
    low, high = value_range
    middle = 0.5 * (low + high) if math.isfinite(high - low) else 0.0
    X = torch.full((len(goal), *shape), middle, requires_grad=True)

    def losses() -> Tensor:
        missed = (features(X) - goal).square().sum(dim=1) / size
        outside = (X - high).clamp_min(0).square() + (low - X).clamp_min(0).square()
        return missed + RANGE_WEIGHT * outside.flatten(1).mean(dim=1)

    descent = Descent([X], optimiser="adam", learning_rate=RATE)
    for step in range(steps):
        descent.learning_rate = RATE * (1 - step / steps) + 1e-3
        descent.clear()
        smoothness = SMOOTHNESS * max(0.0, 1 - step / (FADED_AT * steps)) ** 2
        (losses() + smoothness * _variation(X)).sum().backward()  # type: ignore[no-untyped-call]
        descent.step()
        progress.report("pictures from features", done=step, total=steps)
    polish = torch.optim.LBFGS(
        [X], max_iter=POLISH, history_size=20, line_search_fn="strong_wolfe", tolerance_grad=1e-10,
        tolerance_change=1e-14,
    )  # fmt: skip

    def closure() -> Tensor:
        polish.zero_grad()
        total = losses().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    polish.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        missed = ((features(X) - goal).square().sum(dim=1) / size).sqrt()
    return X.detach().flatten(1).double(), missed.double()


def _variation(X: Tensor) -> Tensor:
    """The total variation of pictures X [m, channels, height, width], a pixel's share of it, [m]; 0 for tables."""
    if X.ndim < 4:
        return X.new_zeros(len(X))
    across, down = X[..., 1:] - X[..., :-1], X[..., 1:, :] - X[..., :-1, :]
    lengths = [(step.square() + 1e-4).sqrt().flatten(1).mean(dim=1) for step in (across, down)]
    return lengths[0] + lengths[1]
