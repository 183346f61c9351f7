"""What an extraction hands back: the copy, what it cost, and how sure we may be of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from divulge.oracles.base import Oracle, Spent

CLOSE = 1e-3
"""A copy is as good as exact if no answer on fresh points is off by more than this part of their spread."""


@dataclass(frozen=True)
class Extraction:
    """A stolen model. ``exact`` is claimed only after verification on fresh points; ``reason`` says why it is not."""

    model: nn.Module
    width: int
    exact: bool
    worst_error: float
    """Largest absolute difference seen on the verification points."""
    scale: float
    """Standard deviation of the target's output on the same points, to read errors against."""
    ledger: Spent
    seed: int
    seconds: float
    method: str = ""
    reason: str = ""
    """Why the copy is not exact, in one sentence; empty if it is."""
    verified_points: int = 0
    smallest_gap: float | None = None
    """Kinks closer together than this along the search lines could have been missed."""
    notes: tuple[str, ...] = ()
    facts: dict[str, object] = field(default_factory=dict)

    @property
    def queries(self) -> int:
        return self.ledger.total

    @property
    def close(self) -> bool:
        """As good as exact: answers in float32 or with six decimals allow no more."""
        return self.exact or self.worst_error <= CLOSE * self.scale

    def check(self, oracle: Oracle, n: int = 1000, *, seed: int = 1) -> float:
        """Worst absolute difference to the target on ``n`` fresh Gaussian inputs (asked of the oracle, and counted)."""
        generator = torch.Generator().manual_seed(seed)
        X = torch.randn(n, oracle.input_dim, generator=generator, dtype=torch.float64)
        truth = oracle.value(X).to(torch.float64)
        with torch.no_grad():
            shape = getattr(self.model, "input_shape", (oracle.input_dim,))
            copy = self.model(X.to(next(self.model.parameters()).dtype).reshape(n, *shape)).to(truth)
        return float((truth - copy.reshape(truth.shape)).abs().max())

    def save(self, folder: str | Path) -> Path:
        """Write the copy as safetensors with its JSON, to be loaded by ``divulge.models.load``.

        A copy that shows probabilities is saved as the logits beneath them; open it with ``output="probabilities"``.
        """
        from divulge import models

        model = self.model
        if not hasattr(model, "spec") and isinstance(model, nn.Sequential) and hasattr(model[0], "spec"):
            model = model[0]
        return models.save(model, folder)

    def to_onnx(self, path: str | Path) -> Path:
        """Write the copy as an ONNX file, in float64 where the copy is."""
        from divulge.oracles.onnx_export import export_onnx

        return export_onnx(self.model, path)

    def as_dict(self) -> dict[str, object]:
        """Everything but the model, ready for JSON."""
        return {
            "method": self.method,
            "exact": self.exact,
            "close": self.close,
            "reason": self.reason,
            "width": self.width,
            "worst_error": self.worst_error if math.isfinite(self.worst_error) else None,
            "scale": self.scale,
            "verified_points": self.verified_points,
            "smallest_gap": self.smallest_gap,
            "queries": self.ledger.as_dict(),
            "seed": self.seed,
            "seconds": self.seconds,
            "notes": list(self.notes),
            "facts": dict(self.facts),
        }
