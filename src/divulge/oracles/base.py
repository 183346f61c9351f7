"""The one way an attack may look at a target: an Oracle that counts every row it answers and stops at its budget.

A subclass says how to compute values, gradients and labels for a checked batch of rows; everything that must hold for
every target (shapes, finiteness, access, the ledger, the budget) is settled here, once.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from divulge.errors import (
    AccessDenied,
    BudgetExhausted,
    EmptyBatch,
    InvalidInput,
    NonFiniteAnswer,
    NonFiniteInput,
    NotDeterministic,
    TargetError,
    UnknownAccess,
    UnsupportedModel,
    WrongShape,
)
from divulge.progress import tick
from divulge.whole import checked_seed, is_whole

Access = Literal["label", "value", "gradient", "weights"]
Kind = Literal["label", "value", "gradient"]
ACCESS_LEVELS: tuple[Access, ...] = ("label", "value", "gradient", "weights")  # each includes the ones before it
RANK: dict[Access, int] = {level: rank for rank, level in enumerate(ACCESS_LEVELS)}


@dataclass(frozen=True)
class Spent:
    """What a run cost: rows answered by kind, and requests sent to a remote target."""

    value: int = 0
    gradient: int = 0
    label: int = 0
    requests: int = 0

    @property
    def total(self) -> int:
        return self.value + self.gradient + self.label

    def __sub__(self, earlier: Spent) -> Spent:
        return Spent(
            self.value - earlier.value,
            self.gradient - earlier.gradient,
            self.label - earlier.label,
            self.requests - earlier.requests,
        )

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.value + other.value,
            self.gradient + other.gradient,
            self.label + other.label,
            self.requests + other.requests,
        )

    def as_dict(self) -> dict[str, int]:
        return {
            "value": self.value,
            "gradient": self.gradient,
            "label": self.label,
            "total": self.total,
            "requests": self.requests,
        }


class Ledger:
    """Counts rows answered, by kind, and refuses those beyond the budget. Exact under concurrency."""

    def __init__(self, budget: int | None = None) -> None:
        if budget is not None:
            if not is_whole(budget) or budget < 0:
                raise InvalidInput(
                    f"A budget of {budget!r} rows makes no sense; give a whole number from zero, or None for no limit."
                )
            budget = int(budget)
        self.budget = budget
        self._spent = {"value": 0, "gradient": 0, "label": 0}
        self._total = 0
        self._requests = 0
        self._lock = threading.Lock()

    def charge(self, kind: Kind, rows: int) -> None:
        """Reserve ``rows`` of the budget before they are asked, or raise with nothing charged."""
        with self._lock:
            if self.budget is not None and self._total + rows > self.budget:
                raise BudgetExhausted(
                    f"The budget of {self.budget:,} rows is used up: {self._total:,} were answered and {rows:,} more "
                    f"were asked for. Raise the budget or ask for at most {self.budget - self._total:,}."
                )
            self._spent[kind] += rows
            self._total += rows

    def refund(self, kind: Kind, rows: int) -> None:
        """Give back rows that were reserved and never answered."""
        with self._lock:
            self._spent[kind] -= rows
            self._total -= rows

    def count_request(self, requests: int = 1) -> None:
        with self._lock:
            self._requests += requests

    def snapshot(self) -> Spent:
        with self._lock:
            return Spent(**self._spent, requests=self._requests)

    @property
    def value(self) -> int:
        return self._spent["value"]

    @property
    def gradient(self) -> int:
        return self._spent["gradient"]

    @property
    def label(self) -> int:
        return self._spent["label"]

    @property
    def requests(self) -> int:
        return self._requests

    @property
    def total(self) -> int:
        return self._total

    @property
    def remaining(self) -> int | None:
        """Rows left in the budget; None where there is no budget."""
        return None if self.budget is None else self.budget - self.total

    def __repr__(self) -> str:
        spent = ", ".join(f"{kind}={rows}" for kind, rows in self._spent.items() if rows)
        return f"Ledger({spent or 'nothing asked'}, budget={self.budget}, requests={self._requests})"


class Oracle(ABC):
    """A target behind a counter. ``value``, ``gradient`` and ``label`` take rows [n, d] and answer tensors.

    A gradient row counts once, as a gradient; the value that comes with it is free. Rows are charged before they are
    asked and given back if the target never answered them, so the ledger never shows less than what was asked.
    """

    def __init__(
        self,
        *,
        input_dim: int,
        output_dim: int,
        access: Access = "value",
        budget: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: str | torch.device = "cpu",
        input_shape: Sequence[int] | None = None,
        threshold: float = 0.0,
    ) -> None:
        check_access(access)
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.access: Access = access
        self.dtype = dtype
        self.device = torch.device(device)
        self.input_shape: tuple[int, ...] = tuple(input_shape) if input_shape is not None else (input_dim,)
        self.threshold = threshold
        """Above this a single output means label 1: zero for a logit, one half for a probability."""
        self.ledger = Ledger(budget)

    # -- the public questions -----------------------------------------------------------------------------------------

    def value(self, X: Any) -> Tensor:
        """The model's outputs, [n, k]."""
        rows = self._admit(X, "value")
        count = rows.size(0)
        self.ledger.charge("value", count)
        try:
            return self._finite(self._value(rows), "value", rows)
        except BaseException as error:
            self._give_back("value", count, error)
            raise

    def gradient(self, X: Any) -> tuple[Tensor, Tensor]:
        """The model's outputs [n, k] and the gradient of each with respect to the input [n, k, d]."""
        rows = self._admit(X, "gradient")
        count = rows.size(0)
        self.ledger.charge("gradient", count)
        try:
            values, gradients = self._gradient(rows)
            return self._finite(values, "value", rows), self._finite(gradients, "gradient")
        except BaseException as error:
            self._give_back("gradient", count, error)
            raise

    def label(self, X: Any) -> Tensor:
        """The model's decisions, [n] integers."""
        rows = self._admit(X, "label")
        count = rows.size(0)
        self.ledger.charge("label", count)
        try:
            return self._label(rows)
        except BaseException as error:
            self._give_back("label", count, error)
            raise

    def weights(self) -> nn.Module:
        """The model itself as a torch module, for the holder of the weights. Nothing is charged."""
        if not self.allows("weights"):
            raise AccessDenied(f'This oracle grants {self.access} access only; build it with access="weights".')
        return self._weights()

    def allows(self, kind: Access) -> bool:
        return RANK[kind] <= RANK[self.access]

    @property
    def eps(self) -> float:
        """Relative size of one rounding error in the answers' number format."""
        return float(torch.finfo(self.dtype).eps)

    def check_deterministic(self, seed: int = 0) -> None:
        """Ask one random row twice and raise NotDeterministic if the answers differ."""
        row = torch.randn(1, self.input_dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        ask = self.value if self.allows("value") else self.label
        first, second = ask(row), ask(row)
        if not torch.equal(first, second):
            gap = float((first - second).abs().max())
            raise NotDeterministic(
                f"The model answered one row differently twice (by {gap:.3g}). Put it in evaluation mode, or treat it "
                "as noisy."
            )

    # -- what a subclass provides -------------------------------------------------------------------------------------

    @abstractmethod
    def _value(self, X: Tensor) -> Tensor:
        """Outputs [n, k] for checked rows."""

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        raise AccessDenied(f"{type(self).__name__} cannot answer gradients of this target; ask for values instead.")

    def _label(self, X: Tensor) -> Tensor:
        return decide(self._finite(self._value(X), "value", X), self.threshold)

    def _weights(self) -> nn.Module:
        raise UnsupportedModel(f"{type(self).__name__} has no weights to show; ask it for answers instead.")

    def _forward(self, X: Tensor) -> Tensor:
        """Outputs [n, k] that torch can differentiate, for guards that explain the model on its owner's side."""
        raise UnsupportedModel(f"{type(self).__name__} has no torch graph that an explanation could be computed from.")

    _answers_tell = False
    """True where a row with NaN or infinity is sure to be answered with NaN or infinity, so that checking the answers
    checks the rows too, and is less to read."""

    # -- checks -------------------------------------------------------------------------------------------------------

    def _admit(self, X: Any, kind: Kind) -> Tensor:
        tick()
        if not self.allows(kind):
            raise AccessDenied(
                f"This oracle grants {self.access} access, which does not cover {kind} queries; build it with "
                f'access="{kind}" if the attacker you have in mind can see that.'
            )
        rows = as_rows(X, self.input_dim, self.dtype, self.device)
        return rows if self._answers_tell else check_finite_rows(rows)

    def _give_back(self, kind: Kind, rows: int, error: BaseException) -> None:
        """Refund the rows that the target never answered."""
        if not isinstance(error, NonFiniteAnswer):  # an answer of NaN was an answer
            self.ledger.refund(kind, rows - getattr(error, "rows_answered", 0))

    def _finite(self, answer: Tensor, what: str, rows: Tensor | None = None) -> Tensor:
        """The answer again, or NonFiniteAnswer; NonFiniteInput where the fault lies with the rows."""
        if not all_finite(answer):
            if rows is not None:
                check_finite_rows(rows)
            bad = int((~torch.isfinite(answer)).flatten(1).any(dim=1).sum())
            raise NonFiniteAnswer(
                f"The model answered NaN or infinity for the {what} of {bad} of {len(answer)} rows; check its weights "
                "and the range of its inputs."
            )
        return answer


def at_the_door(oracle: Any, seed: Any) -> int:
    """What every attack on an oracle checks before it asks: that this is one, and that the seed is a number."""
    if not isinstance(oracle, Oracle):
        raise InvalidInput(
            f"An attack asks through an oracle, and this is a {type(oracle).__name__}; wrap it: divulge.oracle(model, "
            "access=...)."
        )
    return checked_seed(seed)


def check_access(access: str) -> None:
    if access not in ACCESS_LEVELS:
        raise UnknownAccess(f"There is no access level {access!r}; choose one of {', '.join(ACCESS_LEVELS)}.")


def decide(values: Tensor, threshold: float = 0.0) -> Tensor:
    """The label that outputs stand for: the largest of several, or whether a single one is above the threshold."""
    if values.shape[1] == 1:
        return (values[:, 0] > threshold).long()
    return values.argmax(dim=1)


def all_finite(tensor: Tensor) -> bool:
    """Whether no entry is NaN or infinite, in one pass: a sum is finite only if every term is (or it overflows)."""
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())


