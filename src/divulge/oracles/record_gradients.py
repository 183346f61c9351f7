"""The size of the gradient that a record causes in every parameter of a model, record by record.

Gradients of single records are computed in batches by ``torch.func``.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from divulge.core.losses import Loss, loss_of, shaped
from divulge.core.progress import report
from divulge.oracles.record_scores import Asked

NUMBERS_AT_ONCE = 2**25
"""Gradient entries that are held at once."""


def gradient_log_norms(model: Asked, X: Tensor, y: NDArray[Any]) -> NDArray[np.float64]:
    """The logarithm of the norm of each record's gradient in each parameter [n, parameters]; asks for the weights."""
    from torch.func import functional_call, grad, vmap

    network = model.oracle.weights()
    weights = {name: parameter.detach() for name, parameter in network.named_parameters()}
    dtype = next(iter(weights.values())).dtype
    targets = (
        torch.as_tensor(y.astype(np.float64), dtype=dtype)
        if model.task == "regression"
        else torch.as_tensor(model.indices(y))
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
    for first in range(0, len(X), size):
        rows = shaped(X[first : first + size].to(dtype), network)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")  # of attention, row by row
            gradients = batched(weights, rows, targets[first : first + size])
        norms = [gradient.flatten(1).norm(dim=1) for gradient in gradients.values()]
        parts.append((torch.stack(norms, dim=1).double() + 1e-30).log())
        report("gradients of records", first + len(rows), len(X))
    return torch.cat(parts).numpy()
