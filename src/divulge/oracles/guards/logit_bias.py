"""The largest log-probabilities after a bias that the client adds to some logits: how language models are served."""

from __future__ import annotations

import torch
from torch import Tensor

from divulge.core.errors import InvalidInput, WrongShape
from divulge.core.validation import checked_number
from divulge.oracles.base import Oracle
from divulge.oracles.guards.top_k import TopK
from divulge.oracles.outputs import outputs_shown
from divulge.oracles.rows import QueryRows

MOST_BIAS = 100.0
"""The largest bias that the common interfaces accept."""


class LogitBias(TopK):
    """The ``k`` largest log-probabilities, with a bias that the client adds to logits before they are computed.

    Without a bias it answers as ``TopK`` does in front of log-probabilities.

    Parameters
    ----------
    oracle : Oracle
        What the guard protects: a model with several outputs, logits or probabilities.
    k : int
        Outputs that the client sees, from 2 to all of them.

    Raises
    ------
    InvalidInput
        If ``k`` is not a whole number from 2 to ``oracle.output_dim``.

    Examples
    --------
    >>> import divulge
    >>> from divulge.oracles import LogitBias
    >>> endpoint = LogitBias(divulge.oracle(lambda X: X, input_shape=(4,)), k=2)
    >>> shown, log_probabilities = endpoint.biased([[0.0, 1.0, 2.0, 3.0]], [0, 1], bias=50.0)
    >>> shown, (log_probabilities[:, 0] - log_probabilities[:, 1]).round(decimals=6)
    (tensor([[1, 0]]), tensor([1.], dtype=torch.float64))
    """

    def __init__(self, oracle: Oracle, k: int) -> None:
        if oracle.output_dim < 2 or k < 2:
            raise InvalidInput(f"A logit bias tells outputs apart, at least 2 of them; got k={k}.")
        super().__init__(oracle, k)
        self.access = min(self.access, "value", key=("label", "value", "gradient").index)
        self.output_kind = "log-probabilities"

    def biased(self, X: QueryRows, outputs: object, bias: float) -> tuple[Tensor, Tensor]:
        """The largest outputs of each row after ``bias`` was added to some logits, and their log-probabilities.

        Parameters
        ----------
        X : tensor or array-like, [n, d]
            The rows to ask. Each counts as one value.
        outputs : sequence of int
            The outputs that the bias is added to, the same for every row.
        bias : float
            What is added, at most 100.

        Returns
        -------
        shown : Tensor of int64, [n, k]
            The outputs, the most probable first.
        log_probabilities : Tensor, [n, k]

        Raises
        ------
        AccessDenied, BudgetExhausted, NonFiniteAnswer
            As for ``value``.
        InvalidInput
            If the bias is larger, or there is no such output.
        """
        checked_number("bias", bias, at_least=-MOST_BIAS, at_most=MOST_BIAS)
        chosen = torch.as_tensor(outputs, dtype=torch.long, device=self.device).reshape(-1)
        if bool(((chosen < 0) | (chosen >= self.output_dim)).any()):
            raise WrongShape(f"The outputs that are biased lie between 0 and {self.output_dim - 1}.")
        rows = self._checked_rows(X, "value")
        self.ledger.charge("value", len(rows))
        try:
            logits = self._log_probabilities(rows)
        except BaseException as error:
            self._refund_unanswered("value", len(rows), error)
            raise
        logits[:, chosen] += bias
        top = torch.log_softmax(logits, dim=1).topk(self.k, dim=1)
        return top.indices, top.values

    def _value(self, X: Tensor) -> Tensor:
        return self._hide_small(self._log_probabilities(X))[0]

    def _log_probabilities(self, X: Tensor) -> Tensor:
        """Of all outputs [n, outputs]."""
        values = self._finite(self._count_and_get_oracle("value", len(X))._value(X), "value")
        shown = outputs_shown(values, self.threshold)
        if shown == "probabilities":
            return values.log()
        return values.clone() if shown == "log-probabilities" else torch.log_softmax(values, dim=1)
