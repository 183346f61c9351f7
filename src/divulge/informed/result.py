"""What an informed attack returns: the rebuilt record, whether it can be trusted, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from divulge.core.result import AttackResult
from divulge.training.recipe import ArrayLike


@dataclass(frozen=True)
class Candidate:
    """One of several records that explain a model equally well.

    Attributes
    ----------
    x : Tensor
        The features [d].
    y : float, int or list
        The label or target.
    misfit : float
        Lower for the more plausible record.
    """

    x: Tensor
    y: Any
    misfit: float


@dataclass(frozen=True)
class Record(AttackResult):
    """A training record rebuilt by someone who knew the others.

    Attributes
    ----------
    x : Tensor
        The features [d], in the units of the known rows; [m, d] where several records were unknown.
    y : label, number or list
        The label or target; a list where several records were unknown.
    predicted_error : float
        The mean squared error of ``x`` that the attack expects, in units of ``scale``; NaN where it cannot tell.
    trusted : bool
        False where the attack can tell that ``x`` is not, or may not be, the record; ``reason`` then says why.
    candidates : tuple of Candidate
        Every record that explains the model as well, ``x`` first, where there are several (Balle 2022, Theorem 8).
    training_runs : float
        How many runs of the training algorithm the attack cost.
    scale : Tensor or None
        The unit in which an error in each column is measured [d]: its spread over the known rows. None for 1.
    row : dict or None
        The record by column, for a table of mixed columns: None for a column that the model does not show. ``x`` and
        ``scale`` are then in the model's features.
    """

    x: Tensor
    y: Any
    predicted_error: float
    trusted: bool = True
    candidates: tuple[Candidate, ...] = ()
    training_runs: float = 0.0
    scale: Tensor | None = None
    row: dict[str, Any] | None = None

    @property
    def success(self) -> bool:
        """Whether the record is a reconstruction, as far as the attack can tell."""
        return self.trusted

    def error(self, truth: ArrayLike) -> float:
        """The mean squared error to the true record, in units of ``scale``, for an audit that knows it.

        Parameters
        ----------
        truth : array [d] or [m, d]
            The true record.

        Returns
        -------
        float
            The mean over columns of ((x - truth) / scale)^2.
        """
        import torch

        away = self.x - torch.as_tensor(truth, dtype=self.x.dtype).reshape(self.x.shape)
        return float((away if self.scale is None else away / self.scale).square().mean())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return super().as_dict() | {
            "x": self.x.tolist(),
            "y": self.y.tolist() if isinstance(self.y, Tensor) else self.y,
            "predicted_error": self.predicted_error,
            "trusted": self.trusted,
            "training_runs": self.training_runs,
            "candidates": [{"x": c.x.tolist(), "y": c.y, "misfit": c.misfit} for c in self.candidates],
            "scale": None if self.scale is None else self.scale.tolist(),
            **({} if self.row is None else {"row": self.row}),
        }
