"""Defences that stand in front of an oracle, and are oracles, so that they stack: ``Rounded(Noisy(oracle, 0.1), 3)``.

A guard shares the ledger of the oracle behind it, so a row that the client asks counts once however many guards it
passes, and the budget speaks of the client's rows. What the defence costs its owner is another number: ``guard.cost``
counts the rows that the model itself computed, which for SmoothGrad are many times more.

A guard never shows weights. Its ``eps`` is the relative size of the smallest difference that its answers can show to
a client, for outputs of order one, so that attacks derive their tolerances from it as from a number format.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import torch
from torch import Tensor

from divulge.errors import DivulgeError, InvalidInput
from divulge.oracles.base import ACCESS_LEVELS, Access, Kind, Ledger, Oracle, Spent, decide, in_batches

ROWS_AT_ONCE = 8192
"""Of the many rows that SmoothGrad makes of one, how many are sent on at once."""


class Guard(Oracle):
    """An oracle in front of an oracle; as it stands it passes everything but the weights on."""

    def __init__(self, oracle: Oracle, *, most: Access = "gradient") -> None:
        if not isinstance(oracle, Oracle):
            raise InvalidInput(f"A guard stands in front of an oracle, not a {type(oracle).__name__}; build one first.")
        super().__init__(
            input_dim=oracle.input_dim,
            output_dim=oracle.output_dim,
            access=min(oracle.access, most, key=ACCESS_LEVELS.index),
            dtype=oracle.dtype,
            device=oracle.device,
            input_shape=oracle.input_shape,
            threshold=oracle.threshold,
        )
        self.oracle = oracle
        self.ledger = oracle.ledger
        self._computed = Ledger()

    @property
    def cost(self) -> Spent:
        """Rows that the model itself computed for this guard: what the defence costs its owner."""
        return self.oracle.cost if isinstance(self.oracle, Guard) else self._computed.snapshot()

    @property
    def eps(self) -> float:
        return self.oracle.eps

    def _behind(self, kind: Kind, rows: int) -> Oracle:
        """The oracle behind, once the rows that it is about to compute are counted."""
        self._computed.charge(kind, rows)
        return self.oracle

    def _value(self, X: Tensor) -> Tensor:
        return self._finite(self._behind("value", len(X))._value(X), "value")

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = self._behind("gradient", len(X))._gradient(X)
        return self._finite(values, "value"), self._finite(gradients, "gradient")

    def _label(self, X: Tensor) -> Tensor:
        return self._behind("label", len(X))._label(X)


class Rounded(Guard):
    """Values and gradients to ``digits`` decimals. Labels are those of the unrounded values."""

    def __init__(self, oracle: Oracle, digits: int) -> None:
        if digits != int(digits) or not 0 <= digits <= 16:
            raise InvalidInput(f"Rounded takes a number of decimals from 0 to 16; got {digits}.")
        super().__init__(oracle)
        self.digits = int(digits)

    @property
    def eps(self) -> float:
        return float(max(self.oracle.eps, 10.0**-self.digits))

    def _round(self, answer: Tensor) -> Tensor:
        return answer.double().round(decimals=self.digits).to(answer.dtype)

    def _value(self, X: Tensor) -> Tensor:
        return self._round(super()._value(X))

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = super()._gradient(X)
        return self._round(values), self._round(gradients)


class Noisy(Guard):
    """Fresh Gaussian noise of standard deviation ``sigma`` on every number; labels are decided on noisy values."""

    def __init__(self, oracle: Oracle, sigma: float, seed: int = 0) -> None:
        super().__init__(oracle)
        self.sigma = _deviation(sigma, "Noisy")
        self._noise = _Noise(seed, sigma)

    @property
    def eps(self) -> float:
        return max(self.oracle.eps, self.sigma)

    def _value(self, X: Tensor) -> Tensor:
        values = super()._value(X)
        return values + self._noise.like(values)

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = super()._gradient(X)
        return values + self._noise.like(values), gradients + self._noise.like(gradients)

    def _label(self, X: Tensor) -> Tensor:
        if not self.oracle.allows("value"):  # there is nothing to add noise to
            return super()._label(X)
        values = self._finite(self._behind("label", len(X))._value(X), "value")
        return decide(values + self._noise.like(values), self.threshold)


class Smoothed(Guard):
    """SmoothGrad (Milli 2019, appendix D): the gradient's mean over ``samples`` points x + z, z ~ N(0, sigma^2 I).

    The values stay those of x itself, as an explanation endpoint shows them.
    """

    def __init__(self, oracle: Oracle, sigma: float, samples: int = 50, seed: int = 0) -> None:
        if samples != int(samples) or samples < 1:
            raise InvalidInput(f"Smoothed averages over at least one sample; got {samples}.")
        super().__init__(oracle)
        self.sigma, self.samples = _deviation(sigma, "Smoothed"), int(samples)
        self._noise = _Noise(seed, sigma)

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        try:
            values = self._value(X)
            (mean,) = in_batches(X, ROWS_AT_ONCE, lambda rows: (self._mean_gradient(rows),))
        except DivulgeError as error:  # of a mean that was never finished the client has seen nothing
            error.partial, error.rows_answered = None, 0  # type: ignore[attr-defined]
            raise
        return values, mean

    def _mean_gradient(self, X: Tensor) -> Tensor:
        total = X.new_zeros(len(X), self.output_dim, self.input_dim)
        left, most = self.samples, max(1, ROWS_AT_ONCE // len(X))
        while left:
            now = min(left, most)
            near = X.repeat(now, 1)
            near += self._noise.like(near)
            _, gradients = super()._gradient(near)
            total += gradients.reshape(now, len(X), self.output_dim, self.input_dim).sum(dim=0)
            left -= now
        return total / self.samples


class LabelOnly(Guard):
    """Nothing but the decision."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(oracle, most="label")


