"""What an extraction from labels hands back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from divulge.core.result import AttackResult, Spent
from divulge.oracles.base import Oracle, decide
from divulge.oracles.region import Region


@dataclass(frozen=True)
class LabelCopy(AttackResult):
    """A copy from hard labels, up to a positive factor of all logits and a term common to all classes."""

    model: nn.Module
    """The copy. A single output is a logit: above 0 is label 1."""
    widths: list[int]
    """Neurons of each hidden layer; empty for a linear model."""
    equivalent: bool
    """Whether the copy is claimed to decide like the target in the region, its boundary included."""
    agreement: float
    """Share of fresh rows of the region on which copy and target decide alike."""
    agreement_near: dict[float, float] = field(default_factory=dict)
    """The same share at distances from the boundary, by the distance in lengths of a typical input."""
    verified_rows: int = 0
    """Fresh rows on which the claim rests."""
    not_visible: str = ""
    """Which neurons the boundary does not show, where something is known of them."""
    hidden_layers: tuple[NDArray[Any], ...] = ()
    """Where a deeper network was not rebuilt: rows (w, b) of the neurons found of its lowest layers.

    The first layer takes inputs in the target's units, each other one the outputs of that before it. Each neuron is
    known up to a factor, which is positive but in the last of these layers, where it may be negative.
    """
    rounds: int = 0
    """Batches asked, one after the other: the fewest requests that a remote target has to answer."""
    verification: Spent = field(default_factory=Spent)
    """The rows of ``ledger`` that only verified the copy."""
    points: NDArray[Any] = field(default_factory=lambda: np.zeros((0, 0)), repr=False)
    """Boundary points that were found [n, d], in the target's units."""
    pairs: NDArray[Any] = field(default_factory=lambda: np.zeros((0, 2), dtype=int), repr=False)
    """The labels on both sides of each [n, 2]."""
    region: Region | None = field(default=None, repr=False)
    """Where the inputs of the attack lay."""

    @property
    def success(self) -> bool:
        """Whether the copy is equivalent."""
        return self.equivalent

    @property
    def exact(self) -> bool:
        """The same as ``equivalent``: what labels cannot show is not claimed."""
        return self.equivalent

    @property
    def width(self) -> int:
        """Hidden neurons, over all layers."""
        return sum(self.widths)

    @property
    def cost(self) -> Spent:
        """What the attack asked to rebuild the model, without the rows that only verify it."""
        return self.ledger - self.verification

    @property
    def queries(self) -> int:
        """Labels asked to rebuild the model, without those that only verify it."""
        return self.cost.total

    @property
    def requests(self) -> int:
        """Requests sent to a remote target; for a local one, the batches that would have been sent."""
        return self.ledger.requests or self.rounds

    def check(self, oracle: Oracle, n: int = 1000, *, seed: int = 1) -> float:
        """Share of ``n`` fresh Gaussian inputs of the attack's region on which copy and target decide differently.

        The rows are asked of the oracle, and counted.
        """
        generator = torch.Generator().manual_seed(seed)
        X = torch.randn(n, oracle.input_dim, generator=generator, dtype=torch.float64)
        X = X if self.region is None else self.region.to_inputs(X)
        with torch.no_grad():
            copy = decide(self.model(X))
        return float((oracle.label(X).cpu() != copy).double().mean())

    def _arrays(self) -> dict[str, Any]:
        """The points, and the hidden layers one by one."""
        layers = {f"hidden_layer_{i + 1}": rows for i, rows in enumerate(self.hidden_layers)}
        return super()._arrays() | layers

    def save(self, folder: str | Path) -> Path:
        """Write the copy as safetensors with its JSON, the boundary points as ``arrays.npz``, and ``result.json``."""
        from divulge import models

        models.save(self.model, folder)
        return super().save(folder)

    def to_onnx(self, path: str | Path) -> Path:
        """Write the copy as an ONNX file in float64."""
        from divulge.oracles.onnx.export import export_onnx

        return export_onnx(self.model, path)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the model and the points, ready for JSON."""
        return super().as_dict() | {
            "equivalent": self.equivalent,
            "widths": list(self.widths),
            "width": self.width,
            "agreement": self.agreement,
            "agreement_near": {f"{distance:g}": share for distance, share in self.agreement_near.items()},
            "verified_rows": self.verified_rows,
            "not_visible": self.not_visible,
            "hidden_layers_found": [len(rows) for rows in self.hidden_layers],
            "queries": self.cost.as_dict(),
            "verification_queries": self.verification.as_dict(),
            "requests": self.requests,
        }
