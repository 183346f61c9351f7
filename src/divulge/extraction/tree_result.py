"""What an extraction from the values of trees hands back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from divulge.core.result import AttackResult, Spent
from divulge.extraction.trees.domain import Domain
from divulge.oracles.base import Oracle


@dataclass(frozen=True)
class TreeCopy(AttackResult):
    """A copy of a tree or of a sum of trees. ``exact`` is claimed on the domain only, after verification."""

    model: nn.Module
    """The copy: a ``DecisionTree`` or ``StepTables``."""
    exact: bool
    """Whether the copy answers all verification rows as the target does."""
    leaves: int
    """Leaves of the copy, or cells of its tables."""
    thresholds: int
    """Different thresholds found, over all columns."""
    worst_error: float
    """Largest absolute difference on the verification rows."""
    scale: float
    """Standard deviation of the target's answers on the same rows."""
    verified_points: int = 0
    """Fresh rows on which the claim rests."""
    verification: Spent = field(default_factory=Spent)
    """The rows of ``ledger`` that only verified the copy."""
    domain: Domain | None = field(default=None, repr=False)
    """Where the copy was rebuilt."""

    @property
    def success(self) -> bool:
        """Whether the copy is exact."""
        return self.exact

    @property
    def close(self) -> bool:
        """The same as ``exact``: a step in the wrong place is not close."""
        return self.exact

    @property
    def cost(self) -> Spent:
        """What the attack asked to rebuild the model, without the rows that only verify it."""
        return self.ledger - self.verification

    @property
    def queries(self) -> int:
        """Rows that the attack asked to rebuild the model, without those that only verify it."""
        return self.cost.total

    def check(self, oracle: Oracle, n: int = 1000, *, seed: int = 1) -> float:
        """Worst absolute difference to the target on ``n`` fresh rows of the domain. They are asked, and counted."""
        import numpy as np

        domain = self.domain if self.domain is not None else Domain.of(oracle, None)
        X = torch.from_numpy(domain.draw(n, np.random.default_rng(seed)))
        with torch.no_grad():
            return float((oracle.value(X).double().cpu() - self.model(X)).abs().max())

    def save(self, folder: str | Path) -> Path:
        """Write the copy as safetensors with its JSON, to be loaded by ``divulge.models.load``, and ``result.json``."""
        from divulge import models

        models.save(self.model, folder)
        return super().save(folder)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the model, ready for JSON."""
        return super().as_dict() | {
            "exact": self.exact,
            "leaves": self.leaves,
            "thresholds": self.thresholds,
            "worst_error": self.worst_error if math.isfinite(self.worst_error) else None,
            "scale": self.scale,
            "verified_points": self.verified_points,
            "queries": self.cost.as_dict(),
            "verification_queries": self.verification.as_dict(),
        }
