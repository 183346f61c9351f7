"""The rank of a recovery from gradients: from singular values and idle rows, or from a gap that queries confirm."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from torch import Tensor

from divulge.span.gradients.recovery import GradientRecovery
from divulge.span.gradients.spectrum import (
    CLEAR_GAP,
    confirmed_rank,
    drop_marginal_directions,
    gap_after,
    ranks_by_gap,
)
from divulge.span.result import Span

Decision = tuple[int, float, float | None]
"""A rank, the threshold below it, and the relative output change under moves in its null space."""


def finish(run: GradientRecovery, asked: int | None, *, may_query: bool, error: str = "") -> Span:
    """The result of a recovery. A doubtful rank may cost a few more values where ``may_query``."""
    singular, vectors = run.rows.decompose()
    threshold = run.threshold(singular)
    rank = int((singular > threshold).sum())
    reached = run.reached(asked) and not run.noisy
    idle_rows = run.rows.rows_seen - run.rows.size  # rows that added nothing show that the span is complete
    invariance = run.relative(run.moves.largest) if run.moves.count else None
    if error:
        run.mark_incomplete(f"Stopped early: {error}")
    elif run.method != "paper" and (run.noisy or idle_rows == 0 or run.rows.size == run.dim) and not reached:
        rank, threshold, invariance = _without_idle_rows(run, singular, vectors, threshold, may_query)
    elif run.stencil is not None and not reached:
        rank = drop_marginal_directions(singular, rank, threshold)
    if asked is not None:
        if rank < asked:
            run.mark_incomplete(f"Asked for rank {asked}, found {rank} in {len(run.curve)} samples.")
        rank = min(rank, asked)
    gap = gap_after(singular, rank, max(run.rows.leftover, run.oracle.eps * float(singular[:1].sum())))
    if run.method != "paper" and 0 < rank < run.dim and gap < CLEAR_GAP and not run.reached(asked):
        run.mark_incomplete(f"The rank is uncertain: the singular values fall by no more than {gap:.3g} times there.")
    return Span(
        basis=vectors[:rank].contiguous(),
        singular_values=singular,
        gap=gap,
        threshold=threshold,
        curve=tuple(min(size, rank) for size in run.curve),
        ledger=run.oracle.ledger.snapshot() - run.ledger_before,
        seed=run.seed,
        seconds=time.perf_counter() - run.started,
        method=run.method,
        source=run.source,
        invariance=invariance,
        complete=not run.reason,
        reason=run.reason,
        moves=run.moves.count if not run.reason and rank == run.rows.size else 0,
        outputs=1 if run.selection.output is not None else run.oracle.output_dim,
        affine=run.affine,
        notes=tuple(run.notes),
        facts=_facts(run),
    )


def _without_idle_rows(
    run: GradientRecovery, singular: Tensor, vectors: Tensor, threshold: float, may_query: bool
) -> Decision:
    """Decide where every row was new: a network of full rank, too few samples, or noise above a low rank."""
    gap_decision = _by_gap(run, singular, vectors, may_query)
    if gap_decision is not None:
        return gap_decision
    if run.noisy:
        run.mark_incomplete("The answers are noisy and no gap in the singular values tells the rank.")
        rank = next(iter(ranks_by_gap(singular, at_least=0.0)), len(singular))
        return rank, float(singular[rank]) if rank < len(singular) else 0.0, None
    if run.rows.size == run.dim:
        run.notes.append(f"The model depends on all {run.dim} input directions: there is no null space.")
    else:
        run.mark_incomplete(f"All {len(run.curve)} samples still added directions: take more to find the rest.")
    return int((singular > threshold).sum()), threshold, None


def _by_gap(run: GradientRecovery, singular: Tensor, vectors: Tensor, may_query: bool) -> Decision | None:
    """The rank that a gap shows: confirmed by queries where they are allowed, read from noise only where not."""
    rank, gap, invariance = 0, 0.0, None
    if may_query and len(singular) > 4:
        least = {} if run.noisy else {"at_least": CLEAR_GAP}
        candidate = confirmed_rank(singular, run.null_space_change(vectors), noisy=run.noisy, **least)
        if candidate is not None:
            rank, gap, invariance = candidate.rank, candidate.gap, candidate.invariance
    elif run.noisy and len(singular) > 4:
        rank = next(iter(ranks_by_gap(singular, at_least=CLEAR_GAP)), 0)
        gap = gap_after(singular, rank, 0.0)
    if not rank:
        return None
    unchecked = "" if may_query else " (not checked, since all points were fixed in advance)"
    run.notes.append(
        f"The answers are noisier than their number format: the rank is read off the gap in the singular values, "
        f"{gap:.3g} times{unchecked}."
    )
    return rank, float(singular[rank]), invariance


def _facts(run: GradientRecovery) -> dict[str, Any]:
    facts: dict[str, Any] = {"samples": len(run.curve), "moves_checked": run.moves.count}
    if run.stencil is not None:
        facts |= {**asdict(run.stencil), "gradients_rejected": run.rejected}
    return facts
