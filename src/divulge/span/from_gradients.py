"""The span from gradients (Jayaram 2020, Algorithm 1): every gradient of f(Ax) is a combination of the rows of A.

As printed (``method="paper"``) the algorithm takes the gradient of the first output at a fixed number of Gaussian
points. It counts the singular values above 1e-5 of the largest. The default departs from it:

- Every output's gradient counts, so a network with ten outputs gives up to ten directions for one query.
- Half of the points are earlier ones that moved inside the presumed null space. They are Gaussian too. Once the span is
  complete the outputs do not change under these moves, which tests the null space and not only local gradients.
- The run stops when ``patience`` further gradients add nothing and the moves changed nothing.
- The threshold is the oracle's precision. Where answers are noisier, the rank is read from the gap in the singular
  values and confirmed by moves in the null space that it leaves.

Without gradients the algorithm runs on differences of values (Lemma 3.2). A gradient then costs about ``d`` rows and a
move two, so moves come first. ``adaptive=False`` fixes every point before the first answer (``query_points``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from divulge.core.errors import AttackFailed, DivulgeError, InvalidInput
from divulge.core.memory import claim
from divulge.core.validation import checked_choice, checked_number, checked_whole
from divulge.oracles.base import Oracle, check_oracle_and_seed
from divulge.oracles.region import Region
from divulge.span.gradients.differences import check_directions, stencil_rows, uncalibrated
from divulge.span.gradients.null_space_moves import gaussian
from divulge.span.gradients.rank_decision import finish
from divulge.span.gradients.recovery import GradientRecovery, Method
from divulge.span.regions import in_region, moves_for
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
    inputs: object = None,
    scale: float = 1.0,
    risk: float = 0.4,
    seed: int = 0,
) -> Span:
    """Recover the span of a network's first linear map from gradients, or from differences of values.

    Parameters
    ----------
    oracle : Oracle
        The target, with gradient or value access.
    method : {"default", "paper"}, default "default"
        "paper" is Algorithm 1 of Jayaram 2020 as printed.
    source : {"auto", "gradients", "values"}, default "auto"
        Where gradients come from. "auto" asks for gradients where the access allows them, else for values.
    adaptive : bool, default True
        Choose points by earlier answers. False fixes all points before the first answer.
    samples : int, optional
        How many gradients to take; at most so many in an adaptive run. By default an adaptive run decides, a
        non-adaptive one takes ``input_dim + 8``, and ``method="paper"`` takes ``rank * log(rank)``.
    rank : int, optional
        Stop once this many directions are found.
    outputs : int or "all", optional
        One output, or all. The default is "all", and output 0 for ``method="paper"``.
    patience : int, default 4
        How many consecutive gradients that add nothing end the run.
    inputs : array-like or Region, optional
        Rows [n, d] like the target's data, or the region where they lie. Query points are then Gaussian with the mean
        and the standard deviation of each column. The default is N(0, 1) in every column.
    scale : float, default 1.0
        Standard deviation of the query points, in units of the region.
    risk : float, default 0.4
        Make so many moves in the null space that, with 95 % confidence, at most this share of such moves changes an
        output unnoticed: 6 moves for 0.4, 59 for 0.05. A move costs one value, or two where gradients are differences.
    seed : int, default 0
        Fixes every query.

    Returns
    -------
    Span
        The basis, the rank and the evidence for it. ``complete`` is False where directions may be missing, ``claim``
        says what holds and with which confidence, and ``structure`` tells a linear model from a low rank.

    Raises
    ------
    AttackFailed
        The gradient was zero at every point.
    BudgetExhausted
        The budget ran out; ``partial`` holds the span found so far.
    InvalidInput
        A parameter makes no sense for this oracle.

    See Also
    --------
    from_labels : the same from labels alone.

    Examples
    --------
    >>> import divulge
    >>> from divulge.training import margin
    >>> model = margin.network([30, 4, 2], first_scale=1.0, seed=0)
    >>> span = divulge.span.from_gradients(divulge.oracle(model, access="gradient"))
    >>> span.rank, span.complete
    (4, True)
    >>> span.angle_to(model[0].weight) < 1e-8
    True
    """
    seed = check_oracle_and_seed(oracle, seed)
    source = _check(oracle, method, source, samples, rank, outputs, patience, scale)
    if source == "values":
        claim(2 * oracle.input_dim**2, "A gradient by finite differences")
    moves = moves_for(risk)
    region = Region.of(inputs, oracle)
    oracle = region.oracle(oracle)
    paper = method == "paper"
    if paper and samples is None:
        samples = _printed_samples(rank)
    chosen = outputs if isinstance(outputs, int) else 0 if paper and outputs is None else None
    run = GradientRecovery(
        oracle, source=source, output=chosen, patience=patience, scale=scale, seed=seed, method=method, moves=moves
    )
    try:
        if paper or not adaptive:
            run.fixed(samples if samples is not None else default_samples(oracle.input_dim))
        elif source == "gradients":
            run.adaptive_gradients(samples, rank)
        else:
            run.adaptive_values(samples, rank)
        result = finish(run, rank, may_query=adaptive and not paper)
    except DivulgeError as error:
        if error.partial is None:
            error.partial = in_region(finish(run, rank, may_query=False, error=str(error)), region)
        raise
    if result.rank == 0:
        raise AttackFailed(_no_gradient(run), partial=result)
    return in_region(result, region)


def _no_gradient(run: GradientRecovery) -> str:
    values = torch.cat(run.values)
    start = f"The gradient was zero, to the oracle's precision, at all {len(run.curve)} points asked"
    if bool((values != values[0]).any()):
        return (
            f"{start}, but the outputs differ between them: the model is piecewise constant (a tree, or rounded or "
            "saturated outputs), so gradients do not show on which inputs it depends. Recover the span from labels."
        )
    return (
        f"{start}: the model is constant there, so there is no span to recover. Check that it is the right model, and "
        "give inputs= rows like its data."
    )


def _printed_samples(rank: int | None) -> int:
    """k log k gradients, as Algorithm 1 takes."""
    if rank is None:
        raise InvalidInput(
            "Algorithm 1 as printed takes the latent dimension as its input; give rank=k, or samples= for how many "
            "gradients to take."
        )
    return math.ceil(rank * max(1.0, math.log(rank)))


def default_samples(dim: int) -> int:
    """How many gradients a non-adaptive run takes: a span has at most ``dim`` directions."""
    return dim + 8


def query_points(
    dim: int,
    samples: int,
    *,
    source: Literal["gradients", "values"] = "gradients",
    scale: float = 1.0,
    seed: int = 0,
    eps: float = torch.finfo(torch.float64).eps,
    region: Region | None = None,
) -> Tensor:
    """All rows that a non-adaptive run asks, in order: the points, or the stencils around them.

    Parameters
    ----------
    dim : int
        Number of inputs of the model.
    samples : int
        How many gradients the run takes.
    source : {"gradients", "values"}, default "gradients"
        What the run asks for. With "values" each gradient takes a stencil of rows.
    scale : float, default 1.0
        Standard deviation of the points.
    seed : int, default 0
        The seed of the run.
    eps : float, default that of float64
        The precision of the oracle, which sets the step of the stencil.
    region : Region, optional
        Where the inputs lie, for a run with ``inputs=``. The default is N(0, 1).

    Returns
    -------
    Tensor
        Rows [n, dim] in float64.

    Examples
    --------
    >>> from divulge.span import query_points
    >>> query_points(12, 5).shape
    torch.Size([5, 12])
    """
    return torch.cat(list(_blocks(dim, samples, source, scale, seed, eps, region)))


def write_query_points(
    path: str | Path,
    dim: int,
    samples: int,
    *,
    source: Literal["gradients", "values"] = "gradients",
    scale: float = 1.0,
    seed: int = 0,
    eps: float = torch.finfo(torch.float64).eps,
    region: Region | None = None,
) -> None:
    """Write the rows of ``query_points`` to a .npy file, block by block: those of a run on values may exceed memory."""
    rows = samples * (1 if source == "gradients" else uncalibrated(eps, scale).rows_per_gradient(dim))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(rows, dim))
    top = 0
    for block in _blocks(dim, samples, source, scale, seed, eps, region):
        file[top : top + len(block)] = block.numpy()
        top += len(block)
    file.flush()


def _blocks(
    dim: int, samples: int, source: str, scale: float, seed: int, eps: float, region: Region | None
) -> Iterator[Tensor]:
    region = region or Region(torch.zeros(dim, dtype=torch.float64), torch.ones(dim, dtype=torch.float64))
    points = gaussian(samples, dim, scale, torch.Generator().manual_seed(seed))
    if source == "gradients":
        yield region.to_inputs(points)
        return
    checks, stencil = check_directions(dim, seed + 3), uncalibrated(eps * region.rounding, scale)
    for point in points:
        yield region.to_inputs(stencil_rows(point, stencil, checks))


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
    """Check the parameters, and decide where gradients come from."""
    checked_choice("method", method, ("default", "paper"))
    checked_choice("source", source, ("auto", "gradients", "values"))
    if samples is not None:
        checked_whole("samples", samples, at_least=1)
    if rank is not None:
        checked_whole("rank", rank, at_least=1, at_most=oracle.input_dim)
    if isinstance(outputs, int) and not 0 <= outputs < oracle.output_dim:
        raise InvalidInput(f"The model has outputs 0 to {oracle.output_dim - 1}; there is no output {outputs}.")
    if not (outputs is None or outputs == "all" or isinstance(outputs, int)):
        raise InvalidInput(f'outputs is "all" or the number of one output, not {outputs!r}.')
    checked_whole("patience", patience, at_least=2)
    checked_number("scale", scale, above=0)
    if source == "auto":
        return "gradients" if oracle.allows("gradient") else "values"
    return "gradients" if source == "gradients" else "values"
