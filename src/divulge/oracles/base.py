"""``Oracle``: the only way in which an attack queries a target. It counts every row and stops at its budget.

A subclass computes values, gradients and labels for a checked batch of rows. Everything that holds for every target
(shapes, finiteness, access, the ledger, the budget) is settled here, once.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from divulge.core.errors import (
    AccessDenied,
    InvalidInput,
    NonFiniteAnswer,
    NotDeterministic,
    UnknownAccess,
    UnsupportedModel,
)
from divulge.core.progress import tick
from divulge.core.validation import checked_seed
from divulge.oracles.arguments import check_size
from divulge.oracles.ledger import Kind, Ledger
from divulge.oracles.rows import QueryRows, all_finite, as_rows, check_finite_rows

Access = Literal["label", "value", "gradient", "weights"]
ACCESS_LEVELS: tuple[Access, ...] = ("label", "value", "gradient", "weights")  # each includes the ones before it
OutputKind = Literal["logits", "probabilities", "log-probabilities", "scores", "quantities"]
RANK: dict[Access, int] = {level: rank for rank, level in enumerate(ACCESS_LEVELS)}


class Oracle(ABC):
    """A target that counts its queries. The base of every oracle and guard.

    A gradient row counts once, as a gradient; the value that comes with it is free. Rows are charged before they are
    asked and given back if the target never answered them. The ledger therefore never shows less than what was asked.

    A subclass implements ``_value`` and, where it can, ``_gradient``, ``_label`` and ``_weights``. These methods
    receive checked rows [n, d] in the oracle's ``dtype``.

    Parameters
    ----------
    input_dim : int
        Numbers in one input, d.
    output_dim : int
        Numbers in one answer, k.
    access : {"label", "value", "gradient", "weights"}, default "value"
        What may be asked. Each level includes the ones before it.
    budget : int or None, default None
        The largest total number of rows. None sets no limit.
    dtype : torch.dtype, default torch.float64
        The number format of rows and answers.
    device : str or torch.device, default "cpu"
        Where rows and answers live.
    input_shape : sequence of int or None, default None
        The shape of one input; (d,) by default.
    threshold : float, default 0.0
        A single output above it means label 1: zero for a logit, one half for a probability.
    output_kind : {"logits", "probabilities", "log-probabilities", "scores", "quantities"}, default "scores"
        What the values mean. "scores" are decision values, or outputs whose meaning the model does not state;
        "quantities" are the predictions of a regression.
    vocabulary : int or None, default None
        How many whole numbers the model knows, where its inputs are the numbers of tokens.

    Examples
    --------
    >>> import torch
    >>> from divulge.oracles import Oracle
    >>> class Sum(Oracle):
    ...     def _value(self, X):
    ...         return X.sum(dim=1, keepdim=True)
    >>> oracle = Sum(input_dim=3, output_dim=1, budget=10)
    >>> oracle.value([[1.0, 2.0, 3.0]])
    tensor([[6.]], dtype=torch.float64)
    >>> oracle.ledger.value, oracle.ledger.remaining
    (1, 9)
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
        output_kind: OutputKind = "scores",
        vocabulary: int | None = None,
    ) -> None:
        check_access(access)
        check_size(input_dim, "input")
        check_size(output_dim, "answer")
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.access: Access = access
        self.dtype = dtype
        self.device = torch.device(device)
        self.input_shape: tuple[int, ...] = tuple(input_shape) if input_shape is not None else (input_dim,)
        self.threshold = threshold
        self.output_kind: OutputKind = output_kind
        self.vocabulary = vocabulary
        self.class_names: tuple[str, ...] = ()
        """The classes in the order of their labels, where the model names them."""
        self.ledger = Ledger(budget)

    # -- queries ------------------------------------------------------------------------------------------------------

    def value(self, X: QueryRows) -> Tensor:
        """The model's outputs.

        Parameters
        ----------
        X : tensor or array-like, [n, d] or [n, \\*input_shape]
            The rows to ask.

        Returns
        -------
        Tensor, [n, k]

        Raises
        ------
        AccessDenied
            If the access level does not cover values.
        BudgetExhausted
            If the budget does not cover the rows. Nothing is asked then.
        NonFiniteAnswer
            If the model answers NaN or infinity. The rows count.
        """
        rows = self._checked_rows(X, "value")
        count = rows.size(0)
        self.ledger.charge("value", count)
        try:
            return self._finite(self._value(rows), "value", rows)
        except BaseException as error:
            self._refund_unanswered("value", count, error)
            raise

    def gradient(self, X: QueryRows) -> tuple[Tensor, Tensor]:
        """The model's outputs, and the gradient of each output with respect to the input.

        Parameters
        ----------
        X : tensor or array-like, [n, d] or [n, \\*input_shape]
            The rows to ask.

        Returns
        -------
        values : Tensor, [n, k]
        gradients : Tensor, [n, k, d]

        Raises
        ------
        AccessDenied, BudgetExhausted, NonFiniteAnswer
            As for ``value``.
        """
        rows = self._checked_rows(X, "gradient")
        count = rows.size(0)
        self.ledger.charge("gradient", count)
        try:
            values, gradients = self._gradient(rows)
            return self._finite(values, "value", rows), self._finite(gradients, "gradient")
        except BaseException as error:
            self._refund_unanswered("gradient", count, error)
            raise

    def label(self, X: QueryRows) -> Tensor:
        """The model's decisions: the index of the largest output, or whether a single output is above ``threshold``.

        Parameters
        ----------
        X : tensor or array-like, [n, d] or [n, \\*input_shape]
            The rows to ask.

        Returns
        -------
        Tensor of int64, [n]

        Raises
        ------
        BudgetExhausted, NonFiniteAnswer
            As for ``value``.
        """
        rows = self._checked_rows(X, "label")
        count = rows.size(0)
        self.ledger.charge("label", count)
        try:
            return self._label(rows)
        except BaseException as error:
            self._refund_unanswered("label", count, error)
            raise

    def weights(self) -> nn.Module:
        """A copy of the model as a torch module, for the holder of the weights. Nothing is charged.

        Raises
        ------
        AccessDenied
            If the access level is below "weights".
        UnsupportedModel
            If the target has no weights that torch can hold.
        """
        if not self.allows("weights"):
            raise AccessDenied(f'This oracle grants {self.access} access only; build it with access="weights".')
        return self._weights()

    def renewed(self) -> Oracle:
        """The same target behind a new ledger with the same budget; the model is not copied again."""
        again = copy.copy(self)
        again.ledger = Ledger(self.ledger.budget)
        return again

    def allows(self, kind: Access) -> bool:
        """Whether the access level covers this kind of query."""
        return RANK[kind] <= RANK[self.access]

    @property
    def eps(self) -> float:
        """Relative size of one rounding error in the answers' number format."""
        return float(torch.finfo(self.dtype).eps)

    def check_deterministic(self, seed: int = 0) -> None:
        """Ask one random row twice. Both rows are charged.

        Parameters
        ----------
        seed : int, default 0
            Fixes the row.

        Raises
        ------
        NotDeterministic
            If the two answers differ.
        """
        row = torch.randn(1, self.input_dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        ask = self.value if self.allows("value") else self.label
        first, second = ask(row), ask(row)
        if not torch.equal(first, second):
            gap = float((first - second).abs().max())
            raise NotDeterministic(
                f"The model answered one row differently twice (by {gap:.3g}). Put it in evaluation mode, or treat it "
                "as noisy."
            )

    # -- what a subclass implements -----------------------------------------------------------------------------------

    @abstractmethod
    def _value(self, X: Tensor) -> Tensor:
        """Outputs [n, k] for checked rows."""

    def _gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [n, k] and gradients [n, k, d] for checked rows."""
        raise AccessDenied(f"{type(self).__name__} cannot answer gradients of this target; ask for values instead.")

    def _label(self, X: Tensor) -> Tensor:
        """Decisions [n] for checked rows."""
        return decide(self._finite(self._value(X), "value", X), self.threshold)

    def _weights(self) -> nn.Module:
        """A copy of the model as a torch module."""
        raise UnsupportedModel(f"{type(self).__name__} has no weights to show; ask it for answers instead.")

    def _forward(self, X: Tensor) -> Tensor:
        """Outputs [n, k] that torch can differentiate, for guards that explain the model on its owner's side."""
        raise UnsupportedModel(f"{type(self).__name__} has no torch graph that an explanation could be computed from.")

    _propagates_nonfinite = False
    """True where NaN or infinity in a row always reaches the answer. Checking the answers then checks the rows too."""

    # -- checks -------------------------------------------------------------------------------------------------------

    def _checked_rows(self, X: QueryRows, kind: Kind) -> Tensor:
        """The rows as a tensor, once access, shape and finiteness are checked."""
        tick()
        if not self.allows(kind):
            raise AccessDenied(
                f"This oracle grants {self.access} access, which does not cover {kind} queries; build it with "
                f'access="{kind}" if the attacker you have in mind can see that.'
            )
        rows = as_rows(X, self.input_dim, self.dtype, self.device)
        return rows if self._propagates_nonfinite else check_finite_rows(rows)

    def _refund_unanswered(self, kind: Kind, rows: int, error: BaseException) -> None:
        """Refund the rows that the target never answered."""
        if not isinstance(error, NonFiniteAnswer):  # an answer of NaN was an answer
            self.ledger.refund(kind, rows - getattr(error, "rows_answered", 0))

    def _finite(self, answer: Tensor, what: str, rows: Tensor | None = None) -> Tensor:
        """The answer again, or NonFiniteAnswer; NonFiniteInput if the rows themselves are not finite."""
        if not all_finite(answer):
            if rows is not None:
                check_finite_rows(rows)
            bad = int((~torch.isfinite(answer)).flatten(1).any(dim=1).sum())
            raise NonFiniteAnswer(
                f"The model answered NaN or infinity for the {what} of {bad} of {len(answer)} rows; check its weights "
                "and the range of its inputs."
            )
        return answer


def check_oracle_and_seed(oracle: object, seed: object) -> int:
    """The seed as an int, once it is a whole number and ``oracle`` is an Oracle. Every attack calls this first."""
    if not isinstance(oracle, Oracle):
        raise InvalidInput(
            f"An attack asks through an oracle, and this is a {type(oracle).__name__}; wrap it: divulge.oracle(model, "
            "access=...)."
        )
    return checked_seed(seed)


def check_access(access: str) -> None:
    """Raise UnknownAccess unless ``access`` is one of ``ACCESS_LEVELS``."""
    if access not in ACCESS_LEVELS:
        raise UnknownAccess(f"There is no access level {access!r}; choose one of {', '.join(ACCESS_LEVELS)}.")


def decide(values: Tensor, threshold: float = 0.0) -> Tensor:
    """Labels [n] from outputs [n, k]: the index of the largest, or whether a single one is above the threshold."""
    if values.shape[1] == 1:
        return (values[:, 0] > threshold).long()
    return values.argmax(dim=1)
