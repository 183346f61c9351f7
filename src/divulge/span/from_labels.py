"""The span from hard labels (Jayaram 2020, Algorithm 2): a normal of the decision boundary is a gradient.

Where a label flips, the boundary's normal lies in the span. As in the paper, each search leaves the directions found so
far unchanged, so each normal that it finds adds a direction.

As printed (``method="paper"``, see ``printed.py``) the algorithm probes along directions that agree to N bits, and
cannot run in float64. By default the normal comes from central differences of the boundary's height instead
(``labels/boundary.py``). The paper searches the subspace orthogonal to the directions found. The label may never change
there, so we search affine slices parallel to it, through random points and through earlier boundary points.
"""

from __future__ import annotations

from typing import Literal

from divulge.core.errors import AttackFailed, DivulgeError
from divulge.core.validation import checked_choice, checked_number, checked_whole
from divulge.oracles.base import Oracle, check_oracle_and_seed
from divulge.oracles.region import Region
from divulge.span.labels.recovery import GROUP, SCALES, LabelRecovery
from divulge.span.printed import printed_algorithm
from divulge.span.regions import in_region, moves_for
from divulge.span.result import Span


def from_labels(
    oracle: Oracle,
    rank: int | None = None,
    *,
    method: Literal["default", "paper"] = "default",
    precision: Literal["double", "extended"] = "double",
    bits: int = 256,
    extra: float = 0.0,
    tries: int = 2000,
    inputs: object = None,
    scale: float = 1.0,
    step: float | None = None,
    risk: float = 0.05,
    seed: int = 0,
) -> Span:
    """Recover the span of a network's first linear map from its labels alone.

    Parameters
    ----------
    oracle : Oracle
        The target. It needs two labels or more.
    rank : int, optional
        Stop once this many directions are found. By default the run ends when labels no longer change outside the span.
    method : {"default", "paper"}, default "default"
        "paper" is Algorithm 2 of Jayaram 2020 as printed.
    precision : {"double", "extended"}, default "double"
        "extended" runs the printed algorithm with numbers of ``bits`` bits; it needs an oracle with weights access.
    bits : int, default 256
        Length of the numbers with ``precision="extended"``.
    extra : float, default 0.0
        Further normals to average, as a share of the rank: 0.5 takes half as many again.
    tries : int, default 2000
        Labels to search outside the span before the run ends.
    inputs : array-like or Region, optional
        Rows [n, d] like the target's data, or the region where they lie. Query points are then Gaussian with the mean
        and the standard deviation of each column. The default is N(0, 1) in every column.
    scale : float, default 1.0
        Standard deviation of the query points, in units of the region.
    step : float, optional
        Distance of the differences. By default it follows from the oracle's precision.
    risk : float, default 0.05
        Make so many moves in the null space from the decision boundary that, with 95 % confidence, at most this share
        of such moves changes a label unnoticed: 59 moves for 0.05. Without ``rank`` a span is complete only if it
        passes.
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
        The label never changed.
    BudgetExhausted
        The budget ran out; ``partial`` holds the span found so far.
    InvalidInput
        A parameter makes no sense for this oracle.
    MissingPackage
        ``method="paper"`` needs mpmath.

    See Also
    --------
    from_gradients : the same from gradients or values, with far fewer queries.

    Examples
    --------
    >>> import divulge
    >>> from divulge.training import margin
    >>> model = margin.network([12, 2, 3], first_scale=1.0, seed=0)
    >>> span = divulge.span.from_labels(divulge.oracle(model, access="label"))
    >>> span.rank, span.angle_to(model[0].weight) < 1e-6
    (2, True)
    """
    seed = check_oracle_and_seed(oracle, seed)
    _check(oracle, rank, method, precision, extra, tries, scale, step)
    if precision == "extended" or method == "paper":
        return printed_algorithm(oracle, rank, precision=precision, bits=bits, tries=tries, seed=seed)
    moves = moves_for(risk)
    region = Region.of(inputs, oracle)
    run = LabelRecovery(region.oracle(oracle), tries=tries, scale=scale, step=step, moves=moves, seed=seed)
    try:
        run.collect(rank, extra)
    except DivulgeError as error:
        if error.partial is None:
            error.partial = in_region(run.finish(rank, error=str(error)), region)
        raise
    result = run.finish(rank)
    if result.rank == 0:
        raise AttackFailed(
            f"The label never changed in {run.searched:,} tries at {len(SCALES)} scales around {scale:g}: there is no "
            "boundary to follow. Check that it is the right model, and give inputs= rows like its data.",
            partial=result,
        )
    return in_region(result, region)


def _check(
    oracle: Oracle,
    rank: int | None,
    method: str,
    precision: str,
    extra: float,
    tries: int,
    scale: float,
    step: float | None,
) -> None:
    checked_choice("method", method, ("default", "paper"))
    checked_choice("precision", precision, ("double", "extended"))
    if rank is not None:
        checked_whole("rank", rank, at_least=1, at_most=oracle.input_dim)
    checked_number("extra", extra, at_least=0)
    checked_whole("tries", tries, at_least=GROUP)
    checked_number("scale", scale, above=0)
    if step is not None:
        checked_number("step", step, above=0)
