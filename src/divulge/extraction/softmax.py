"""Softmax regression from one gradient query (Milli 2019, section 5.1 and footnote 2).

Logits are affine, so one Jacobian is the weight matrix. From probabilities, the gradient of log p_i is
W_i - sum_k p_k W_k: all the weights up to what softmax cannot see, a vector added to every class. With a single
probability f = sigmoid(w.x + b) the gradient is f (1 - f) w.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from divulge.errors import AttackFailed, InvalidInput
from divulge.extraction.affine import Target
from divulge.extraction.logits import Outputs
from divulge.extraction.result import Extraction
from divulge.extraction.verification import spread
from divulge.models import MLP
from divulge.oracles.base import Oracle, at_the_door
from divulge.oracles.torch_model import Probabilities

CHECKS = 16


class Sigmoid(nn.Module):
    """A single logit as the probability of "yes"."""

    def forward(self, logit: Tensor) -> Tensor:
        return torch.sigmoid(logit)


def softmax_regression(
    oracle: Oracle, *, outputs: Outputs | None = None, seed: int = 0, checks: int = CHECKS
) -> Extraction:
    """Rebuild a softmax (or logistic) regression from one gradient query, and verify it on ``checks`` values.

    ``outputs`` is what the oracle shows; None tells it from the answer, since probabilities sum to one.
    """
    seed = at_the_door(oracle, seed)
    if outputs not in (None, "logits", "probabilities"):
        raise InvalidInput(f'outputs is "logits" or "probabilities", not {outputs!r}.')
    began, before = time.perf_counter(), oracle.ledger.snapshot()
    generator = torch.Generator().manual_seed(seed)
    target = Target(oracle)
    x = target.stored(torch.randn(1, oracle.input_dim, generator=generator, dtype=torch.float64))
    value, jacobian = target.maps(x)
    if outputs is None:
        outputs = "probabilities" if _looks_like_probabilities(value[0], jacobian[0]) else "logits"
    weight, bias = _from_logits(value[0], jacobian[0], x[0])
    if outputs == "probabilities":
        weight, bias = _from_probabilities(value[0], jacobian[0], x[0])
    logits = MLP([oracle.input_dim, len(weight)]).to(torch.float64)
    layer = logits[0]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    model: nn.Module = logits
    if outputs == "probabilities":
        model = nn.Sequential(logits, Probabilities() if len(weight) > 1 else Sigmoid())
    X = target.stored(torch.randn(checks, oracle.input_dim, generator=generator, dtype=torch.float64))
    truth = target.values(X)
    with torch.no_grad():
        worst = float((truth - model(X)).abs().max())
    scale = spread(truth)
    tolerance = max(1e-9, 1e3 * oracle.eps) * scale
    reason = "" if worst <= tolerance else (
        f"The target is not a softmax regression that shows {outputs}: one query explains it to "
        f"{worst / scale:.1e} of its standard deviation on {checks} fresh points."
    )  # fmt: skip
    return Extraction(
        model=model.eval(), width=0, exact=not reason, worst_error=worst, scale=scale,
        ledger=oracle.ledger.snapshot() - before, seed=seed, seconds=time.perf_counter() - began, method="softmax",
        reason=reason, verified_points=checks, facts={"outputs": outputs},
    )  # fmt: skip


def _looks_like_probabilities(value: Tensor, jacobian: Tensor) -> bool:
    inside = bool(((value > 0) & (value < 1)).all())
    if len(value) == 1:
        return inside
    return inside and abs(float(value.sum()) - 1) < 1e-4 and bool((jacobian.sum(dim=0).abs() < 1e-4).all())


def _from_logits(value: Tensor, jacobian: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return jacobian, value - jacobian @ x


def _from_probabilities(value: Tensor, jacobian: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    if bool((value <= 0).any()) or bool((value >= 1).any()):
        raise AttackFailed(
            "A probability came back as exactly 0 or 1, which hides its gradient; ask for logits, or for a precision "
            "that shows how small it is."
        )
    if len(value) == 1:
        weight = jacobian / (value * (1 - value))[:, None]
        return weight, torch.logit(value) - weight @ x
    weight = jacobian / value[:, None]
    return weight, value.log() - weight @ x
