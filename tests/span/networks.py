"""Networks whose span is known, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from divulge.models import MLP


def network(
    widths: Sequence[int],
    seed: int,
    *,
    activation: str = "relu",
    bias: str = "all",
    dtype: torch.dtype = torch.float64,
    balanced: bool = False,
) -> MLP:
    """A random MLP; ``balanced`` moves a single output so that half of Gaussian inputs fall on either side of 0."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MLP(widths, activation=activation, bias=bias).to(torch.float64)  # type: ignore[arg-type]
        X = torch.randn(400, widths[0], dtype=torch.float64)
    if balanced:
        with torch.no_grad():
            model[-1].bias -= model(X).median()
    return model.to(dtype).eval()


def first_layer(model: torch.nn.Sequential) -> Tensor:
    weight: Tensor = model[0].weight.detach().double()
    return weight
