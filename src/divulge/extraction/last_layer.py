"""The width and the weights of a last linear layer from logits (Carlini et al. 2024, "Stealing part of a production
language model", sections 4.1, 4.2 and 5.1).

A model with many outputs ends in a linear layer from h numbers to k > h logits. All its answers then lie in an affine
space of h dimensions, whatever comes before. The singular values of n > h centred answers show h, and the singular
vectors are the columns of the layer up to an invertible h x h matrix.

Departures: the answers are centred over the queries, so that a bias does not count as a dimension; the rank is decided
by the precision of the answers and a gap, not by the gap alone; the space is checked on fresh answers; probabilities
are turned into logits up to a shift, which is removed.

An endpoint that shows the k largest log-probabilities and takes a logit bias (``oracles.LogitBias``) shows every logit
of a prompt relative to one of them: a large bias on k outputs makes these the largest, and adds the same to all of
them. One prompt costs (outputs - 1) / (k - 1) queries.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

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
        How many rows are asked about, checks included; by default all inputs, or a few more than there are outputs. A
        ``LogitBias`` endpoint is asked many times about each.
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
    rows = _rows(oracle, inputs, queries, seed)
    if isinstance(oracle, LogitBias):
        answers, shifted = _through_bias(oracle, rows), True
    else:
        answers, shifted = _logits(oracle.value(rows).to(torch.float64).cpu())
    fitted, fresh = answers[:-CHECKS], answers[-CHECKS:]
    offset = fitted.mean(dim=0)
    _, values, directions = torch.linalg.svd(fitted - offset, full_matrices=False)
    width, reason = _width(values, float(fitted.abs().max()), tuple(fitted.shape), oracle.eps)
    basis = directions[:width].T.contiguous()
    off = fresh - offset
    spread = float((fitted - offset).square().mean().sqrt()) or 1.0
    error = float((off - (off @ basis) @ basis.T).abs().max()) / spread
    if not reason and error > _tolerance(oracle.eps, float(fitted.abs().max())) / spread:
        reason = f"Fresh answers lie outside of the {width} directions found, by {error:.1e} of their spread."
    return LastLayer(
        method="singular values", seed=seed, seconds=time.perf_counter() - started,
        ledger=oracle.ledger.snapshot() - before, reason=reason, width=0 if reason else width,
        weights=basis[:, : 0 if reason else width], offset=offset, singular_values=values, error=error,
        notes=("The answers show logits up to a shift of all outputs.",) if shifted else (),
        facts={"outputs": answers.shape[1], "checks": len(fresh)},
    )  # fmt: skip


def _rows(oracle: Oracle, inputs: object, queries: int | None, seed: int) -> Tensor:
    wanted = oracle.output_dim + CHECKS + 8 if queries is None else checked_whole("queries", queries, at_least=1)
    if inputs is None:
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(wanted, oracle.input_dim, generator=generator, dtype=torch.float64)
    else:
        given = check_finite_rows(
            as_rows(torch.as_tensor(inputs), oracle.input_dim, torch.float64, torch.device("cpu"))
        )
        rows = given if queries is None else given[:wanted]
    if len(rows) < CHECKS + 4 or oracle.output_dim < 3:
        raise InvalidInput(
            f"The last layer of a model with {oracle.output_dim} outputs cannot be found from {len(rows)} rows; it "
            f"takes at least 3 outputs and {CHECKS + 4} rows."
        )
    return rows


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


def _width(values: Tensor, size: float, shape: tuple[int, ...], eps: float) -> tuple[int, str]:
    """How many singular values are more than rounding, and why the width is not known."""
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
            else f"The answers span as many directions as there are outputs ({shape[1]}): the last layer is no "
            "narrower, or is not linear."
        )
    if float(values[width - 1]) < _GAP * float(values[width]):
        return width, f"There is no gap after the {width} largest singular values: rounding or noise hides the width."
    return width, ""
