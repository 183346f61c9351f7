"""What an informed attack hands back: the rebuilt record, how far to trust it, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Candidate:
    """One possible record, where the equations leave more than one; ``misfit`` is lower for the more plausible."""

    x: Tensor
    y: float | int | Tensor
    misfit: float


@dataclass(frozen=True)
class Record:
    """A training record rebuilt by someone who knew the others."""

    x: Tensor
    """The features [d] in the units of the known rows; [m, d] where several records were unknown."""
    y: Any
    """The label or target value; a list where several records were unknown."""
    predicted_error: float
    """The mean squared error of ``x`` that the attack itself expects; NaN where it cannot tell."""
    method: str
    seconds: float
    seed: int = 0
    trusted: bool = True
    """False when the attack can tell that ``x`` is not a reconstruction; ``reason`` then says why."""
    reason: str = ""
    candidates: tuple[Candidate, ...] = ()
    """Every record that fits, best first, where there are several (Balle 2022, Theorem 8)."""
    training_runs: float = 0.0
    """How many runs of the training algorithm the attack cost, or their equivalent."""
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def error(self, truth: Any) -> float:
        """The mean squared error to the true record, for an audit that knows it."""
        import torch

        expected = torch.as_tensor(truth, dtype=self.x.dtype).reshape(self.x.shape)
        return float((self.x - expected).square().mean())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "x": self.x.tolist(),
            "y": self.y.tolist() if isinstance(self.y, Tensor) else self.y,
            "predicted_error": self.predicted_error,
            "method": self.method,
            "trusted": self.trusted,
            "reason": self.reason,
            "training_runs": self.training_runs,
            "seconds": self.seconds,
            "seed": self.seed,
            "notes": list(self.notes),
            "candidates": [{"x": c.x.tolist(), "y": c.y, "misfit": c.misfit} for c in self.candidates],
            "facts": self.facts,
        }
