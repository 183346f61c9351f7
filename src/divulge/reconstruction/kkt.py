"""Training inputs out of the weights alone (Haim et al. 2022), by our own recipe and by the printed one.

The default works inside the first layer's row space, reads the number of inputs from its spectrum, runs many restarts
as one tensor program and keeps the samples that restarts agree on. ``method="paper"`` is the paper's scheme as printed;
``method="kinks"`` is for two inputs, where training points can be seen without solving anything.
"""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from divulge.errors import InvalidInput, NonFiniteInput, WrongShape
from divulge.progress import report
from divulge.reconstruction import matching
from divulge.reconstruction.agreement import Agreed, pool
from divulge.reconstruction.denoising import cleaned
from divulge.reconstruction.kinks import meeting_points
from divulge.reconstruction.network import Network, read
from divulge.reconstruction.paper import PaperSettings, reconstruct
from divulge.reconstruction.result import Reconstruction
from divulge.reconstruction.separation import FEW, by_likelihood, directions, separable, separated
from divulge.reconstruction.stationarity import FEW_SEPARATED, SEPARATED, Candidates, Prior, Problem, Settings
from divulge.reconstruction.subspace import RowSpace, row_space
from divulge.whole import checked_seed

Method = Literal["row-space", "paper", "kinks"]
Bound = float | Tensor
UNEXPLAINED = 0.9
"""A residual above this is what random weights leave too."""
DIRECT = 2
"""Layers up to which starts are random: there they found more of 20 digits than separated ones (and fewer of 50)."""
MOST = 12_000
"""Candidates that batches without a number may gather: pooling compares all pairs of them."""
Batch = dict[str, Tensor | None]
Job = tuple[int, Tensor | None, float]
"""The seed of a batch, the samples that it starts from, and the seconds that it may take."""
READY = 0.95
"""Share of the time after which restarts end, so that what they found can be pooled within it."""


