"""``divulge.oracle``: from whatever the user has (a module, an estimator, a file, an address) to an Oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from divulge.errors import UnsupportedModel
from divulge.oracles.base import Access, Oracle, check_access
from divulge.oracles.torch_model import Precision, TorchOracle


def oracle(
    source: Any,
    *,
    access: Access = "value",
    budget: int | None = None,
    precision: Precision = "native",
    input_shape: Sequence[int] | None = None,
    device: str | None = None,
) -> Oracle:
    """The oracle for ``source``: the only way an attack touches a target it does not own."""
    from torch import nn

    check_access(access)
    if isinstance(source, nn.Module):
        return TorchOracle(
            source, access=access, budget=budget, precision=precision, input_shape=input_shape, device=device
        )
    raise UnsupportedModel(f"There is no oracle for {type(source).__name__}.")
