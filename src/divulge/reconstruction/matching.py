"""How good are reconstructions? Compared with the training set, and with inputs that the model never saw.

The steps are those of Haim et al. 2022, appendix B.3: scaling, neighbours by normalised cross-correlation, voting,
SSIM. What is added is the control. On digits, SSIM > 0.4 is reached by pictures that were never trained on, so every
measure is taken for unseen inputs too, and the threshold that counts as found is the one that unseen inputs almost
never pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import fisher_exact, mannwhitneyu
from torch import Tensor

from divulge.errors import EmptyBatch, InvalidInput, NonFiniteInput, WrongShape

FALSE_POSITIVES = 0.01
"""The share of unseen inputs that may pass the threshold."""


def correlation(A: Tensor, B: Tensor) -> Tensor:
    """Pearson's correlation of every row of A with every row of B: the normalised cross-correlation of pictures."""
    table: Tensor = _standard(A) @ _standard(B).T
    return table


def _standard(A: Tensor) -> Tensor:
    centred: Tensor = A.double() - A.double().mean(dim=1, keepdim=True)
    scaled: Tensor = centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-30)
    return scaled


def closeness(A: Tensor, B: Tensor, spread: Tensor) -> Tensor:
    """1 - root mean squared difference in units of each column's spread: for tables and points, where correlation
    between a few columns says little."""
    scaled_A, scaled_B = A.double() / spread, B.double() / spread
    return 1 - torch.cdist(scaled_A, scaled_B) / math.sqrt(A.shape[1])


