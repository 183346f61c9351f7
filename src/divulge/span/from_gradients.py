"""The span from gradients (Jayaram 2020, Algorithm 1): every gradient of f(Ax) is a combination of the rows of A.

As printed (``method="paper"``) it takes the gradient of the first output at a fixed number of Gaussian points and
counts the singular values above 1e-5 of the largest. By default we depart from it where it costs queries or trust:

- every output's gradient counts, so a network with ten outputs gives up to ten directions for one query;
- half of the points are earlier ones moved inside what looks like the null space: Gaussian all the same, and once
  nothing is missing their outputs must not change, which checks the whole null space and not only local gradients;
- the run stops when ``patience`` further gradients add nothing and those moves changed nothing;
- the threshold is the oracle's own precision, and where answers are noisier than that the rank is read off the gap in
  the singular values and accepted only if moves in the null space it leaves are ignored.

Without gradients the same runs on differences of values (Lemma 3.2); there the moves cost two rows and a gradient
about ``d``, so they are tried first. ``adaptive=False`` fixes every point before the first answer (``query_points``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from divulge.errors import AttackFailed, DivulgeError, InvalidInput
from divulge.oracles.base import Oracle, at_the_door
from divulge.span.differences import check_directions, stencil_rows, uncalibrated
from divulge.span.moves import gaussian
from divulge.span.recovery import Method, Recovery
from divulge.span.result import Span

Source = Literal["auto", "gradients", "values"]


def from_gradients(
    oracle: Oracle,
    *,
    method: Method = "default",
    source: Source = "auto",
    adaptive: bool = True,
    samples: int | None = None,
    rank: int | None = None,
    outputs: Literal["all"] | int | None = None,
    patience: int = 4,
    scale: float = 1.0,
    seed: int = 0,
) -> Span:
    """Recover the span of a network's first linear map from gradients, or from values where that is all there is.

    ``samples`` is how many gradients are taken (at most, when adaptive). ``rank`` stops the run once that many
    directions are found. ``outputs`` picks one output, or "all". Points are Gaussian with standard deviation ``scale``.
    """
    seed = at_the_door(oracle, seed)
    source = _check(oracle, method, source, samples, rank, outputs, patience, scale)
    paper = method == "paper"
    if paper and samples is None:
        if rank is None:
            raise InvalidInput(
                "Algorithm 1 as printed takes the latent dimension as its input; give rank=k, or samples= for how many "
                "gradients to take."
            )
        samples = math.ceil(rank * max(1.0, math.log(rank)))
    chosen = outputs if isinstance(outputs, int) else 0 if paper and outputs is None else None
    run = Recovery(oracle, source=source, output=chosen, patience=patience, scale=scale, seed=seed, method=method)
    try:
        if paper or not adaptive:
            run.fixed(samples if samples is not None else default_samples(oracle.input_dim))
        elif source == "gradients":
            run.adaptive_gradients(samples, rank)
        else:
            run.adaptive_values(samples, rank)
        result = run.finish(rank, may_ask=adaptive and not paper)
    except DivulgeError as error:
        if error.partial is None:
            error.partial = run.finish(rank, may_ask=False, died=str(error))
        raise
    if result.rank == 0:
        raise AttackFailed(
            f"The gradient was zero, to the oracle's precision, at all {len(result.curve)} points asked: the network "
            "is constant there, so there is no span to recover. Check that it is the right model, or widen the points "
            "with scale=.",
            partial=result,
        )
    return result


def default_samples(dim: int) -> int:
    """How many gradients a non-adaptive run takes: enough for any rank, since a span has at most ``dim`` directions."""
    return dim + 8


def query_points(
    dim: int,
    samples: int,
    *,
    source: Literal["gradients", "values"] = "gradients",
    scale: float = 1.0,
    seed: int = 0,
    eps: float = torch.finfo(torch.float64).eps,
) -> Tensor:
    """All rows that a non-adaptive run asks, in order, known before the first answer: the points, or their stencils."""
    return torch.cat(list(_blocks(dim, samples, source, scale, seed, eps)))


def write_query_points(
    path: str | Path,
    dim: int,
    samples: int,
    *,
    source: Literal["gradients", "values"] = "gradients",
    scale: float = 1.0,
    seed: int = 0,
    eps: float = torch.finfo(torch.float64).eps,
) -> None:
    """The same rows to a .npy file, block by block: those of a run on values may not fit in memory."""
    rows = samples * (1 if source == "gradients" else uncalibrated(eps, scale).rows_per_gradient(dim))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(rows, dim))
    top = 0
    for block in _blocks(dim, samples, source, scale, seed, eps):
        file[top : top + len(block)] = block.numpy()
        top += len(block)
    file.flush()


def _blocks(dim: int, samples: int, source: str, scale: float, seed: int, eps: float) -> Iterator[Tensor]:
    points = gaussian(samples, dim, scale, torch.Generator().manual_seed(seed))
    if source == "gradients":
        yield points
        return
    checks, stencil = check_directions(dim, seed + 3), uncalibrated(eps, scale)
    for point in points:
        yield stencil_rows(point, stencil, checks)


def _check(
    oracle: Oracle,
    method: str,
    source: str,
    samples: int | None,
    rank: int | None,
    outputs: object,
    patience: int,
    scale: float,
) -> Literal["gradients", "values"]:
    """Refuse what makes no sense, and settle where gradients come from."""
    if method not in ("default", "paper"):
        raise InvalidInput(f'method is "default" or "paper", not {method!r}.')
    if source not in ("auto", "gradients", "values"):
        raise InvalidInput(f'source is "auto", "gradients" or "values", not {source!r}.')
    if samples is not None and samples < 1:
        raise InvalidInput(f"samples is how many gradients to take, at least 1; got {samples}.")
    if rank is not None and not 1 <= rank <= oracle.input_dim:
        raise InvalidInput(
            f"A span in {oracle.input_dim} inputs has rank 1 to {oracle.input_dim}; rank={rank} cannot be."
        )
    if isinstance(outputs, int) and not 0 <= outputs < oracle.output_dim:
        raise InvalidInput(f"The model has outputs 0 to {oracle.output_dim - 1}; there is no output {outputs}.")
    if not (outputs is None or outputs == "all" or isinstance(outputs, int)):
        raise InvalidInput(f'outputs is "all" or the number of one output, not {outputs!r}.')
    if patience < 2:
        raise InvalidInput(f"patience is how many idle gradients end the run, at least 2; got {patience}.")
    if not (scale > 0 and math.isfinite(scale)):
        raise InvalidInput(f"scale is the spread of the query points, a positive number; got {scale}.")
    if source == "auto":
        return "gradients" if oracle.allows("gradient") else "values"
    return "gradients" if source == "gradients" else "values"
