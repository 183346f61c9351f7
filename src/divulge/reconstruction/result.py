"""What a reconstruction hands back: the samples, how sure we may be of each, and how to judge them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from divulge.reconstruction import matching
from divulge.reconstruction.matching import Match


@dataclass(frozen=True)
class Reconstruction:
    """Inputs read from a model's weights, most trusted first. Empty where nothing was found; ``reason`` says why."""

    samples: Tensor
    """[m, d], as the model takes its inputs (centred, if it was trained on centred ones)."""
    labels: Tensor
    """The class of each sample, [m]."""
    multipliers: Tensor
    """How much each sample holds the weights up, [m]."""
    confidence: Tensor
    """How well the other restarts agree on each sample, [m], 0 to 1."""
    residual: float
    """|W1 - sum lambda y grad Phi| / |W1| of the best restart. Low alone proves nothing: random fits reach it too."""
    rank: int
    """The number of training inputs that the first layer's spectrum shows (or that was given)."""
    method: str
    seed: int
    seconds: float
    restarts: int
    mean: Tensor | None = None
    """What to add to a sample to see the picture: the mean that was given, or the one inferred from the range."""
    mean_known: bool = True
    value_range: tuple[float, float] | None = None
    shape: tuple[int, ...] | None = None
    votes: Tensor | None = None
    """How many restarts found each sample, [m]."""
    reason: str = ""
    notes: tuple[str, ...] = ()
    everything: Tensor | None = field(default=None, repr=False)
    """All candidates of all restarts, agreed on or not, [c, d]."""

    @property
    def pictures(self) -> Tensor:
        """The samples with the mean added, clipped to the range of values."""
        shown = self.samples if self.mean is None else self.samples + self.mean.to(self.samples)
        return shown if self.value_range is None or self.mean is None else shown.clamp(*self.value_range)

    def match(
        self,
        training_inputs: Tensor,
        unseen: Tensor | None = None,
        *,
        mean: Tensor | None = None,
        everything: bool = False,
        stretch: bool = False,
        vote: float | None = None,
        window: int = 3,
        threshold: float | None = None,
    ) -> Match:
        """Judge the samples by the training inputs, with inputs that the model never saw as the control; both as the
        model takes them. ``mean`` is the true mean, if the attack had to guess it; ``everything`` judges all
        candidates instead of those that restarts agree on."""
        samples = self.everything if everything and self.everything is not None else self.samples
        return matching.match(
            samples, training_inputs, unseen=unseen, mean=self.mean if mean is None else mean, sample_mean=self.mean,
            value_range=self.value_range or (0.0, 1.0), shape=self.shape, stretch=stretch, vote=vote, window=window,
            threshold=threshold,
        )  # fmt: skip

    def save(self, folder: str | Path) -> Path:
        """Write ``samples.npz`` and, for pictures, ``samples.png`` to ``folder``."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {
            "samples": self.samples, "pictures": self.pictures, "labels": self.labels,
            "multipliers": self.multipliers, "confidence": self.confidence,
        }  # fmt: skip
        if self.mean is not None:
            arrays["mean"] = self.mean
        plain: dict[str, Any] = {name: tensor.cpu().numpy() for name, tensor in arrays.items()}
        np.savez_compressed(folder / "samples.npz", **plain)
        if self.shape is not None and len(self.samples):
            from divulge.reconstruction.pictures import sample_grid

            sample_grid(self, folder / "samples.png")
        return folder

    def as_dict(self) -> dict[str, object]:
        """The figures, ready for JSON; the samples themselves are in ``save``."""
        return {
            "found": len(self.samples), "rank": self.rank, "residual": self.residual, "restarts": self.restarts,
            "confidence": self.confidence.tolist(), "labels": self.labels.tolist(), "method": self.method,
            "seed": self.seed, "seconds": self.seconds, "mean_known": self.mean_known, "reason": self.reason,
            "notes": list(self.notes),
        }  # fmt: skip


def empty(d: int) -> dict[str, Tensor]:
    """The fields of a reconstruction that found nothing."""
    nothing = torch.zeros(0, dtype=torch.float64)
    return {
        "samples": torch.zeros(0, d, dtype=torch.float64), "labels": torch.zeros(0, dtype=torch.long),
        "multipliers": nothing, "confidence": nothing,
    }  # fmt: skip
