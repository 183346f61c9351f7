"""The result of a reconstruction: samples, their confidence, and the comparison with training inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from divulge.core.result import AttackResult
from divulge.core.storage import write_arrays
from divulge.reconstruction import figures, matching
from divulge.reconstruction.matching import Match


@dataclass(frozen=True)
class Reconstruction(AttackResult):
    """Inputs reconstructed from a model's weights, most trusted first. ``from_weights`` returns it.

    There are no samples where nothing was found; ``reason`` says why.

    Examples
    --------
    >>> import torch
    >>> from divulge.reconstruction import Settings, from_weights
    >>> from divulge.training import margin
    >>> X = torch.randn(4, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> model = margin.to_margin(margin.network([20, 50, 1]), X, torch.tensor([0, 1, 0, 1]), loss=1e-3).model
    >>> found = from_weights(model, value_range=None, settings=Settings(steps=10))
    >>> found.success == (len(found.samples) > 0)
    True
    """

    samples: Tensor
    """[m, d], as the model takes its inputs: centred if it was trained on centred inputs."""
    labels: Tensor
    """The class of each sample, [m]."""
    multipliers: Tensor
    """The multiplier of each sample in the stationarity equation, [m]."""
    confidence: Tensor
    """How well the other restarts agree on each sample, [m], 0 to 1."""
    residual: float
    """|W1 - sum lambda y grad Phi| / |W1| of the best restart. Wrong samples can reach a low residual too."""
    rank: int
    """The number of training inputs that the first layer's spectrum shows (or that was given)."""
    restarts: int
    """Searches that were run."""
    mean: Tensor | None = None
    """What to add to a sample to get the image: the mean that was given, or the one inferred from the range."""
    mean_known: bool = True
    """Whether the mean was given rather than inferred."""
    value_range: tuple[float, float] | None = None
    """The range of the values, where one was given."""
    shape: tuple[int, ...] | None = None
    """The shape of an image; None for tables."""
    votes: Tensor | None = None
    """How many restarts found each sample, [m]."""
    certified: Tensor | None = None
    """Whether each sample satisfies what no mixture of inputs can, [m]; None for methods that certify nothing."""
    everything: Tensor | None = field(default=None, repr=False)
    """All candidates of all restarts, agreed on or not, [c, d]."""

    @property
    def success(self) -> bool:
        """Whether there are samples, and no reason against them."""
        return len(self.samples) > 0 and not self.reason

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
        """Judge the samples by the training inputs, with unseen inputs as the control.

        Both are as the model takes them. ``mean`` is the true mean where the attack inferred its own. ``everything``
        judges all candidates instead of those that restarts agree on. The other parameters are those of
        ``divulge.reconstruction.match``.
        """
        samples = self.everything if everything and self.everything is not None else self.samples
        return matching.match(
            samples, training_inputs, unseen=unseen, mean=self.mean if mean is None else mean, sample_mean=self.mean,
            value_range=self.value_range or (0.0, 1.0), shape=self.shape, stretch=stretch, vote=vote, window=window,
            threshold=threshold,
        )  # fmt: skip

    def save(self, folder: str | Path) -> Path:
        """Write ``samples.npz``, ``result.json`` and, for pictures, ``samples.png`` to ``folder``."""
        folder = Path(folder)
        arrays = {
            "samples": self.samples, "pictures": self.pictures, "labels": self.labels,
            "multipliers": self.multipliers, "confidence": self.confidence,
        }  # fmt: skip
        if self.mean is not None:
            arrays["mean"] = self.mean
        if self.certified is not None:
            arrays["certified"] = self.certified
        write_arrays(folder / "samples.npz", {name: tensor.cpu().numpy() for name, tensor in arrays.items()})
        if self.shape is not None and len(self.samples):
            figures.sample_grid(self, folder / "samples.png")
        return super().save(folder)

    def _arrays(self) -> dict[str, Any]:
        return {}  # they are in samples.npz

    def as_dict(self) -> dict[str, Any]:
        """The figures, ready for JSON; the samples themselves are in ``save``."""
        return super().as_dict() | {
            "found": len(self.samples), "rank": self.rank, "residual": self.residual, "restarts": self.restarts,
            "confidence": self.confidence.tolist(), "labels": self.labels.tolist(), "mean_known": self.mean_known,
            "certified": None if self.certified is None else self.certified.tolist(),
        }  # fmt: skip


def empty(d: int) -> dict[str, Tensor]:
    """The fields of a reconstruction that found nothing."""
    nothing = torch.zeros(0, dtype=torch.float64)
    return {
        "samples": torch.zeros(0, d, dtype=torch.float64), "labels": torch.zeros(0, dtype=torch.long),
        "multipliers": nothing, "confidence": nothing,
    }  # fmt: skip
