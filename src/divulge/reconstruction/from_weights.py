"""Training inputs from the weights alone (Haim et al. 2022), by our own method and by the printed one.

The default works inside the first layer's row space (``row_space.py``), reads the number of inputs from its spectrum,
solves the stationarity equation from many starts at once (``restarts.py``, ``kkt_solver.py``) and keeps the samples
that restarts agree on (``agreement.py``). ``method="paper"`` is the paper's scheme as printed (``printed/kkt.py``).
``method="kinks"`` is for two inputs, where training points are intersections of kinks (``plane.py``). With ``start``
the inputs come from the difference of two checkpoints (``known_start/``).
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from divulge.core.errors import InvalidInput, WrongShape
from divulge.core.images import picture_shape
from divulge.core.validation import checked_choice, checked_seed, checked_whole
from divulge.models.weight_matrices import Network, read
from divulge.reconstruction.agreement import AgreedSamples
from divulge.reconstruction.denoising import denoise
from divulge.reconstruction.ica import FEW_IMAGES, directions_per_restart, separable
from divulge.reconstruction.kkt_solver import FEW_SEPARATED, SEPARATED, SEVERAL_CLASSES, Candidates, Settings
from divulge.reconstruction.known_start import attack as known_start
from divulge.reconstruction.known_start.attack import Start
from divulge.reconstruction.plane import meeting_points
from divulge.reconstruction.printed.kkt import UNEXPLAINED, PaperSettings, reconstruct
from divulge.reconstruction.restarts import RestartPlan, run_batches
from divulge.reconstruction.result import Reconstruction
from divulge.reconstruction.row_space import HIDDEN, RowSpace, row_space
from divulge.reconstruction.value_bounds import Bound, checked_bounds, infer_mean

Method = Literal["row-space", "paper", "kinks"]
RANDOM_STARTS = 2
"""Layers up to which starts are random: there they found more of 20 digits than separated ones (and fewer of 50)."""
FEWEST_RESTARTS, MOST_RESTARTS, SEPARATED_RESTARTS = 4, 16, 8
"""Restarts of one batch: random starts for one output and at most for several, and separated images. Several outputs
leave more solutions: of 20 digits in ten classes 4 restarts found 12.3, 16 found 15.3 (three sets)."""
CANDIDATES = 4000
"""Samples of all restarts together up to which there are more than the fewest restarts; all pairs are compared."""


def from_weights(
    model: nn.Module,
    *,
    start: Start | None = None,
    seed: int = 0,
    n: int | None = None,
    mean: Tensor | None = None,
    value_range: tuple[Bound, Bound] | None = (0.0, 1.0),
    shape: tuple[int, ...] | None = None,
    restarts: int | None = None,
    batches: int = 1,
    seconds: float | None = None,
    samples: int | None = None,
    settings: Settings | PaperSettings | None = None,
    at_least: int | None = None,
    alike: float | None = None,
    method: Method = "row-space",
    checkpoint: str | Path | None = None,
    workers: int | str | None = None,
    device: str | torch.device = "cpu",
) -> Reconstruction:
    """Reconstruct training inputs of ``model`` from its weights.

    Parameters
    ----------
    model : nn.Module
        A ReLU network of linear layers with at least one hidden layer. ``method="paper"`` takes any ReLU module.
    start : nn.Module, str, Path or Recipe, optional
        The weights from which the model was trained: a module, a file of one, or the recipe whose seed gives them.
        With it the inputs come from the difference of the two; ``n``, ``mean``, ``value_range``, ``shape``, ``seed``
        and ``seconds`` apply, and any module with a dense layer is taken.
    seed : int, default 0
        Fixes the run.
    n : int, optional
        The number of training inputs. By default it is read from the first layer's spectrum.
    mean : Tensor, optional
        What was subtracted from the inputs before training, [d]. By default it is inferred from ``value_range``.
    value_range : (low, high) or None, default (0.0, 1.0)
        The range of the values before the mean was subtracted, as numbers or as tensors [d]. None uses no range.
    shape : tuple of int, optional
        (height, width) or (channels, height, width) of images. By default square images are recognised.
    restarts : int, optional
        Restarts of one batch, solved together. The default is 4, up to 16 where a network of one hidden layer has
        several outputs, or 8 short ones from separated images.
    batches : int, default 1
        How many batches to run. Later ones start from the samples that earlier ones agree on.
    seconds : float, optional
        Run as many batches as fit in this time instead.
    samples : int, optional
        Unknown inputs of each restart. The default is three for each training input, two for separated images.
    settings : Settings or PaperSettings, optional
        The numbers of the search.
    at_least : int, optional
        How many restarts must find a sample. The default is two, or a quarter of many.
    alike : float, optional
        How similar two samples must be to count as one, up to 1. The default is 0.95, or 0.9995 below 16 inputs.
    method : {"row-space", "paper", "kinks"}, default "row-space"
        "paper" is the scheme of Haim et al. 2022 as printed. "kinks" is for models of two inputs.
    checkpoint : str or Path, optional
        A folder that keeps finished batches. A run that stopped continues from it.
    workers : int or str, optional
        Processes, or the address of a Dask cluster, over which batches are spread.
    device : str or torch.device, default "cpu"
        Where the solver computes.

    Returns
    -------
    Reconstruction
        The samples, most trusted first. It has no samples where nothing was found; ``reason`` says why.

    Raises
    ------
    AttackFailed
        The first layer's spectrum shows no number of inputs, and ``n`` was not given.
    UnsupportedModel
        The model is not a plain ReLU network; the sentence names the layer.
    InvalidInput
        A parameter makes no sense for this model.

    See Also
    --------
    match : judge samples by the training inputs and by unseen inputs.
    diagnose : how close a model is to a KKT point.

    Examples
    --------
    >>> import torch
    >>> from divulge import reconstruction
    >>> from divulge.training import margin
    >>> X = torch.randn(4, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> model = margin.to_margin(margin.network([20, 50, 1]), X, torch.tensor([0, 1, 0, 1]), loss=1e-3).model
    >>> quick = reconstruction.Settings(steps=10)
    >>> found = reconstruction.from_weights(model, value_range=None, settings=quick)
    >>> found.rank
    4
    """
    seed = checked_seed(seed)
    if start is not None:
        _check_alone(method, restarts, samples, settings, at_least, alike)
        return known_start.reconstruct(model, start, seed=seed, n=n, mean=mean, value_range=value_range, shape=shape,
                                       seconds=seconds)  # fmt: skip
    if method == "paper":
        if isinstance(settings, Settings):
            raise InvalidInput('method="paper" takes PaperSettings; Settings are those of the row-space method.')
        return reconstruct(
            model, seed=seed, n=n, mean=mean, shape=shape, samples=samples, seconds=seconds, settings=settings,
            checkpoint=checkpoint, device=device,
        )  # fmt: skip
    if method == "kinks":
        return meeting_points(model, seed=seed)
    checked_choice("method", method, ("row-space", "paper", "kinks"))
    if isinstance(settings, PaperSettings):
        raise InvalidInput('PaperSettings are for method="paper"; the row-space method takes Settings.')
    started = time.perf_counter()
    for name, count in (("n", n), ("restarts", restarts), ("batches", batches), ("at_least", at_least)):
        if count is not None:
            checked_whole(name, count, at_least=1)
    network = read(model)
    shape = _checked_shape(shape, network.input_dim)
    plan = _plan(network, shape, n, mean, value_range, restarts, samples, settings, str(device))
    found = run_batches(plan, started=started, seed=seed, batches=batches, seconds=seconds, checkpoint=checkpoint,
                        workers=workers)  # fmt: skip
    agreed = plan.pool(found, min_votes=at_least, likeness=alike)
    if float(found.residual.min()) > UNEXPLAINED or plan.space.signal_rank == 0 or plan.space.contrast < HIDDEN:
        agreed = agreed.first(0)
    return _result(plan, found, agreed, seed=seed, seconds=time.perf_counter() - started, shape=shape,
                   value_range=value_range)  # fmt: skip


def _check_alone(method: str, *given: object) -> None:
    """Options of the attack on the weights alone have no meaning with a known start."""
    if method != "row-space" or any(option is not None for option in given):
        raise InvalidInput(
            "With a known start there are no restarts to set: leave out method, restarts, samples, settings, at_least "
            "and alike."
        )


def _plan(
    network: Network, shape: tuple[int, ...] | None, n: int | None, mean: Tensor | None,
    value_range: tuple[Bound, Bound] | None, restarts: int | None, samples: int | None, settings: Settings | None,
    device: str,
) -> RestartPlan:  # fmt: skip
    """The row space, the starts and the settings of a run."""
    space = row_space(network, n=n, whole=samples is not None, shape=shape)
    image_shape = shape if network.depth > RANDOM_STARTS and separable(space, shape) else None
    if image_shape is None:
        several = network.output_dim > 1
        most = 3 * (n or space.rank)
        affordable = min(MOST_RESTARTS, CANDIDATES // max(most, 1)) if several else FEWEST_RESTARTS
        restarts = restarts or max(FEWEST_RESTARTS, affordable)
        usual = SEVERAL_CLASSES if several else Settings()
    else:
        restarts = restarts or SEPARATED_RESTARTS
        most = 2 * max(directions_per_restart(space, image_shape, restarts))
        usual = SEPARATED if space.rank >= FEW_IMAGES else FEW_SEPARATED
    return RestartPlan(
        network, space, checked_bounds(network.input_dim, mean, value_range), settings or usual,
        samples or max(most, 4), restarts, device, image_shape,
    )  # fmt: skip


def _checked_shape(shape: tuple[int, ...] | None, d: int) -> tuple[int, ...] | None:
    if shape is None:
        return picture_shape(d)
    if len(shape) not in (2, 3) or math.prod(shape) != d:
        raise WrongShape(
            f"shape is (height, width) or (channels, height, width) of the model's {d} inputs, not {shape}."
        )
    return shape


def _result(
    plan: RestartPlan, found: Candidates, agreed: AgreedSamples, *, seed: int, seconds: float,
    shape: tuple[int, ...] | None, value_range: tuple[Bound, Bound] | None,
) -> Reconstruction:  # fmt: skip
    given = None if plan.bounds is None else plan.bounds.mean
    fitted = None
    if found.mean is not None and plan.bounds is not None:
        fitted = infer_mean(agreed.samples, plan.bounds.low, plan.bounds.high, found.mean.double().mean(dim=0))
    bounds = None if value_range is None else tuple(float(torch.as_tensor(b).double().mean()) for b in value_range)
    return Reconstruction(
        samples=_denoised(plan.space, agreed.samples, shape), labels=agreed.labels,
        multipliers=agreed.multipliers, confidence=agreed.confidence,
        residual=float(found.residual.min()), rank=plan.space.rank, method="row-space", seed=seed, seconds=seconds,
        restarts=len(found.inputs), mean=given if given is not None else fitted, mean_known=given is not None,
        value_range=bounds,  # type: ignore[arg-type]
        shape=shape, votes=agreed.votes, reason=_reason(plan, found, agreed),
        notes=_notes(plan, found, mean_inferred=given is None and fitted is not None),
        everything=_denoised(plan.space, found.inputs.flatten(0, 1), shape),
    )  # fmt: skip


def _reason(plan: RestartPlan, found: Candidates, agreed: AgreedSamples) -> str:
    """Why there are no samples; empty where there are some."""
    residual, steps = float(found.residual.min()), int(found.steps[0])
    if residual > UNEXPLAINED and steps < plan.settings.steps:
        return f"The time allowed only {steps} of {plan.settings.steps} steps; give more."
    if residual > UNEXPLAINED:
        return (
            f"The best of {len(found.inputs)} restarts leaves {residual:.0%} of the first layer unexplained, as with "
            "weights that were never trained; no sample of theirs means anything."
        )
    if plan.space.signal_rank == 0:
        return "No direction of the first layer stands out from noise, as in weights that were never trained."
    if plan.space.contrast < HIDDEN:
        return (
            f"The strongest direction of the first layer is only {plan.space.contrast:.1f} times what its initial "
            "weights alone explain: they hide most of the inputs, and what restarts agree on is mostly noise, so that "
            "nothing is kept. With the initial weights known, give start."
        )
    if len(agreed.samples) == 0:
        return (
            f"No sample was found by more than one of {len(found.inputs)} restarts; the weights do not give inputs "
            "away in a form this attack can read."
        )
    return ""


def _notes(plan: RestartPlan, found: Candidates, *, mean_inferred: bool) -> tuple[str, ...]:
    notes = ["The mean was inferred from the range of values."] if mean_inferred else []
    steps, most = int(found.steps[0]), plan.settings.steps
    if len(found.inputs) == 1 < plan.restarts:
        notes.append("There was time for one restart only, so that no other confirms its samples.")
    if steps < most:
        notes.append(
            f"The time allowed {steps} of {most} steps in the first {int((found.steps == steps).sum())} restarts."
        )
    return tuple(notes)


def _denoised(space: RowSpace, samples: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """Images without the noise that the first layer's initial weights put into them."""
    return samples if shape is None else denoise(samples, shape, space.noise_in(samples.to(space.V)))