def from_weights(
    model: nn.Module,
    *,
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
    """Training inputs of ``model``, read from its weights.

    ``n`` is the number of training inputs, if known; otherwise the first layer's spectrum tells. ``mean`` is what was
    subtracted from the inputs before training, and ``value_range`` the range of the values before that; a mean that
    is not given is inferred from the range, and ``value_range=None`` does without either.

    ``restarts`` (four, or eight short ones from separated pictures) run together as one tensor program, ``batches`` of
    them in all, or as many as fit in ``seconds``; each follows ``samples`` unknown inputs (by default three for each
    training input, two for pictures). Above one hidden layer pictures start as separation finds them; other inputs
    start at random, and later batches from what was agreed on before. Samples that ``at_least`` restarts find (two, or
    a quarter of many), alike to within ``alike``, are kept. ``checkpoint`` names a folder where finished batches are
    kept and from which a run that died goes on; ``workers`` spreads batches over processes or a Dask cluster.
    """
    seed = checked_seed(seed)
    if method == "paper":
        if isinstance(settings, Settings):
            raise InvalidInput('method="paper" takes PaperSettings; Settings are those of the row-space method.')
        return reconstruct(
            model, seed=seed, n=n, mean=mean, shape=shape, samples=samples, seconds=seconds, settings=settings,
            checkpoint=checkpoint, device=device,
        )  # fmt: skip
    if method == "kinks":
        return meeting_points(model, seed=seed)
    if method != "row-space":
        raise InvalidInput(f'method is "row-space", "paper" or "kinks", not {method!r}.')
    if isinstance(settings, PaperSettings):
        raise InvalidInput('PaperSettings are for method="paper"; the row-space method takes Settings.')
    started = time.perf_counter()
    for name, count in (("restarts", restarts), ("batches", batches), ("at_least", at_least)):
        if count is not None and count < 1:
            raise InvalidInput(f"{name} is a whole number from 1 on; got {count}.")
    network = read(model)
    shape = _checked_shape(shape, network.input_dim)
    space = row_space(network, n=_checked_count(n), whole=samples is not None, shape=shape)
    picture = shape if network.depth > DIRECT and separable(space, shape) else None
    restarts = restarts or (4 if picture is None else 8)
    several = 3 * (n or space.rank) if picture is None else 2 * max(directions(space, picture, restarts))
    attack = _Attack(
        network, space, _prior(network, mean, value_range), settings or _usual(space, picture),
        samples or max(several, 4), restarts, str(device), picture,
    )  # fmt: skip
    found = _run(attack, started=started, seed=seed, batches=batches, seconds=seconds, checkpoint=checkpoint,
                 workers=workers)  # fmt: skip
    agreed = attack.pool(found, at_least=at_least, alike=alike)
    if float(found.residual.min()) > UNEXPLAINED or space.standing == 0:
        agreed = agreed.first(0)
    return _result(attack, found, agreed, seed=seed, seconds=time.perf_counter() - started, shape=shape,
                   value_range=value_range)  # fmt: skip


def _usual(space: RowSpace, picture: tuple[int, ...] | None) -> Settings:
    """The settings for random starts, or for separated pictures."""
    if picture is None:
        return Settings()
    return SEPARATED if space.rank >= FEW else FEW_SEPARATED


@dataclass(frozen=True)
class _Attack:
    """Everything a batch of restarts needs, ready to be sent to a worker."""

    network: Network
    space: RowSpace
    prior: Prior | None
    settings: Settings
    samples: int
    restarts: int
    device: str
    picture: tuple[int, ...] | None
    """The shape of the inputs where they are pictures that can be separated."""

    def pool(self, found: Candidates, *, at_least: int | None = None, alike: float | None = None) -> Agreed:
        """What restarts agree on."""
        return pool(found, at_least=at_least, alike=alike, separated=self.picture is not None)


def _batch(attack: _Attack, job: Job) -> Batch:
    """One batch of restarts: samples that are known already, pictures as separation finds them, and random samples."""
    began = time.perf_counter()
    seed, known, seconds = job
    generator = torch.Generator().manual_seed(seed)
    space = attack.space
    starts = torch.randn(
        attack.restarts, attack.samples, space.basis.shape[1], generator=generator, dtype=torch.float64
    )
    starts *= attack.settings.spread / math.sqrt(space.rank)
    begun = space.V.new_zeros(0, space.basis.shape[1])
    if known is not None:
        begun = space.coordinates_of(known[: attack.samples // 2])
        starts[:, : len(begun)] = begun
    if attack.picture is not None:
        starts = _with_pictures(attack, starts, len(begun), seed, began + seconds / 3)
    network = attack.network.to(torch.float32, attack.device)
    problem = Problem(network, space, attack.prior, attack.settings, attack.picture)

    def watch(step: int, steps: int, residual: Tensor) -> None:
        if step % 20 == 0 or step == steps:
            report("reconstructing", step, steps, residual=f"{float(residual.min()) ** 0.5:.3f}")

    left = seconds - (time.perf_counter() - began)
    found = problem.solve(starts.to(device=attack.device, dtype=torch.float32), watch, seconds=left)
    return {name: None if value is None else value.cpu() for name, value in vars(found).items()}


def _with_pictures(attack: _Attack, starts: Tensor, kept: int, seed: int, end: float) -> Tensor:
    """The starts with separated pictures after the ``kept`` first samples; restarts share the time until ``end``."""
    assert attack.picture is not None
    strongest = directions(attack.space, attack.picture, len(starts))
    for number in range(len(starts)):
        report("separating pictures", number, len(starts))
        now = time.perf_counter()
        until = now + (end - now) / (len(starts) - number)
        own = separated(
            attack.space, attack.picture, _span(attack.prior), seed=seed * len(starts) + number,
            strongest=strongest[number], likelihood=by_likelihood(attack.space, number), end=until,
        )  # fmt: skip
        starts[number, kept : kept + len(own)] = own[: starts.shape[1] - kept]
    return starts


def _run(
    attack: _Attack, *, started: float, seed: int, batches: int, seconds: float | None, checkpoint: str | Path | None,
    workers: int | str | None,
) -> Candidates:  # fmt: skip
    """All batches, or as many as the time allows (at least a short one), in rounds of 1, 1, 2, 4, ...

    The first round starts at random. Every later one starts from what those before it agree on, so that it has only
    the rest to find; rounds double, so that most batches may still run side by side. A batch that the time cuts short
    takes fewer steps; one that would have less than half of its time is not begun.
    """
    if seconds is not None and seconds <= 0:
        raise InvalidInput(f"seconds is a time above zero; got {seconds}.")
    done, usual, left = list[Batch](), 0.0, math.inf
    enough = max(1, MOST // (attack.restarts * attack.samples))
    while len(done) < batches or (seconds is not None and len(done) < enough):
        if seconds is not None:
            left = READY * seconds - (time.perf_counter() - started)
            if done and left < usual / 2:
                break
        before = 1 << (len(done).bit_length() - 1) if done else 0  # batches of the rounds before this one
        known = attack.pool(_joined(done[:before])).samples if before else None
        count = 1 if seconds is not None else min(max(before, 1), batches - len(done))
        begun = time.perf_counter()
        jobs = [(1000 * seed + len(done) + number, known, left) for number in range(count)]
        done += _compute(attack, jobs, checkpoint, workers if count > 1 else None)
        usual = max(usual, time.perf_counter() - begun)
        if seconds is not None:
            agreed = len(attack.pool(_joined(done)).samples)
            report("restarts", time.perf_counter() - started, seconds, batches=len(done), agreed=agreed)
    return _joined(done)


def _compute(attack: _Attack, jobs: list[Job], checkpoint: str | Path | None, workers: int | str | None) -> list[Batch]:
    from divulge.workers import checkpointed, run

    if checkpoint is None:
        return run(partial(_batch, attack), jobs, workers=workers, stage="batches of restarts")
    settings = {"weights": _fingerprint(attack), "settings": repr(attack.settings), "restarts": attack.restarts,
                "samples": attack.samples}  # fmt: skip
    return checkpointed(partial(_batch, attack), jobs, checkpoint, settings=settings, key=lambda job: job[0],
                        workers=workers, stage="batches of restarts")  # fmt: skip


def _fingerprint(attack: _Attack) -> str:
    digest = hashlib.sha256()
    prior = [] if attack.prior is None else [attack.prior.low, attack.prior.high, attack.prior.mean]
    for tensor in [*attack.network.weights, attack.space.V, *prior]:
        digest.update(b"none" if tensor is None else torch.as_tensor(tensor).double().cpu().numpy().tobytes())
    return digest.hexdigest()


def _joined(done: list[Batch]) -> Candidates:
    columns = {name: [batch[name] for batch in done] for name in done[0]}
    return Candidates(**{name: None if parts[0] is None else torch.cat(parts) for name, parts in columns.items()})  # type: ignore[arg-type]


def _checked_count(n: int | None) -> int | None:
    if n is not None and n < 1:
        raise InvalidInput(f"n is the number of training inputs, from 1 on; got {n}.")
    return n


def _checked_shape(shape: tuple[int, ...] | None, d: int) -> tuple[int, ...] | None:
    if shape is None:
        return matching.picture_shape(d)
    if len(shape) not in (2, 3) or math.prod(shape) != d:
        raise WrongShape(
            f"shape is (height, width) or (channels, height, width) of the model's {d} inputs, not {shape}."
        )
    return shape


def _prior(network: Network, mean: Tensor | None, value_range: tuple[Bound, Bound] | None) -> Prior | None:
    if mean is not None:
        mean = torch.as_tensor(mean).detach().double().reshape(-1)
        if len(mean) != network.input_dim:
            raise WrongShape(f"The mean has {len(mean)} entries, and the model takes {network.input_dim}.")
        if not bool(torch.isfinite(mean).all()):
            raise NonFiniteInput("The mean holds NaN or infinity; every entry must be finite.")
    if value_range is None:
        return None
    low, high = (torch.as_tensor(bound, dtype=torch.float64) for bound in value_range)
    if not bool((low < high).all()):
        raise InvalidInput("value_range is (low, high) with low below high.")
    return Prior(low, high, mean)


def _span(prior: Prior | None) -> float:
    return 1.0 if prior is None else float((torch.as_tensor(prior.high) - torch.as_tensor(prior.low)).mean())


def infer_mean(samples: Tensor, low: Bound, high: Bound, fitted: Tensor) -> Tensor:
    """The mean that puts the samples inside [low, high]; where that leaves it open, what pictures are like decides.

    The spread of the samples (but for the outermost tenth, which errors reach) leaves an interval for each entry. Many
    values near its lower end speak for a dark background at ``low``, many near its upper end for a bright one at
    ``high``; otherwise the middle is taken.
    """
    if len(samples) < 2:
        return fitted
    bottom, top = torch.as_tensor(low).to(samples), torch.as_tensor(high).to(samples)
    smallest, largest = torch.quantile(samples, torch.tensor([0.1, 0.9]).to(samples), dim=0)
    varied = (largest - smallest) > 0.3 * (top - bottom)
    told: Tensor = (bottom - smallest + top - largest) / 2
    if bool(varied.any()):
        near = 0.1 * (top - bottom)
        dark = float(((samples - smallest).abs() < near)[:, varied].double().mean())
        bright = float(((largest - samples).abs() < near)[:, varied].double().mean())
        if dark > max(0.2, 1.5 * bright):
            told = bottom - smallest
        elif bright > max(0.2, 1.5 * dark):
            told = top - largest
    return told


def _result(
    attack: _Attack, found: Candidates, agreed: Agreed, *, seed: int, seconds: float, shape: tuple[int, ...] | None,
    value_range: tuple[Bound, Bound] | None,
) -> Reconstruction:  # fmt: skip
    given = None if attack.prior is None else attack.prior.mean
    fitted = None
    if found.mean is not None and attack.prior is not None:
        fitted = infer_mean(agreed.samples, attack.prior.low, attack.prior.high, found.mean.double().mean(dim=0))
    reason, residual = "", float(found.residual.min())
    if residual > UNEXPLAINED and int(found.steps[0]) < attack.settings.steps:
        reason = f"The time allowed only {int(found.steps[0])} of {attack.settings.steps} steps; give more."
    elif residual > UNEXPLAINED:
        reason = (
            f"The best of {len(found.inputs)} restarts leaves {residual:.0%} of the first layer unexplained, as with "
            "weights that were never trained; no sample of theirs means anything."
        )
    elif attack.space.standing == 0:
        reason = "No direction of the first layer stands out from noise, as in weights that were never trained."
    elif len(agreed.samples) == 0:
        reason = (
            f"No sample was found by more than one of {len(found.inputs)} restarts; the weights do not give inputs "
            "away in a form this attack can read."
        )
    notes = [] if given is not None or fitted is None else ["The mean was inferred from the range of values."]
    steps, most = int(found.steps[0]), attack.settings.steps
    if len(found.inputs) == 1 < attack.restarts:
        notes.append("There was time for one restart only, so that no other confirms its samples.")
    if steps < most:
        notes.append(
            f"The time allowed {steps} of {most} steps in the first {int((found.steps == steps).sum())} restarts."
        )
    bounds = None if value_range is None else tuple(float(torch.as_tensor(b).double().mean()) for b in value_range)
    return Reconstruction(
        samples=_cleaned(attack.space, agreed.samples, shape), labels=agreed.labels,
        multipliers=agreed.multipliers, confidence=agreed.confidence,
        residual=residual, rank=attack.space.rank, method="row-space", seed=seed, seconds=seconds,
        restarts=len(found.inputs), mean=given if given is not None else fitted, mean_known=given is not None,
        value_range=bounds,  # type: ignore[arg-type]
        shape=shape, votes=agreed.votes, reason=reason, notes=tuple(notes),
        everything=_cleaned(attack.space, found.inputs.flatten(0, 1), shape),
    )  # fmt: skip


def _cleaned(space: RowSpace, samples: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """Pictures without the noise that the first layer's initial weights put into them."""
    return samples if shape is None else cleaned(samples, shape, space.noise_in(samples.to(space.V)))
