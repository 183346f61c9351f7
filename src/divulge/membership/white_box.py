"""Membership from the weights: the size of the gradient that a record would cause, layer by layer.

Nasr et al. 2019: training drives the gradient of members towards zero. The logarithm of its norm in every parameter is
standardised among the non-members of the same class (``calibration``), and the mean over the parameters is the score.
Gradients of single records are computed in batches by ``torch.func``.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from divulge.core.losses import Loss, loss_of, shaped
from divulge.core.progress import report
from divulge.membership.calibration import by_class
from divulge.membership.records import Records
from divulge.oracles.record_scores import Asked

Pair = tuple[NDArray[np.float64], NDArray[np.float64]]
NUMBERS_AT_ONCE = 2**25
"""Gradient entries that are held at once."""


def gradient_scores(model: Asked, inside: Records, outside: Records) -> tuple[Pair, Pair]:
    """Scores of both sides: the mean over parameters of the negated logarithm of the gradient's norm.

    They come standardised among the non-members of the same class, and as they are.
    """
    network = model.oracle.weights()
    own, others = (_log_norms(network, model, side) for side in (inside, outside))
    flat = model.task == "regression"
    classes = [np.zeros(len(side)) if flat else side.y for side in (inside, outside)]
    pairs = [by_class(-own[:, p], -others[:, p], *classes) for p in range(own.shape[1])]
    standardised = np.mean([pair[0] for pair in pairs], axis=0), np.mean([pair[1] for pair in pairs], axis=0)
    return standardised, (-own.mean(axis=1), -others.mean(axis=1))


def _log_norms(network: nn.Module, model: Asked, records: Records) -> NDArray[np.float64]:
    """The logarithm of the norm of each record's gradient in each parameter [n, parameters]."""
    from torch.func import functional_call, grad, vmap

    weights = {name: parameter.detach() for name, parameter in network.named_parameters()}
    dtype = next(iter(weights.values())).dtype
    targets = (
        torch.as_tensor(records.y.astype(np.float64), dtype=dtype)
        if model.task == "regression"
        else torch.as_tensor(model.indices(records.y))
    )
    loss: Loss = (
        "square" if model.task == "regression" else "logistic" if model.oracle.output_dim == 1 else "cross-entropy"
    )

    def row_loss(parameters: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        outputs = functional_call(network, parameters, (x[None],)).reshape(1, -1)
        return loss_of(loss, outputs, target[None])

    batched = vmap(grad(row_loss), in_dims=(None, 0, 0))
    size = max(1, min(1024, NUMBERS_AT_ONCE // sum(weight.numel() for weight in weights.values())))
    parts = []
    for first in range(0, len(records), size):
        rows = shaped(records.X[first : first + size].to(dtype), network)
        gradients = batched(weights, rows, targets[first : first + size])
        norms = [gradient.flatten(1).norm(dim=1) for gradient in gradients.values()]
        parts.append((torch.stack(norms, dim=1).double() + 1e-30).log())
        report("gradients of records", first + len(rows), len(records))
    return torch.cat(parts).numpy()
