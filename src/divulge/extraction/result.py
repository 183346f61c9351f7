"""What an extraction hands back: the copy, what it cost, and how sure we may be of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from divulge.core.result import AttackResult, Spent
from divulge.oracles.base import Oracle

if TYPE_CHECKING:
    from divulge.oracles.region import Region

CLOSE = 1e-3
"""A copy is as good as exact if no answer on fresh points is off by more than this part of their spread."""


@dataclass(frozen=True)
class Extraction(AttackResult):
    """A stolen model. ``exact`` is claimed only after verification on fresh points; ``reason`` says why it is not."""

    model: nn.Module
    """The copy."""
    width: int
    """Hidden neurons, over all layers."""
    exact: bool
    """Whether the copy is claimed to be exact."""
    worst_error: float
    """Largest absolute difference seen on the verification points."""
    scale: float
    """Standard deviation of the target's output on the same points, to read errors against."""
    verified_points: int = 0
    """Fresh points on which the claim rests."""
    smallest_gap: float | None = None
    """Kinks closer together than this along the search lines could have been missed."""
    verification: Spent = field(default_factory=Spent)
    """The rows of ``ledger`` that only verified the copy, after it was complete."""
    region: Region | None = field(default=None, repr=False)
    """Where the inputs of the attack lay; None is N(0, I)."""

    @property
    def widths(self) -> list[int]:
        """Neurons of each hidden layer of the copy."""
        return [int(width) for width in self.facts.get("widths", [self.width])]

    @property
    def success(self) -> bool:
        """Whether the copy is as good as exact."""
        return self.close

    @property
    def cost(self) -> Spent:
        """What the attack asked to rebuild the model, without the rows that only verify it."""
        return self.ledger - self.verification

    @property
    def queries(self) -> int:
        """Rows that the attack asked to rebuild the model, without those that only verify it."""
        return self.cost.total

    @property
    def close(self) -> bool:
        """As good as exact: answers in float32 or with six decimals allow no more."""
        return self.exact or self.worst_error <= CLOSE * self.scale

    def check(self, oracle: Oracle, n: int = 1000, *, seed: int = 1) -> float:
        """Worst absolute difference to the target on ``n`` fresh Gaussian inputs of the attack's region.

        The rows are asked of the oracle, and counted.
        """
        generator = torch.Generator().manual_seed(seed)
        X = torch.randn(n, oracle.input_dim, generator=generator, dtype=torch.float64)
        X = X if self.region is None else self.region.to_inputs(X)
        truth = oracle.value(X).to(torch.float64)
        with torch.no_grad():
            shape = getattr(self.model, "input_shape", (oracle.input_dim,))
            copy = self.model(X.to(next(self.model.parameters()).dtype).reshape(n, *shape)).to(truth)
        return float((truth - copy.reshape(truth.shape)).abs().max())

    def save(self, folder: str | Path) -> Path:
        """Write the copy as safetensors with its JSON, to be loaded by ``divulge.models.load``, and ``result.json``.

        A copy that shows probabilities is saved as the logits behind them; open it with ``output="probabilities"``.
        """
        from divulge import models

        model = self.model
        if not hasattr(model, "spec") and isinstance(model, nn.Sequential) and hasattr(model[0], "spec"):
            model = model[0]
        models.save(model, folder)
        return super().save(folder)

    def to_onnx(self, path: str | Path) -> Path:
        """Write the copy as an ONNX file, in float64 where the copy is."""
        from divulge.oracles.onnx.export import export_onnx

        return export_onnx(self.model, path)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the model, ready for JSON."""
        return super().as_dict() | {
            "exact": self.exact,
            "close": self.close,
            "width": self.width,
            "widths": self.widths,
            "worst_error": self.worst_error if math.isfinite(self.worst_error) else None,
            "scale": self.scale,
            "verified_points": self.verified_points,
            "smallest_gap": self.smallest_gap,
            "queries": self.cost.as_dict(),
            "verification_queries": self.verification.as_dict(),
        }
