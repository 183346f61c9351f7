"""What a reconstruction is measured against (Balle 2022, section V-B): the nearest row that the adversary had anyway,
percentiles of all distances to such rows (figure 3), the class mean; and the measures themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from divulge.errors import InvalidInput, WrongShape
from divulge.informed.record import Record


@dataclass(frozen=True)
class Yardsticks:
    """Errors that need no attack, for each target: mean squared, over the features."""

    nearest: Tensor
    """[n]: to the nearest row among those that the adversary holds (the nearest-neighbour oracle)."""
    neighbour: Tensor
    """[n]: which one that is."""
    class_mean: Tensor
    """[n]: to the mean of the held rows with the target's label."""
    percentiles: dict[int, float]
    """Averages over targets of the 1st, 10th and 50th percentile of the distances to all held rows."""


def yardsticks(targets: Any, labels: Any, held_X: Any, held_y: Any) -> Yardsticks:
    """The yardsticks for ``targets`` against everything the adversary holds (known and shadow rows)."""
    T = torch.as_tensor(targets).to(torch.float64).flatten(1)
    X = torch.as_tensor(held_X).to(torch.float64).flatten(1)
    if T.shape[1] != X.shape[1] or len(X) == 0:
        raise WrongShape(f"Targets of {T.shape[1]} features cannot be compared with {len(X)} rows of {X.shape[1]}.")
    y, held = torch.as_tensor(labels).reshape(-1), torch.as_tensor(held_y).reshape(-1)
    nearest, neighbour, ranks = [], [], []
    for part in torch.split(T, 256):
        squares = torch.cdist(part, X).square_() / T.shape[1]
        best = squares.min(dim=1)
        nearest.append(best.values)
        neighbour.append(best.indices)
        places = [max(0, round(p / 100 * (len(X) - 1))) for p in (1, 10, 50)]
        ranks.append(squares.sort(dim=1).values[:, places])
    means = torch.stack([X[held == label].mean(dim=0) if bool((held == label).any()) else X.mean(dim=0) for label in y])
    average = torch.cat(ranks).mean(dim=0).tolist()
    return Yardsticks(
        torch.cat(nearest), torch.cat(neighbour), (means - T).square().mean(dim=1),
        dict(zip((1, 10, 50), average, strict=True)),
    )  # fmt: skip


@dataclass(frozen=True)
class Score:
    """How good a set of reconstructions is."""

    mse: Tensor
    psnr: Tensor
    ssim: Tensor | None
    kl: Tensor | None
    label_accuracy: float
    beats_nearest: float
    """The share of targets rebuilt closer than their nearest held row."""
    yardsticks: Yardsticks

    def as_dict(self) -> dict[str, Any]:
        """Averages, and every target's own numbers."""
        table = {"mse": self.mse, "psnr": self.psnr, "ssim": self.ssim, "kl": self.kl}
        present = {name: values for name, values in table.items() if values is not None}
        return {
            **{f"mean_{name}": float(values[values.isfinite()].mean()) for name, values in present.items()},
            "median_mse": float(self.mse.median()),
            "label_accuracy": self.label_accuracy,
            "beats_nearest": self.beats_nearest,
            "nearest": float(self.yardsticks.nearest.mean()),
            "class_mean": float(self.yardsticks.class_mean.mean()),
            "percentiles": self.yardsticks.percentiles,
            "targets": {name: values.tolist() for name, values in present.items()},
        }


def score(
    records: Sequence[Record],
    targets: Any,
    labels: Any,
    held_X: Any,
    held_y: Any,
    *,
    shape: tuple[int, ...] | None = None,
    classifier: nn.Module | None = None,
    span: float = 1.0,
) -> Score:
    """Measure reconstructions against their targets.

    ``shape`` (such as (1, 28, 28)) adds SSIM, with scikit-image's 7x7 window; ``classifier`` the Kullback-Leibler
    divergence between its answers on target and reconstruction; ``span`` is the range of a feature, for PSNR.
    """
    T = torch.as_tensor(targets).to(torch.float64).flatten(1)
    if len(records) != len(T):
        raise InvalidInput(f"There are {len(records)} reconstructions but {len(T)} targets.")
    Z = torch.stack([record.x.to(torch.float64).reshape(-1) for record in records])
    mse = (Z - T).square().mean(dim=1)
    rods = yardsticks(T, labels, held_X, held_y)
    right = [record.y == label for record, label in zip(records, torch.as_tensor(labels).tolist(), strict=True)]
    return Score(
        mse, 10 * torch.log10(span**2 / mse.clamp(min=1e-30)),
        None if shape is None else _ssim(Z, T, shape, span), None if classifier is None else _kl(classifier, T, Z),
        sum(right) / len(right), float((mse < rods.nearest).double().mean()), rods,
    )  # fmt: skip


def _ssim(Z: Tensor, T: Tensor, shape: tuple[int, ...], span: float) -> Tensor:
    from skimage.metrics import structural_similarity

    measure: Any = structural_similarity
    pairs = zip(Z.reshape(-1, *shape).numpy(), T.reshape(-1, *shape).numpy(), strict=True)
    return torch.tensor([measure(a, b, data_range=span, channel_axis=0) for a, b in pairs])


def _kl(classifier: nn.Module, T: Tensor, Z: Tensor) -> Tensor:
    from divulge.training import shaped

    dtype = next(classifier.parameters()).dtype
    with torch.no_grad():
        truth, copy = (classifier(shaped(rows.to(dtype), classifier)).log_softmax(dim=1) for rows in (T, Z))
    divergence: Tensor = (truth.exp() * (truth - copy)).sum(dim=1).to(torch.float64)
    return divergence


def picture(
    records: Sequence[Record],
    targets: Any | None,
    held_X: Any,
    neighbour: Tensor,
    path: str | Path,
    *,
    shape: tuple[int, ...],
) -> Path:
    """Targets (where they are known), reconstructions and nearest held rows in lines of their own, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    held = torch.as_tensor(held_X).flatten(1)[neighbour]
    lines = {"rebuilt": torch.stack([record.x.reshape(-1) for record in records]), "nearest": held}
    if targets is not None:
        lines = {"target": torch.as_tensor(targets).flatten(1), **lines}
    count = min(12, len(records))
    side = 1.0 if count > 3 else 2.0
    figure = Figure(figsize=(side * count + 0.6, side * 1.1 * len(lines)))
    FigureCanvasAgg(figure)
    for line, (name, rows) in enumerate(lines.items()):
        for column in range(count):
            axes = figure.add_subplot(len(lines), count, line * count + column + 1)
            image = rows[column].reshape(shape).permute(1, 2, 0).clamp(0, 1).numpy()
            axes.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
            if column == 0:
                axes.set_ylabel(name)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    return path
