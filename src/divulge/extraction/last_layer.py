"""The width and the weights of a last linear layer from logits (Carlini et al. 2024, "Stealing part of a production
language model", sections 4.1, 4.2 and 5.1).

A model with many outputs ends in a linear layer from h numbers to k > h logits. All its answers then lie in an affine
space of h dimensions, whatever comes before. The singular values of n > h centred answers show h, and the singular
vectors are the columns of the layer up to an invertible h x h matrix.

Departures: the answers are centred over the queries, so that a bias does not count as a dimension; the rank is decided
by the precision of the answers and a gap, not by the gap alone; the space is checked on fresh answers; probabilities
are turned into logits up to a shift, which is removed. Where the number of queries is not given, it doubles until they
show the width, and once more.

An endpoint that shows the k largest log-probabilities and takes a logit bias (``oracles.LogitBias``) shows every logit
of a prompt relative to one of them: a large bias on k outputs makes these the largest, and adds the same to all of
them. One prompt costs (outputs - 1) / (k - 1) queries.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from divulge.core.errors import AttackFailed, InvalidInput
from divulge.core.progress import report
from divulge.core.result import AttackResult
from divulge.core.validation import checked_whole
from divulge.oracles.base import Oracle, check_oracle_and_seed
from divulge.oracles.guards.logit_bias import MOST_BIAS, LogitBias
from divulge.oracles.rows import as_rows, check_finite_rows

CHECKS = 32
"""Fresh answers that the space is checked on."""
FIRST = 128
"""Rows of the first round, checks included; every further round doubles them."""
_GAP = 10.0
"""How many times larger the last singular value that counts is than the next."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LastLayer(AttackResult):
    """The last layer of a model, up to an invertible matrix.

    Attributes
    ----------
    width : int
        Numbers that the last layer takes, as far as the queries span them; 0 if they were not found.
    weights : Tensor [k, h]
        Orthonormal columns that span what the columns of the layer span. For logits from probabilities, up to a shift
        of all outputs.
    offset : Tensor [k]
        The mean of the answers.
    singular_values : Tensor
        Of the centred answers, the largest first.
    error : float
        The largest part of a fresh answer that lies outside of the space, relative to the spread of the answers.

    Examples
    --------
    >>> import divulge, torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(20, 6), torch.nn.Tanh(), torch.nn.Linear(6, 50))
    >>> divulge.extraction.last_layer(divulge.oracle(net)).width
    6
    """

    width: int
    weights: Tensor
    offset: Tensor
    singular_values: Tensor
    error: float

    def as_dict(self) -> dict[str, Any]:
        """The result without its tensors, as plain values for JSON."""
        return {**super().as_dict(), "width": self.width, "error": self.error}

    def distance(self, weights: Tensor) -> float:
        """How much of a true layer the space misses: 0 if it holds all its columns.

        Parameters
        ----------
        weights : Tensor [k, h]
            The weights of the true last layer.

        Returns
        -------
        float
            The root of the share of the squared weights that lies outside of the space.
        """
        true = weights.detach().to(torch.float64)
        outside = true - self.weights @ (self.weights.T @ true)
        return float(outside.norm() / true.norm())


def last_layer(oracle: Oracle, inputs: object = None, *, queries: int | None = None, seed: int = 0) -> LastLayer:
    """The width of the last layer of a model with many outputs, and its weights up to an invertible matrix.

    Parameters
    ----------
    oracle : Oracle
        The target, with value access: logits or probabilities, or a ``LogitBias`` endpoint.
    inputs : array [n, d], optional
        Rows to ask, such as token ids; drawn from N(0, I) by default.
    queries : int, optional
        How many rows are asked about, checks included; by default twice as many each round until two rounds show the
        same width, up to all inputs, the budget, or a few more than there are outputs. A ``LogitBias`` endpoint is
        asked many times about each.
    seed : int, default 0
        Fixes every random choice.

    Returns
    -------
    LastLayer
        ``.width``, ``.weights`` [k, h], ``.error`` on fresh answers. Without success ``reason`` says why.

    Raises
    ------
    AccessDenied
        If the oracle grants labels only.
    AttackFailed
        If the largest bias of a ``LogitBias`` endpoint does not show every output.
    InvalidInput
        If there are too few rows to ask, or too few outputs.

    Examples
    --------
    >>> import divulge, torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.ReLU(), torch.nn.Linear(5, 40)).double()
    >>> found = divulge.extraction.last_layer(divulge.oracle(net))
    >>> found.width, found.distance(net[2].weight) < 1e-9
    (5, True)
    """
    seed = check_oracle_and_seed(oracle, seed)
    started, before = time.perf_counter(), oracle.ledger.snapshot()
    rounds = _rounds(oracle, inputs, queries, seed)
    asked = torch.empty(0, oracle.output_dim, dtype=torch.float64)
    space: _Space | None = None
    for rows in rounds:
        given = _through_bias(oracle, rows) if isinstance(oracle, LogitBias) else oracle.value(rows).double().cpu()
        asked = torch.cat([asked, given])
        answers, shifted = (asked, True) if isinstance(oracle, LogitBias) else _logits(asked)
        found, space = space, _space(answers, oracle.eps)
        again = found is not None and found.basis.shape == space.basis.shape  # what acts rarely may show only now
        if not space.more and (space.reason or again):
            break
    assert space is not None  # there is at least one round
    width = 0 if space.reason else space.basis.shape[1]
    return LastLayer(
        method="singular values", seed=seed, seconds=time.perf_counter() - started,
        ledger=oracle.ledger.snapshot() - before, reason=space.reason, width=width, weights=space.basis[:, :width],
        offset=space.offset, singular_values=space.values, error=space.error,
        notes=("The answers show logits up to a shift of all outputs.",) if shifted else (),
        facts={"outputs": answers.shape[1], "checks": CHECKS},
    )  # fmt: skip