def as_rows(X: Any, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Query rows as a tensor [n, width]; pictures are flattened, a single row is taken as a batch of one."""
    if isinstance(X, Tensor) and X.ndim == 2 and X.dtype is dtype and X.device == device:
        if X.size(1) == width and X.size(0) and X.layout is torch.strided and not X.requires_grad:
            return X  # what an attack sends nearly always
    elif not isinstance(X, Tensor):
        X = _tensor(X)
    if X.is_complex():
        raise InvalidInput(f"Query rows must be real numbers, not {X.dtype}.")
    X = X.detach()
    if X.layout is not torch.strided:
        X = X.to_dense()
    if X.ndim == 0:
        raise WrongShape(f"The query is a single number; rows of {width} are expected.")
    if X.numel() == 0:
        raise EmptyBatch("The query has no rows; give at least one.")
    if X.ndim == 1 and len(X) == width:
        X = X[None]
    rows: Tensor = X.reshape(len(X), -1)
    if rows.shape[1] != width:
        raise WrongShape(f"The query rows have {rows.shape[1]} columns, and this model takes {width}.")
    return rows.to(device=device, dtype=dtype)


def check_finite_rows(rows: Tensor) -> Tensor:
    """The rows again, or NonFiniteInput."""
    if not all_finite(rows):
        bad = int((~torch.isfinite(rows)).any(dim=1).sum())
        kind = str(rows.dtype).removeprefix("torch.")
        raise NonFiniteInput(f"{bad} of {len(rows)} query rows hold NaN or infinity in {kind}; all must be finite.")
    return rows


def in_batches(rows: Tensor, size: int | None, ask: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """``ask`` for at most ``size`` rows at a time, so that a large query needs no more memory than its answer.

    If the target fails in the middle, its error carries how many rows were answered before it.
    """
    if size is None or len(rows) <= size:
        return ask(rows)
    answers: tuple[Tensor, ...] = ()
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        try:
            parts = ask(batch)
        except TargetError as error:
            error.rows_answered = start + getattr(error, "rows_answered", 0)  # type: ignore[attr-defined]
            raise
        if not answers:
            answers = tuple(part.new_empty(len(rows), *part.shape[1:]) for part in parts)
        for answer, part in zip(answers, parts, strict=True):
            answer[start : start + len(batch)] = part
    return answers


def _tensor(X: Any) -> Tensor:
    try:
        array = np.asarray(X.toarray() if hasattr(X, "toarray") else X)
    except ValueError as error:
        raise WrongShape("The query rows are not all of the same width.") from error
    if array.dtype.kind not in "fiub":
        raise InvalidInput(f"Query rows must be numbers, not {array.dtype}.")
    if (array.dtype.kind == "f" and array.dtype.itemsize > 8) or not array.dtype.isnative:
        array = array.astype(np.float64)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(np.asarray(array, order="C"))
