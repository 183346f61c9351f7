"""Reconstructions compared with the training inputs, and with inputs that the model never saw.

The steps are those of Haim et al. 2022, appendix B.3: scaling, nearest neighbours by normalised cross-correlation,
voting, SSIM. We add a control. On digits, images that were never trained on reach an SSIM above 0.4. So every score is
computed for unseen inputs too, and a training input counts as found above the score that 1 % of unseen inputs pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from divulge.core.errors import EmptyBatch, InvalidInput, NonFiniteInput, WrongShape
from divulge.core.images import picture_shape, stretched
from divulge.reconstruction import figures

FALSE_POSITIVES = 0.01
"""The share of unseen inputs that may pass the threshold."""


def correlation(A: Tensor, B: Tensor) -> Tensor:
    """Pearson's correlation of every row of A with every row of B (normalised cross-correlation for images)."""
    table: Tensor = _standard(A) @ _standard(B).T
    return table


def _standard(A: Tensor) -> Tensor:
    centred: Tensor = A.double() - A.double().mean(dim=1, keepdim=True)
    scaled: Tensor = centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-30)
    return scaled


def closeness(A: Tensor, B: Tensor, spread: Tensor) -> Tensor:
    """1 - root mean squared difference in units of each column's spread, for every row of A and of B.

    It replaces correlation for tables and points, where few columns make correlation uninformative.
    """
    scaled_A, scaled_B = A.double() / spread, B.double() / spread
    return 1 - torch.cdist(scaled_A, scaled_B) / math.sqrt(A.shape[1])


def ssim(A: Tensor, B: Tensor, shape: tuple[int, ...], *, window: int = 3, span: float = 1.0) -> Tensor:
    """Structural similarity (Wang et al. 2004) of A[i] and B[i], [n].

    The window is Gaussian with sigma 1.5 over ``window`` pixels, and ``span`` is the width of the value range. The
    result is the mean over channels and over pixels whose window lies inside the image.
    """
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
    """For each input, the score of its best reconstruction."""

    correlation: Tensor
    """[n]; for tables 1 minus the distance in standard deviations."""
    ssim: Tensor | None
    """[n]; None where inputs are not images."""
    nearest: Tensor
    """The index of the best reconstruction of each input, [n]."""


@dataclass(frozen=True)
class Match:
    """Reconstructions judged by the training inputs. ``match`` returns it.

    Examples
    --------
    >>> import torch
    >>> from divulge.reconstruction import match
    >>> X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    >>> judged = match(X[:2], X)
    >>> judged.found(), judged.recall(), judged.precision()
    (2, 0.4, 1.0)
    """

    pairs: Tensor
    """The best one-to-one assignment [k, 2] of reconstructions to training inputs. It has as many pairs above the
    threshold as possible, and no reconstruction counts twice."""
    pair_correlation: Tensor
    """The score of each pair, [k]; for tables 1 minus the distance in standard deviations."""
    correlation: Tensor
    """The score of each training input's best reconstruction, [n]."""
    ssim: Tensor | None
    """The SSIM of each training input's best reconstruction, [n]; None where inputs are not images."""
    nearest: Tensor
    """The index of each training input's best reconstruction, [n]."""
    control: Scores | None
    """The same scores for the unseen inputs; None where none were given."""
    threshold: float
    """The correlation above which a training input counts as found."""
    false_positive_rate: float | None
    """The share of unseen inputs above the threshold; None where no unseen inputs were given."""
    p_value: float | None
    """One-sided Mann-Whitney test of the training inputs' scores against those of unseen inputs."""
    column_error: Tensor
    """Root mean squared error of each column over the pairs found, in standard deviations of the column, [d]."""
    window: int
    """Pixels of the SSIM window."""
    rebuilt: Tensor = field(repr=False)
    """Each training input's best (or voted) reconstruction, [n, d]."""
    truth: Tensor = field(repr=False)
    """The training inputs, [n, d]."""
    reconstructions: int
    """How many samples were judged."""
    shape: tuple[int, ...] | None = None
    """The shape of an image; None for tables."""

    def found(self, threshold: float | None = None) -> int:
        """How many pairs score above the threshold."""
        return int((self.pair_correlation > (self.threshold if threshold is None else threshold)).sum())

    def recall(self, threshold: float | None = None) -> float:
        """The share of the training set that was found."""
        return self.found(threshold) / len(self.correlation)

    def precision(self, threshold: float | None = None) -> float:
        """The share of reconstructions that are paired with a training input above the threshold."""
        return self.found(threshold) / max(self.reconstructions, 1)

    def excess(self, threshold: float) -> float | None:
        """One-sided Fisher test of whether training inputs pass ``threshold`` more often than unseen inputs."""
        if self.control is None:
            return None
        from scipy.stats import fisher_exact  # takes half a second to load

        seen, unseen = self.correlation > threshold, self.control.correlation > threshold
        table = [[int(seen.sum()), int((~seen).sum())], [int(unseen.sum()), int((~unseen).sum())]]
        return float(fisher_exact(table, alternative="greater").pvalue)

    def picture(self, path: str | Path, *, columns: int = 15, most: int = 45) -> Path:
        """Write the pair grid of Haim et al. 2022, figure 3: reconstructions above training inputs, best first."""
        return figures.pair_grid(self, path, columns=columns, most=most)

    def margin_plot(self, path: str | Path, outputs: Tensor) -> Path:
        """Write the plot of figure 4: each training input's score against the model's output for it."""
        return figures.margin_plot(self, outputs, path)

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
    """Judge reconstructed samples by the training inputs, with unseen inputs as the control.

    Parameters
    ----------
    samples : Tensor
        Reconstructions [m, d], as the model takes its inputs.
    training_inputs : Tensor
        [n, d], as the model takes its inputs.
    unseen : Tensor, optional
        Inputs [u, d] that the model never saw. They set the threshold and give the p-value.
    mean : Tensor, optional
        What was subtracted from the inputs before training, [d]. It is added before images are compared.
    sample_mean : Tensor, optional
        What to add to the samples where the attack inferred its own mean. The default is ``mean``.
    value_range : (float, float), default (0.0, 1.0)
        The range of the values of images.
    shape : tuple of int, optional
        (channels, height, width) of images. By default square images are recognised, and other inputs are tables.
    stretch : bool, default False
        Stretch each image over the value range, as the paper does, instead of clipping it. Weak images score higher so.
    vote : float, optional
        Average all samples whose correlation is at least this share of the best one's (the paper: 0.9). By default the
        best sample counts alone.
    window : int, default 3
        Pixels of the SSIM window.
    threshold : float, optional
        The score above which an input counts as found. The default is the score that 1 % of unseen inputs pass, or 0.9
        without unseen inputs.

    Returns
    -------
    Match
        Scores, pairs, threshold and p-value.

    Raises
    ------
    EmptyBatch
        There are no training inputs, or no unseen ones.
    WrongShape
        The inputs have another number of columns than the samples.
    NonFiniteInput
        An input holds NaN or infinity.

    Examples
    --------
    >>> import torch
    >>> from divulge.reconstruction import match
    >>> X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    >>> judged = match(X[:5] + 0.01, X[:10], unseen=X[10:])
    >>> judged.found(), judged.p_value < 0.05
    (5, True)
    """
    samples, truth = _rows(samples, None, "samples"), _rows(training_inputs, samples.shape[1], "training inputs")
    others = None if unseen is None else _rows(unseen, truth.shape[1], "unseen inputs")
    shift = torch.zeros(truth.shape[1], dtype=torch.float64) if mean is None else mean.detach().double().reshape(-1)
    shape = picture_shape(truth.shape[1]) if shape is None else shape
    truth, others = truth + shift, None if others is None else others + shift
    pictures = samples + (shift if sample_mean is None else sample_mean.detach().double().reshape(-1))
    if shape is not None:
        pictures = stretched(pictures, value_range) if stretch else _clipped(pictures, mean, value_range)
    spread = _spread(truth)
    comparison = _Comparison(shape, spread, vote, window, float(value_range[1]) - float(value_range[0]))
    scores, rebuilt, table = _score(pictures, truth, comparison)
    control = None if others is None else _score(pictures, others, comparison)[0]
    limit, rate = _threshold(threshold, control)
    worth = table + 3 * (table > limit)  # as many pairs above the threshold as possible, then the best scores
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