class _Space(NamedTuple):
    """The affine space that answers lie in, and why it is not the last layer's."""

    basis: Tensor
    offset: Tensor
    values: Tensor
    error: float
    reason: str
    more: bool
    """Whether more queries may show it."""


def _space(answers: Tensor, eps: float) -> _Space:
    fitted, fresh = answers[:-CHECKS], answers[-CHECKS:]
    offset, largest = fitted.mean(dim=0), float(fitted.abs().max())
    _, values, directions = torch.linalg.svd(fitted - offset, full_matrices=False)
    width, reason = _width(values, largest, (len(fitted), _varying(fitted)), eps)
    basis = directions[:width].T.contiguous()
    off = fresh - offset
    spread = float((fitted - offset).square().mean().sqrt()) or 1.0
    error = float((off - (off @ basis) @ basis.T).abs().max()) / spread
    outside = error > _tolerance(eps, largest) / spread
    if not reason and outside:
        reason = f"Fresh answers lie outside of the {width} directions found, by {error:.1e} of their spread."
    return _Space(basis, offset, values, error, reason, more=bool(reason) and outside)


def _rounds(oracle: Oracle, inputs: object, queries: int | None, seed: int) -> Iterator[Tensor]:
    """The rows to ask, round after round; all at once where their number was given."""
    left = oracle.ledger.remaining
    most = oracle.output_dim + CHECKS + 8 if queries is None else checked_whole("queries", queries, at_least=1)
    if left is not None and not isinstance(oracle, LogitBias):
        most = min(most, left)
    given = None
    if inputs is not None:
        given = check_finite_rows(
            as_rows(torch.as_tensor(inputs), oracle.input_dim, torch.float64, torch.device("cpu"))
        )
        most = min(most, len(given))
    if most < CHECKS + 4 or oracle.output_dim < 3:
        raise InvalidInput(
            f"The last layer of a model with {oracle.output_dim} outputs cannot be found from {most} rows; it "
            f"takes at least 3 outputs and {CHECKS + 4} rows."
        )
    return _drawn(given, most, most if queries is not None else FIRST, oracle.input_dim, seed)


def _drawn(given: Tensor | None, most: int, first: int, width: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    done, upto = 0, min(first, most)
    while done < most:
        if given is not None:
            yield given[done:upto]
        else:
            yield torch.randn(upto - done, width, generator=generator, dtype=torch.float64)
        done, upto = upto, min(2 * upto, most)


def _logits(values: Tensor) -> tuple[Tensor, bool]:
    """Logits; of probabilities and their logarithms up to a shift of all outputs, which is removed."""
    probabilities = bool((values > 0).all()) and bool(((values.sum(dim=1) - 1).abs() < 1e-4).all())
    logs = bool((values <= 0).all()) and bool(((values.exp().sum(dim=1) - 1).abs() < 1e-4).all())
    if not (probabilities or logs):
        return values, False
    values = values.log() if probabilities else values
    return values - values.mean(dim=1, keepdim=True), True


def _through_bias(endpoint: LogitBias, rows: Tensor) -> Tensor:
    """All logits of each row, less their mean, from the largest k after a bias."""
    first, others = 0, torch.arange(1, endpoint.output_dim)
    logits = torch.zeros(len(rows), endpoint.output_dim, dtype=torch.float64)
    groups = torch.split(others, endpoint.k - 1)
    for place, group in enumerate(groups):
        wanted = torch.cat([torch.tensor([first]), group])
        shown, logs = endpoint.biased(rows, wanted, MOST_BIAS)
        seen = torch.full((len(rows), endpoint.output_dim), torch.nan, dtype=torch.float64)
        seen.scatter_(1, shown.cpu(), logs.to(torch.float64).cpu())
        relative = seen[:, group] - seen[:, [first]]
        if bool(relative.isnan().any()):
            raise AttackFailed(
                f"A bias of {MOST_BIAS:g} does not bring {len(wanted)} outputs among the largest {endpoint.k}: the "
                "logits of the model differ by more."
            )
        logits[:, group] = relative
        report("logits by bias", place + 1, len(groups))
    return logits - logits.mean(dim=1, keepdim=True)


def _tolerance(eps: float, size: float) -> float:
    return 256 * max(eps, 2.0**-52) * size


def _varying(answers: Tensor) -> int:
    """Outputs that vary and equal no other: those that an endpoint hides are constant, or alike, and no evidence."""
    moving = answers[:, (answers != answers[0]).any(dim=0)]
    return int(torch.unique(moving, dim=1).shape[1])


def _width(values: Tensor, size: float, shape: tuple[int, int], eps: float) -> tuple[int, str]:
    """How many singular values are more than rounding, and why the width is not known.

    ``shape`` is the number of answers and of outputs that vary.
    """
    noise = 8 * max(eps, 2.0**-52) * size * (shape[0] ** 0.5 + shape[1] ** 0.5)
    width = int((values > noise).sum())
    if width == 0:
        return 0, "The answers do not differ."
    most = min(shape[0] - 1, shape[1] - 1)
    if width >= most:
        few = shape[0] - 1 <= shape[1] - 1
        return width, (
            f"The answers span all of the {most} directions that {shape[0]} queries can show; ask more."
            if few
            else f"The answers span as many directions as outputs vary ({shape[1]}): the last layer is no narrower, or "
            "is not linear."
        )
    if float(values[width - 1]) < _GAP * float(values[width]):
        return width, f"There is no gap after the {width} largest singular values: rounding or noise hides the width."
    return width, ""
