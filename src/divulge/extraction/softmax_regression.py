"""Softmax regression from one gradient query (Milli 2019, section 5.1 and footnote 2).

Logits are affine, so one Jacobian is the weight matrix. From probabilities, the gradient of log p_i is
W_i - sum_k p_k W_k: all the weights up to what softmax cannot see, a vector added to every class. With a single
probability f = sigmoid(w.x + b) the gradient is f (1 - f) w.

The paper stops there. Here the copy is then compared with the target on fresh rows.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from divulge.core.errors import AttackFailed
from divulge.extraction.attack_space import checked_size
from divulge.extraction.gradients.affine_maps import TargetMaps
from divulge.extraction.result import Extraction
from divulge.extraction.verification import CHECKS, CONFIDENCE, constant_outputs, spread
from divulge.models import MLP
from divulge.oracles.base import Oracle, check_oracle_and_seed
from divulge.oracles.outputs import (
    ROUNDINGS,
    Outputs,
    answer_precision,
    are_probabilities,
    checked_outputs,
    output_layer,
)
from divulge.oracles.region import Region

FLATTEST = 1e-4
"""The gradients of probabilities sum to at most this share of their size, whatever they are rounded to."""


def softmax_regression(
    oracle: Oracle, *, inputs: Any = None, outputs: Outputs | None = None, seed: int = 0, checks: int = CHECKS
) -> Extraction:
    """Rebuild a softmax or logistic regression from one gradient query.

    Parameters
    ----------
    oracle : Oracle
        The target, with gradient access.
    inputs : array-like of shape [n, d], optional
        Rows like the target's data, for where it is asked and verified. By default inputs are N(0, I).
    outputs : {"logits", "log-probabilities", "probabilities"}, optional
        What the target shows. By default the answers decide.
    seed : int, default 0
        Fixes every random choice.
    checks : int, default 6000
        Fresh values that verify the copy.

    Returns
    -------
    Extraction
        The copy. ``exact`` is True only if all fresh rows agree; else ``reason`` says why not.

    Raises
    ------
    AttackFailed
        If a probability is exactly 0 or 1, which hides its gradient.
    UnsupportedModel
        If the answers are so large or so small that their squares leave the range of float64.

    Examples
    --------
    >>> import torch, divulge
    >>> from divulge.models import MLP
    >>> _ = torch.manual_seed(0)
    >>> oracle = divulge.oracle(MLP([5, 3]).double(), access="gradient", output="probabilities")
    >>> stolen = divulge.extraction.softmax_regression(oracle, checks=100)
    >>> stolen.exact, stolen.ledger.gradient
    (True, 1)
    """
    seed = check_oracle_and_seed(oracle, seed)
    checked_outputs(outputs)
    began, before = time.perf_counter(), oracle.ledger.snapshot()
    region = Region.of(inputs, oracle)
    target = TargetMaps(region.oracle(oracle))
    generator = torch.Generator().manual_seed(seed)
    x = target.stored(torch.randn(1, oracle.input_dim, generator=generator, dtype=torch.float64))
    value, jacobian = target.maps(x)
    largest = checked_size(value)
    if outputs is None:
        outputs = _outputs_of(oracle, value, jacobian)
    weight, bias = _logit_map(outputs, value[0], jacobian[0], x[0])
    model = _model(weight / region.scale, bias - (weight / region.scale) @ region.center, outputs)
    X = target.stored(torch.randn(checks, oracle.input_dim, generator=generator, dtype=torch.float64))
    asked = oracle.ledger.snapshot()
    truth = target.values(X)
    checked_size(truth, largest)
    with torch.no_grad():
        worst = float((truth - model(region.to_inputs(X))).abs().max())
    scale = spread(truth)
    reason = _reason(outputs, worst, scale, checks, target.oracle.eps)
    if not reason and (flat := constant_outputs(truth, target.oracle.eps)):
        reason = f"The answers of outputs {flat} are constant on all rows that were asked, which proves nothing."
    share = 1 - (1 - CONFIDENCE) ** (1 / checks)
    return Extraction(
        model=model, width=0, exact=not reason, worst_error=worst, scale=scale,
        ledger=oracle.ledger.snapshot() - before, seed=seed, seconds=time.perf_counter() - began, method="softmax",
        reason=reason, verified_points=checks, verification=oracle.ledger.snapshot() - asked, region=region,
        facts={"outputs": outputs, "verification": {"rows": checks, "confidence": CONFIDENCE, "share": share}},
    )  # fmt: skip


def _outputs_of(oracle: Oracle, value: Tensor, jacobian: Tensor) -> Outputs:
    """What one answer and its gradient show; the gradients of probabilities sum to zero."""
    if value.shape[1] == 1:
        inside = bool(((value > 0) & (value < 1)).all())
        return "probabilities" if oracle.threshold > 0 or inside else "logits"
    flat = float(jacobian.sum(dim=1).norm()) <= FLATTEST * max(1.0, float(jacobian.norm()))
    precision = max(answer_precision(value), ROUNDINGS * oracle.eps)
    return "probabilities" if flat and are_probabilities(value, precision) else "logits"


def _logit_map(outputs: Outputs, value: Tensor, jacobian: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [k, d] and biases [k] of the logits, from the answer [k] and its gradient [k, d] at ``x``."""
    if outputs == "logits" or (outputs == "log-probabilities" and len(value) > 1):
        return jacobian, value - jacobian @ x
    p = value if outputs == "probabilities" else value.exp()
    if bool((p <= 0).any()) or bool((p >= 1).any()):
        raise AttackFailed(
            "A probability came back as exactly 0 or 1, which hides its gradient; ask for logits, or for a precision "
            "that shows how small it is."
        )
    if len(p) == 1:
        weight = jacobian / ((p * (1 - p)) if outputs == "probabilities" else 1 - p)[:, None]
        return weight, torch.logit(p) - weight @ x
    weight = jacobian / p[:, None]
    return weight, p.log() - weight @ x


def _model(weight: Tensor, bias: Tensor, outputs: Outputs) -> nn.Module:
    """The regression as a module that shows what the target shows."""
    logits = MLP([weight.shape[1], len(weight)]).to(torch.float64)
    layer = logits[0]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)
    last = output_layer(outputs, len(weight))
    return (logits if last is None else nn.Sequential(logits, last)).eval()


def _reason(outputs: Outputs, worst: float, scale: float, checks: int, eps: float) -> str:
    if worst <= max(1e-9, 1e3 * eps) * scale:
        return ""
    return (
        f"The target is not a softmax regression that shows {outputs}: one query explains it to {worst / scale:.1e} of "
        f"its standard deviation on {checks:,} fresh points."
    )