def ssim(A: Tensor, B: Tensor, shape: tuple[int, ...], *, window: int = 3, span: float = 1.0) -> Tensor:
    """Structural similarity of A[i] and B[i] (Wang et al. 2004) with a Gaussian window (sigma 1.5) of ``window``
    pixels, values ranging over ``span``, averaged over the pixels whose window fits and over channels."""
    if window % 2 == 0 or window < 3:
        raise InvalidInput(f"The SSIM window is an odd number of pixels from 3 on; got {window}.")
    pictures = [X.double().reshape(-1, 1, *shape[-2:]) for X in (A, B)]
    offsets = torch.arange(window, dtype=torch.float64) - window // 2
    line = torch.exp(-offsets.square() / (2 * 1.5**2))
    kernel = (line[:, None] * line[None])[None, None] / line.sum() ** 2

    def blur(P: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(P, kernel)

    a, b = pictures
    mean_a, mean_b = blur(a), blur(b)
    var_a, var_b = blur(a * a) - mean_a**2, blur(b * b) - mean_b**2
    cov = blur(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    index = (2 * mean_a * mean_b + c1) * (2 * cov + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    return index.reshape(len(A), -1).mean(dim=1)


@dataclass(frozen=True)
class Scores:
    """For each input, how well its best reconstruction resembles it."""

    correlation: Tensor  # [n]
    ssim: Tensor | None  # [n], for pictures
    nearest: Tensor
    """The index of the best reconstruction of each input, [n]."""


@dataclass(frozen=True)
class Match:
    """Reconstructions beside the training set they are judged by.

    ``correlation`` and ``ssim`` give, for each training input, its best reconstruction's score; ``pairs`` is the best
    one-to-one assignment [k, 2] of reconstructions to training inputs (as many above the threshold as can be), so that
    no reconstruction counts twice.
    """

    pairs: Tensor
    pair_correlation: Tensor
    """The score of each pair, [k]; for tables 1 minus the distance in standard deviations."""
    correlation: Tensor
    ssim: Tensor | None
    nearest: Tensor
    control: Scores | None
    threshold: float
    """The correlation above which a training input counts as found."""
    false_positive_rate: float | None
    """The share of unseen inputs above the threshold; None where no unseen inputs were given."""
    p_value: float | None
    """Chance that unseen inputs would score as well (one-sided Mann-Whitney)."""
    column_error: Tensor
    """Root mean squared error of each column over the pairs found, in its standard deviations, [d]."""
    window: int
    rebuilt: Tensor = field(repr=False)
    """For each training input its (voted) reconstruction, [n, d]."""
    truth: Tensor = field(repr=False)
    reconstructions: int
    """How many samples were offered."""
    shape: tuple[int, ...] | None = None

    def found(self, threshold: float | None = None) -> int:
        """Training inputs found, counted one-to-one."""
        return int((self.pair_correlation > (self.threshold if threshold is None else threshold)).sum())

    def recall(self, threshold: float | None = None) -> float:
        """The share of the training set that was found."""
        return self.found(threshold) / len(self.correlation)

    def precision(self, threshold: float | None = None) -> float:
        """The share of reconstructions that are a training input, one-to-one."""
        return self.found(threshold) / max(self.reconstructions, 1)

    def excess(self, threshold: float) -> float | None:
        """Chance that as many inputs would pass ``threshold`` had none been trained on (one-sided Fisher)."""
        if self.control is None:
            return None
        seen, unseen = self.correlation > threshold, self.control.correlation > threshold
        table = [[int(seen.sum()), int((~seen).sum())], [int(unseen.sum()), int((~unseen).sum())]]
        return float(fisher_exact(table, alternative="greater").pvalue)

    def picture(self, path: str | Path, *, columns: int = 15, most: int = 45) -> Path:
        """The pair grid of Haim et al. 2022, figure 3: reconstructions above, training inputs below, best first."""
        from divulge.reconstruction.pictures import pair_grid

        return pair_grid(self, path, columns=columns, most=most)

    def margin_plot(self, path: str | Path, outputs: Tensor) -> Path:
        """The plot of figure 4: each training input's score against the model's output for it."""
        from divulge.reconstruction.pictures import margin_plot

        return margin_plot(self, outputs, path)

    def as_dict(self) -> dict[str, object]:
        """The figures, ready for JSON."""
        return {
            "training_inputs": len(self.correlation),
            "reconstructions": self.reconstructions,
            "threshold": self.threshold,
            "false_positive_rate": self.false_positive_rate,
            "found": self.found(),
            "recall": self.recall(),
            "precision": self.precision(),
            "p_value": self.p_value,
            "correlation_above_0.9": int((self.correlation > 0.9).sum()),
            "control_above_0.9": None if self.control is None else int((self.control.correlation > 0.9).sum()),
            "control_inputs": None if self.control is None else len(self.control.correlation),
            "ssim_above_0.4": None if self.ssim is None else int((self.ssim > 0.4).sum()),
            "ssim_above_0.9": None if self.ssim is None else int((self.ssim > 0.9).sum()),
            "ssim_window": self.window,
            "correlation": self.correlation.tolist(),
            "ssim": None if self.ssim is None else self.ssim.tolist(),
        }


def match(
    samples: Tensor,
    training_inputs: Tensor,
    *,
    unseen: Tensor | None = None,
    mean: Tensor | None = None,
    sample_mean: Tensor | None = None,
    value_range: tuple[float, float] = (0.0, 1.0),
    shape: tuple[int, ...] | None = None,
    stretch: bool = False,
    vote: float | None = None,
    window: int = 3,
    threshold: float | None = None,
) -> Match:
    """Compare ``samples`` [m, d] with the training inputs [n, d], all as the model takes them.

    ``mean`` is what was subtracted from the inputs before the model saw them; with it, pictures are compared as they
    were; ``sample_mean`` is the mean to add to the samples where the attack had to guess it. Pictures are clipped to
    ``value_range``, or with ``stretch`` stretched over it, as the paper does (which flatters faint ones). ``vote=0.9``
    averages all samples whose correlation is within 0.9 of the best one's, as the paper does; by default the best one
    stands alone.
    """
    samples, truth = _rows(samples, None, "samples"), _rows(training_inputs, samples.shape[1], "training inputs")
    others = None if unseen is None else _rows(unseen, truth.shape[1], "unseen inputs")
    shift = torch.zeros(truth.shape[1], dtype=torch.float64) if mean is None else mean.detach().double().reshape(-1)
    shape = picture_shape(truth.shape[1]) if shape is None else shape
    truth, others = truth + shift, None if others is None else others + shift
    pictures = samples + (shift if sample_mean is None else sample_mean.detach().double().reshape(-1))
    if shape is not None:
        pictures = stretched(pictures, value_range) if stretch else _clipped(pictures, mean, value_range)
    spread = truth.std(dim=0).clamp_min(1e-12) if len(truth) > 1 else torch.ones(truth.shape[1], dtype=torch.float64)
    view = _View(shape, spread, vote, window, float(value_range[1]) - float(value_range[0]))
    scores, rebuilt, table = _score(pictures, truth, view)
    control = None if others is None else _score(pictures, others, view)[0]
    limit, rate = _threshold(threshold, control)
    worth = table + 3 * (table > limit)  # as many pairs above the threshold as can be, then as good ones
    chosen, target = (torch.as_tensor(index) for index in linear_sum_assignment(-worth.numpy()))
    pair_scores = table[chosen, target]
    good = pair_scores > limit
    errors = (pictures[chosen] - truth[target])[good if bool(good.any()) else slice(None)] / spread
    return Match(
        pairs=torch.stack([chosen, target], dim=1), pair_correlation=pair_scores,
        correlation=scores.correlation, ssim=scores.ssim, nearest=scores.nearest, control=control,
        threshold=limit, false_positive_rate=rate, p_value=_p_value(scores, control),
        column_error=errors.square().mean(dim=0).sqrt() if len(errors) else torch.full_like(spread, math.nan),
        window=window, rebuilt=rebuilt, truth=truth, shape=shape, reconstructions=len(samples),
    )  # fmt: skip


@dataclass(frozen=True)
class _View:
    """How inputs are compared: as pictures of ``shape``, or as rows of a table in units of ``spread``."""

    shape: tuple[int, ...] | None
    spread: Tensor
    vote: float | None
    window: int
    span: float


def _score(pictures: Tensor, truth: Tensor, view: _View) -> tuple[Scores, Tensor, Tensor]:
    """Scores of each true input, its reconstruction, and the table of all scores [m, n]."""
    if len(pictures) == 0:
        nothing = torch.zeros(len(truth), dtype=torch.float64)
        lost = torch.full((len(truth),), -1, dtype=torch.long)
        empty = Scores(nothing, nothing if view.shape else None, lost)
        return empty, torch.zeros_like(truth), truth.new_zeros(0, len(truth))
    table = correlation(pictures, truth) if view.shape is not None else closeness(pictures, truth, view.spread)
    best, nearest = table.max(dim=0)
    rebuilt = pictures[nearest]
    if view.vote is not None:
        ballots = ((table >= view.vote * best) & (table > 0)).double()
        ballots[nearest, torch.arange(len(truth))] = 1.0
        rebuilt = (ballots.T @ pictures) / ballots.sum(dim=0)[:, None]
        if view.shape is not None:
            best = (_standard(rebuilt) * _standard(truth)).sum(dim=1)
    index = None
    if view.shape is not None and min(view.shape[-2:]) >= view.window:
        index = ssim(rebuilt, truth, view.shape, window=view.window, span=view.span)
    return Scores(best, index, nearest), rebuilt, table


def _threshold(given: float | None, control: Scores | None) -> tuple[float, float | None]:
    """The threshold, and the share of unseen inputs above it."""
    if control is None:
        return (0.9 if given is None else given), None
    if given is None:
        given = float(torch.quantile(control.correlation, 1 - FALSE_POSITIVES, interpolation="higher"))
    return given, float((control.correlation > given).double().mean())


def _p_value(scores: Scores, control: Scores | None) -> float | None:
    if control is None:
        return None
    return float(mannwhitneyu(scores.correlation.numpy(), control.correlation.numpy(), alternative="greater").pvalue)


def stretched(X: Tensor, value_range: tuple[float, float] = (0.0, 1.0)) -> Tensor:
    """Each row stretched so that its smallest and largest value become the ends of the range."""
    low, high = X.amin(dim=1, keepdim=True), X.amax(dim=1, keepdim=True)
    return value_range[0] + (X - low) / (high - low).clamp_min(1e-30) * (value_range[1] - value_range[0])


def _clipped(X: Tensor, mean: Tensor | None, value_range: tuple[float, float]) -> Tensor:
    return X if mean is None else X.clamp(value_range[0], value_range[1])  # centred values have no range of their own


def picture_shape(d: int) -> tuple[int, ...] | None:
    """(channels, height, width) if d numbers look like a square picture of at least 8 x 8, else None."""
    for channels in (1, 3):
        side = math.isqrt(d // channels)
        if side >= 8 and channels * side * side == d:
            return (channels, side, side)
    return None


def _rows(X: Tensor, width: int | None, what: str) -> Tensor:
    X = torch.as_tensor(X).detach()
    if width is not None and len(X) == 0:
        raise EmptyBatch(f"There are no {what} to compare with.")
    rows = X.reshape(len(X), -1).double() if len(X) else X.double()
    if width is not None and rows.shape[1] != width:
        raise WrongShape(f"The {what} have {rows.shape[1]} columns and the reconstructions {width}.")
    if not bool(torch.isfinite(rows).all()):
        raise NonFiniteInput(f"The {what} hold NaN or infinity; every entry must be finite.")
    return rows
