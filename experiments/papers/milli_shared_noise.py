"""SmoothGrad (Milli et al. 2019, appendix D) where the student knows the points that gradients are averaged over.

The target's explanation of x is the mean of its gradients at x + z for a few z, the same for every query. A student
that knows them is averaged over them, too, before its gradient is compared; its values stay those at x. The paper does
not say which gradient of the student it compares with a smoothed one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from divulge.oracles.base import Oracle
from divulge.oracles.guards.base import Guard


def points(samples: int, inputs: int, deviation: float, seed: int) -> Tensor:
    """The z, [samples, inputs]."""
    generator = torch.Generator().manual_seed(seed)
    return deviation * torch.randn(samples, inputs, generator=generator, dtype=torch.float64)


class SharedNoise(Guard):
    """An oracle whose gradients are means over the same points around every query."""

    def __init__(self, oracle: Oracle, noise: Tensor) -> None:
        super().__init__(oracle)
        self.noise = noise

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        gradients = [super(SharedNoise, self)._gradient(X + z.to(X))[1] for z in self.noise]
        return self._value(X), torch.stack(gradients).mean(dim=0)


class Averaged(nn.Module):
    """A student with the values of ``inner`` and the gradient of its mean over points around the input.

    f(x0) + m(x) - m(x0) at x = x0, with x0 held fixed: the value is f(x), its derivative by the weights that of f, and
    the gradient by the input that of the mean m.
    """

    def __init__(self, inner: nn.Module, noise: Tensor) -> None:
        super().__init__()
        self.inner, self.input_shape = inner, inner.input_shape
        self.register_buffer("noise", noise.float())

    def forward(self, X: Tensor) -> Tensor:
        if not X.requires_grad:
            return self.inner(X)  # type: ignore[no-any-return]
        fixed = X.detach()
        value: Tensor = self.inner(fixed) + self._mean(X) - self._mean(fixed)
        return value

    def _mean(self, X: Tensor) -> Tensor:
        assert isinstance(self.noise, Tensor)
        return torch.stack([self.inner(X + z.to(X).reshape(1, *X.shape[1:])) for z in self.noise]).mean(dim=0)