def _spread(truth: Tensor) -> Tensor:
    """The standard deviation of each column [d]; of a constant column the size of its value, or 1 if that is 0."""
    if len(truth) == 1:
        return torch.ones(truth.shape[1], dtype=torch.float64)
    size, spread = truth.mean(dim=0).abs(), truth.std(dim=0)
    return torch.where(spread <= 1e-12 * size.clamp_min(1e-300), torch.where(size > 0, size, 1.0), spread)


@dataclass(frozen=True)
class _Comparison:
    """How inputs are compared: as images of ``shape``, or as rows of a table in units of ``spread``."""

    shape: tuple[int, ...] | None
    spread: Tensor
    vote: float | None
    window: int
    span: float


def _score(pictures: Tensor, truth: Tensor, comparison: _Comparison) -> tuple[Scores, Tensor, Tensor]:
    """The scores of each true input, its best reconstruction, and the table of all scores [m, n]."""
    if len(pictures) == 0:
        nothing = torch.zeros(len(truth), dtype=torch.float64)
        lost = torch.full((len(truth),), -1, dtype=torch.long)
        empty = Scores(nothing, nothing if comparison.shape else None, lost)
        return empty, torch.zeros_like(truth), truth.new_zeros(0, len(truth))
    table = (
        correlation(pictures, truth) if comparison.shape is not None else closeness(pictures, truth, comparison.spread)
    )
    best, nearest = table.max(dim=0)
    rebuilt = pictures[nearest]
    if comparison.vote is not None:
        ballots = ((table >= comparison.vote * best) & (table > 0)).double()
        ballots[nearest, torch.arange(len(truth))] = 1.0
        rebuilt = (ballots.T @ pictures) / ballots.sum(dim=0)[:, None]
        if comparison.shape is not None:
            best = (_standard(rebuilt) * _standard(truth)).sum(dim=1)
    index = None
    if comparison.shape is not None and min(comparison.shape[-2:]) >= comparison.window:
        index = ssim(rebuilt, truth, comparison.shape, window=comparison.window, span=comparison.span)
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
    from scipy.stats import mannwhitneyu  # takes half a second to load

    return float(mannwhitneyu(scores.correlation.numpy(), control.correlation.numpy(), alternative="greater").pvalue)


def _clipped(X: Tensor, mean: Tensor | None, value_range: tuple[float, float]) -> Tensor:
    return X if mean is None else X.clamp(value_range[0], value_range[1])  # the range of centred values is unknown


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