class TopK(Guard):
    """Values, and gradients, of the ``k`` largest outputs only.

    The hidden outputs are filled in from what is shown, so they say nothing of their own: their gradients are zero,
    and their values zero where the row looks like probabilities and one less than the smallest shown value where not.
    """

    def __init__(self, oracle: Oracle, k: int) -> None:
        if k != int(k) or not 1 <= k <= oracle.output_dim:
            raise InvalidInput(f"TopK shows between 1 and all {oracle.output_dim} outputs; got {k}.")
        super().__init__(oracle)
        self.k = int(k)

    def _shown(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The values with the small ones filled in, and which are shown [n, k]."""
        top = values.topk(self.k, dim=1)
        shown = torch.zeros_like(values, dtype=torch.bool).scatter_(1, top.indices, True)
        tolerance = 1e3 * values.shape[1] * torch.finfo(values.dtype).eps
        probable = (values >= 0).all(dim=1, keepdim=True) & ((values.sum(dim=1, keepdim=True) - 1).abs() < tolerance)
        fill = torch.where(probable, torch.zeros_like(top.values[:, -1:]), top.values[:, -1:] - 1)
        return torch.where(shown, values, fill), shown

    def _value(self, X: Tensor) -> Tensor:
        return self._shown(super()._value(X))[0]

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = super()._gradient(X)
        values, shown = self._shown(values)
        return values, gradients * shown[:, :, None]


class _Noise:
    """Gaussian numbers from one seeded stream, shared safely between threads."""

    def __init__(self, seed: int, sigma: float) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._lock = threading.Lock()
        self._sigma = sigma

    def like(self, tensor: Tensor) -> Tensor:
        with self._lock:
            draw = torch.randn(tensor.shape, generator=self._generator, dtype=torch.float64)
        return (self._sigma * draw).to(tensor)


def _deviation(sigma: float, who: str) -> float:
    if not (math.isfinite(sigma) and sigma >= 0):
        raise InvalidInput(f"{who} takes a standard deviation of zero or more; got {sigma}.")
    return float(sigma)


# -- guards by name, for the command line ----------------------------------------------------------------------------

FORMS = (
    "round:DIGITS, noise:SIGMA, smoothgrad:SIGMA[:SAMPLES], label, top:K, saliency[:signed] or "
    "integrated-gradients[:STEPS]"
)


def guard(text: str, *, seed: int = 0) -> Callable[[Oracle], Oracle]:
    """What puts the named guards in front of an oracle: ``guard("noise:0.01,round:4")(oracle)``.

    Several are separated by commas; the first stands closest to the model.
    """
    makers = [_maker(part.strip(), seed + place) for place, part in enumerate(text.split(","))]

    def put_in_front(oracle: Oracle) -> Oracle:
        for make in makers:
            oracle = make(oracle)
        return oracle

    return put_in_front


def _maker(text: str, seed: int) -> Callable[[Oracle], Oracle]:
    from divulge.oracles.captum_guard import Explained

    name, *options = text.split(":")
    try:
        match name, options:
            case "round", [digits]:
                decimals = int(digits)
                return lambda oracle: Rounded(oracle, decimals)
            case "noise", [sigma]:
                deviation = float(sigma)
                return lambda oracle: Noisy(oracle, deviation, seed)
            case "smoothgrad", [sigma, *samples] if len(samples) < 2:
                deviation, count = float(sigma), int(samples[0]) if samples else 50
                return lambda oracle: Smoothed(oracle, deviation, count, seed)
            case "label", []:
                return LabelOnly
            case "top", [k]:
                most = int(k)
                return lambda oracle: TopK(oracle, most)
            case "saliency", [] | ["signed"]:
                return lambda oracle: Explained(oracle, "saliency", absolute=not options)
            case "integrated-gradients", [*steps] if len(steps) < 2:
                number = int(steps[0]) if steps else 50
                return lambda oracle: Explained(oracle, "integrated-gradients", steps=number)
    except ValueError as error:
        raise InvalidInput(f"The guard {text!r} does not hold the numbers it should; write {FORMS}.") from error
    raise InvalidInput(f"There is no guard {text!r}; write {FORMS}, several separated by commas.")
