"""What every attack hands back: whether it succeeded, why not, what it cost, and how to keep it.

The class of each attack's result adds what was taken (a model, a subspace, samples, a record) under its own names.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from divulge.core.html import table
from divulge.core.storage import write_arrays, write_json


@dataclass(frozen=True)
class Spent:
    """What a run cost: rows answered by kind, and requests sent to a remote target.

    Parameters
    ----------
    value, gradient, label : int, default 0
        Rows answered by ``Oracle.value``, ``Oracle.gradient`` and ``Oracle.label``.
    requests : int, default 0
        Inference requests sent to a remote target, retries included.

    Examples
    --------
    >>> from divulge.oracles import Spent
    >>> (Spent(value=10, label=5) - Spent(value=4)).as_dict()
    {'value': 6, 'gradient': 0, 'label': 5, 'total': 11, 'requests': 0}
    """

    value: int = 0
    gradient: int = 0
    label: int = 0
    requests: int = 0

    @property
    def total(self) -> int:
        """Rows of all kinds."""
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
        """The counts and their total, for JSON."""
        return {
            "value": self.value,
            "gradient": self.gradient,
            "label": self.label,
            "total": self.total,
            "requests": self.requests,
        }


@dataclass(frozen=True, kw_only=True)
class AttackResult:
    """The base of every attack's result.

    Parameters
    ----------
    method : str
        Which variant of the attack ran.
    seed : int
        The seed that fixes every random choice of the run.
    seconds : float
        How long it took.
    ledger : Spent
        What was asked of the target. An attack that holds the weights asks nothing.
    reason : str
        Why the attack did not succeed, in one sentence; empty if it did.
    notes : tuple of str
        What else is worth knowing about the run.
    facts : dict
        Further figures of this attack, by name.

    Examples
    --------
    >>> import divulge
    >>> oracle = divulge.oracle(lambda X: X @ [[1.0], [2.0]], access="value", input_shape=2)
    >>> stolen = divulge.extraction.from_values(oracle)
    >>> stolen.success, stolen.reason, stolen.ledger.gradient
    (True, '', 0)
    """

    method: str = ""
    seed: int = 0
    seconds: float = 0.0
    ledger: Spent = field(default_factory=Spent)
    reason: str = ""
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def success(self) -> bool:
        """Whether the attack got what it wanted."""
        return not self.reason

    @property
    def queries(self) -> int:
        """Rows asked of the target, of every kind."""
        return self.ledger.total

    def as_dict(self) -> dict[str, Any]:
        """The result without its large parts, as plain values for JSON."""
        return {
            "success": self.success,
            "method": self.method,
            "reason": self.reason,
            "queries": self.ledger.as_dict(),
            "seed": self.seed,
            "seconds": self.seconds,
            "notes": list(self.notes),
            "facts": dict(self.facts),
        }

    def save(self, folder: str | Path) -> Path:
        """Write ``result.json`` and, where the result holds arrays, ``arrays.npz``.

        Each file is written whole or not at all.

        Parameters
        ----------
        folder : str or Path
            Where to; it is made if it is not there.

        Returns
        -------
        Path
            The folder.
        """
        folder = Path(folder)
        arrays = self._arrays()
        if arrays:
            write_arrays(folder / "arrays.npz", arrays)
        write_json(folder / "result.json", self.as_dict())
        return folder

    def _arrays(self) -> dict[str, Any]:
        """The tensors and arrays among the fields."""
        import numpy as np
        import torch

        held = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        arrays = {name: value.detach().cpu().numpy() for name, value in held.items() if isinstance(value, torch.Tensor)}
        return arrays | {name: value for name, value in held.items() if isinstance(value, np.ndarray)}

    def _repr_html_(self) -> str:
        """What a notebook shows: a small table of the figures."""
        entries = self.as_dict()
        asked = {kind: rows for kind, rows in entries.pop("queries").items() if rows and kind != "total"}
        rows: list[tuple[object, object]] = [
            (name, value) for name, value in entries.items() if value is None or isinstance(value, str | int | float)
        ]
        rows.append(("queries", ", ".join(f"{count:,} {kind}" for kind, count in asked.items()) or "none"))
        rows += [("note", note) for note in self.notes[:5]]
        outcome = "succeeded" if self.success else "did not succeed"
        return table(f"{type(self).__name__}: {outcome}", [row for row in rows if row[1] != ""], most=25)
