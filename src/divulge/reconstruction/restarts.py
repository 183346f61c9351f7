"""Batches of restarts of the KKT solver: one after another, over workers, within a time limit, from a checkpoint."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from divulge.core.errors import InvalidInput
from divulge.core.progress import report
from divulge.core.storage import digest
from divulge.core.workers import checkpointed, run
from divulge.models.weight_matrices import Network
from divulge.reconstruction.agreement import AgreedSamples, pool
from divulge.reconstruction.ica import directions_per_restart, separate, uses_likelihood
from divulge.reconstruction.kkt_solver import Candidates, Settings, StationarityProblem
from divulge.reconstruction.row_space import RowSpace
from divulge.reconstruction.value_bounds import ValueBounds

MOST_CANDIDATES = 12_000
"""Candidates that an open number of batches may collect. Pooling compares all pairs of them."""
SEARCH_SHARE = 0.95
"""Share of the time limit for restarts. The rest is for pooling."""
Batch = dict[str, Tensor | None]
Job = tuple[int, Tensor | None, float]
"""The seed of a batch, the samples that it starts from, and its time limit in seconds."""


@dataclass(frozen=True)
class RestartPlan:
    """Everything that a batch of restarts needs. A worker process can receive it."""

    network: Network
    space: RowSpace
    bounds: ValueBounds | None
    settings: Settings
    samples: int
    restarts: int
    device: str
    image_shape: tuple[int, ...] | None
    """The shape of the inputs where they are images that ICA can separate, else None."""

    def pool(self, found: Candidates, *, min_votes: int | None = None, likeness: float | None = None) -> AgreedSamples:
        """The samples that restarts agree on."""
        return pool(found, min_votes=min_votes, likeness=likeness, separated=self.image_shape is not None)


def run_batches(
    plan: RestartPlan, *, started: float, seed: int, batches: int, seconds: float | None,
    checkpoint: str | Path | None, workers: int | str | None,
) -> Candidates:  # fmt: skip
    """Run all batches, or as many as the time allows (at least a short one), in rounds of 1, 1, 2, 4, ...

    The first round starts at random. Each later round starts from the samples that earlier rounds agree on, so that it
    has only the rest to find. Rounds double, so most batches can run in parallel. A batch that the time cuts short
    takes fewer steps. A batch with less than half of its usual time left is not started.
    """
    if seconds is not None and seconds <= 0:
        raise InvalidInput(f"seconds is a time above zero; got {seconds}.")
    done, usual, left = list[Batch](), 0.0, math.inf
    most = max(1, MOST_CANDIDATES // (plan.restarts * plan.samples))
    while len(done) < batches or (seconds is not None and len(done) < most):
        if seconds is not None:
            left = SEARCH_SHARE * seconds - (time.perf_counter() - started)
            if done and left < usual / 2:
                break
        before = 1 << (len(done).bit_length() - 1) if done else 0  # batches of the rounds before this one
        known = plan.pool(_joined(done[:before])).samples if before else None
        count = 1 if seconds is not None else min(max(before, 1), batches - len(done))
        round_started = time.perf_counter()
        jobs = [(1000 * seed + len(done) + number, known, left) for number in range(count)]
        done += _compute(plan, jobs, checkpoint, workers if count > 1 else None)
        usual = max(usual, time.perf_counter() - round_started)
        if seconds is not None:
            agreed = len(plan.pool(_joined(done)).samples)
            report("restarts", time.perf_counter() - started, seconds, batches=len(done), agreed=agreed)
    return _joined(done)


def _compute(
    plan: RestartPlan, jobs: list[Job], checkpoint: str | Path | None, workers: int | str | None
) -> list[Batch]:
    if checkpoint is None:
        return run(partial(_batch, plan), jobs, workers=workers, stage="batches of restarts")
    settings = {"weights": _fingerprint(plan), "settings": repr(plan.settings), "restarts": plan.restarts,
                "samples": plan.samples}  # fmt: skip
    return checkpointed(partial(_batch, plan), jobs, checkpoint, settings=settings, key=lambda job: job[0],
                        workers=workers, stage="batches of restarts")  # fmt: skip


def _fingerprint(plan: RestartPlan) -> str:
    bounds = [] if plan.bounds is None else [plan.bounds.low, plan.bounds.high, plan.bounds.mean]
    tensors = [*plan.network.weights, plan.space.V, *bounds]
    return digest(*(None if tensor is None else torch.as_tensor(tensor).double() for tensor in tensors))


def _joined(done: list[Batch]) -> Candidates:
    columns = {name: [batch[name] for batch in done] for name in done[0]}
    return Candidates(**{name: None if parts[0] is None else torch.cat(parts) for name, parts in columns.items()})  # type: ignore[arg-type]


def _batch(plan: RestartPlan, job: Job) -> Batch:
    """One batch of restarts. It starts from known samples, then images separated by ICA, then random samples."""
    batch_started = time.perf_counter()
    seed, known, seconds = job
    generator = torch.Generator().manual_seed(seed)
    space = plan.space
    starts = torch.randn(plan.restarts, plan.samples, space.basis.shape[1], generator=generator, dtype=torch.float64)
    starts *= plan.settings.spread / math.sqrt(space.rank)
    known_starts = space.V.new_zeros(0, space.basis.shape[1])
    if known is not None:
        known_starts = space.coordinates_of(known[: plan.samples // 2])
        starts[:, : len(known_starts)] = known_starts
    if plan.image_shape is not None:
        starts = _with_separated(plan, starts, len(known_starts), seed, batch_started + seconds / 3)
    network = plan.network.to(torch.float32, plan.device)
    problem = StationarityProblem(network, space, plan.bounds, plan.settings, plan.image_shape)

    def watch(step: int, steps: int, residual: Tensor) -> None:
        if step % 20 == 0 or step == steps:
            report("reconstructing", step, steps, residual=f"{float(residual.min()) ** 0.5:.3f}")

    left = seconds - (time.perf_counter() - batch_started)
    found = problem.solve(starts.to(device=plan.device, dtype=torch.float32), watch, seconds=left)
    return {name: None if value is None else value.cpu() for name, value in vars(found).items()}


def _with_separated(plan: RestartPlan, starts: Tensor, kept: int, seed: int, end: float) -> Tensor:
    """The starts with separated images after the first ``kept`` samples. Restarts share the time until ``end``."""
    assert plan.image_shape is not None
    strongest = directions_per_restart(plan.space, plan.image_shape, len(starts))
    width = 1.0 if plan.bounds is None else plan.bounds.width
    for number in range(len(starts)):
        report("separating images", number, len(starts))
        now = time.perf_counter()
        until = now + (end - now) / (len(starts) - number)
        separated = separate(
            plan.space, plan.image_shape, width, seed=seed * len(starts) + number, strongest=strongest[number],
            likelihood=uses_likelihood(plan.space, number), end=until,
        )  # fmt: skip
        starts[number, kept : kept + len(separated)] = separated[: starts.shape[1] - kept]
    return starts
