"""Baselines that a reconstruction is compared with (Balle 2022, section V-B), and the error measures.

The baselines are the nearest row that the adversary holds, percentiles of the distances to all such rows (figure 3),
and the class mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from divulge.core import plots
from divulge.core.errors import InvalidInput, WrongShape
from divulge.informed.result import Record


@dataclass(frozen=True)
class BaselineErrors:
    """Errors of baselines that need no attack, for each target: mean squared, over the features.

    Attributes
    ----------
    nearest : Tensor [n]
        To the nearest row that the adversary holds (the nearest-neighbour oracle).
    neighbour : Tensor [n]
        Which row that is.
    class_mean : Tensor [n]
        To the mean of the held rows with the target's label.
    percentiles : dict of int to float
        Averages over targets of the 1st, 10th and 50th percentile of the distances to all held rows.
    """

    nearest: Tensor
    neighbour: Tensor
    class_mean: Tensor
    percentiles: dict[int, float]


def baseline_errors(targets: Any, labels: Any, held_X: Any, held_y: Any) -> BaselineErrors:
    """Compute the errors of the baselines for every target (Balle 2022, section V-B and figure 3).

    Parameters
    ----------
    targets : array [n, d]
        The unknown records.
    labels : array [n]
        Their labels.
    held_X : array [m, d]
        Every row that the adversary holds: known and shadow rows.
    held_y : array [m]
        Their labels.

    Returns
    -------
    BaselineErrors
        Mean squared errors of the nearest held row, of the class mean, and percentiles of all distances.

    Raises
    ------
    WrongShape
        Targets and held rows have different numbers of features, or no row is held.

    Examples
    --------
    >>> import divulge
    >>> X, y = divulge.datasets.load("iris").train
    >>> divulge.informed.baseline_errors(X[:2], y[:2], X[2:], y[2:]).nearest.shape
    torch.Size([2])
    """
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
    return BaselineErrors(
        torch.cat(nearest), torch.cat(neighbour), (means - T).square().mean(dim=1),
        dict(zip((1, 10, 50), average, strict=True)),
    )  # fmt: skip


@dataclass(frozen=True)
class Score:
    """How good a set of reconstructions is.

    Attributes
    ----------
    mse : Tensor [n]
        Mean squared error of each target.
    psnr : Tensor [n]
        Peak signal-to-noise ratio in decibels.
    ssim : Tensor [n] or None
        Structural similarity, of pictures.
    kl : Tensor [n] or None
        Kullback-Leibler divergence between a classifier's answers on target and reconstruction.
    label_accuracy : float
        The share of right labels.
    beats_nearest : float
        The share of targets rebuilt closer than their nearest held row.
    baselines : BaselineErrors
        What needs no attack.
    """

    mse: Tensor
    psnr: Tensor
    ssim: Tensor | None
    kl: Tensor | None
    label_accuracy: float
    beats_nearest: float
    baselines: BaselineErrors

    def as_dict(self) -> dict[str, Any]:
        """Averages, and every target's own numbers."""
        table = {"mse": self.mse, "psnr": self.psnr, "ssim": self.ssim, "kl": self.kl}
        present = {name: values for name, values in table.items() if values is not None}
        return {
            **{f"mean_{name}": float(values[values.isfinite()].mean()) for name, values in present.items()},
            "median_mse": float(self.mse.median()),
            "label_accuracy": self.label_accuracy,
            "beats_nearest": self.beats_nearest,
            "nearest": float(self.baselines.nearest.mean()),
            "class_mean": float(self.baselines.class_mean.mean()),
            "percentiles": self.baselines.percentiles,
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

    Parameters
    ----------
    records : sequence of Record
        The reconstructions.
    targets : array [n, d]
        The true records.
    labels : array [n]
        Their labels.
    held_X : array [m, d]
        Every row that the adversary holds.
    held_y : array [m]
        Their labels.
    shape : tuple of int, optional
        The shape of a picture, such as (1, 28, 28); adds SSIM, with scikit-image's 7 x 7 window.
    classifier : nn.Module, optional
        Adds the Kullback-Leibler divergence between its answers on target and reconstruction.
    span : float, default 1.0
        The range of a feature, for PSNR.

    Returns
    -------
    Score
        Every measure for every target, beside what needs no attack.

    Raises
    ------
    InvalidInput
        There are not as many reconstructions as targets.

    Examples
    --------
    >>> import divulge
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = divulge.datasets.load("breast-cancer").train
    >>> estimator = LogisticRegression(max_iter=5000, tol=1e-12).fit(X, y)
    >>> record = divulge.informed.glm(estimator, X[:-1], y[:-1])
    >>> divulge.informed.score([record], X[-1:], y[-1:], X[:-1], y[:-1]).beats_nearest
    1.0
    """
    T = torch.as_tensor(targets).to(torch.float64).flatten(1)
    if len(records) != len(T):
        raise InvalidInput(f"There are {len(records)} reconstructions but {len(T)} targets.")
    Z = torch.stack([record.x.to(torch.float64).reshape(-1) for record in records])
    mse = (Z - T).square().mean(dim=1)
    baselines = baseline_errors(T, labels, held_X, held_y)
    right = [record.y == label for record, label in zip(records, torch.as_tensor(labels).tolist(), strict=True)]
    return Score(
        mse, 10 * torch.log10(span**2 / mse.clamp(min=1e-30)),
        None if shape is None else _ssim(Z, T, shape, span), None if classifier is None else _kl(classifier, T, Z),
        sum(right) / len(right), float((mse < baselines.nearest).double().mean()), baselines,
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
    """Targets (where they are known), reconstructions and nearest held rows in lines of their own, as a PNG.

    Parameters
    ----------
    records : sequence of Record
        The reconstructions; the first twelve are shown.
    targets : array [n, d] or None
        The true records, where they are known.
    held_X : array [m, d]
        Every row that the adversary holds.
    neighbour : Tensor [n]
        For each record the held row that is nearest to it.
    path : str or Path
        Where the picture is written.
    shape : tuple of int
        The shape of one picture, such as (1, 28, 28).

    Returns
    -------
    Path
        ``path``.

    Examples
    --------
    >>> import tempfile, torch, divulge
    >>> from divulge.informed import Record
    >>> X = divulge.datasets.load("digits").train.X
    >>> record = Record(x=X[0], y=0, predicted_error=0.0, method="example", seconds=0.0)
    >>> path = divulge.informed.picture(
    ...     [record], X[:1], X[1:], torch.tensor([5]), tempfile.mkdtemp() + "/x.png", shape=(1, 8, 8)
    ... )
    >>> path.stat().st_size > 0
    True
    """
    held = torch.as_tensor(held_X).flatten(1)[neighbour]
    lines = {"rebuilt": torch.stack([record.x.reshape(-1) for record in records]), "nearest": held}
    if targets is not None:
        lines = {"target": torch.as_tensor(targets).flatten(1), **lines}
    count = min(12, len(records))
    side = 1.0 if count > 3 else 2.0
    shown = [(name, rows[:count]) for name, rows in lines.items()]
    return plots.save(plots.grid_of_pictures(shown, shape, side=side, scaling="clip"), path)
