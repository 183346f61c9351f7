"""What a span recovery hands back: the subspace a network listens to, the evidence for its dimension, and the bill."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from divulge.errors import InvalidInput, WrongShape
from divulge.oracles.base import Spent


@dataclass(frozen=True)
class Span:
    """The input subspace that a network depends on. Partial recovery is a result: read ``complete`` and ``notes``."""

    basis: Tensor
    """[k, d], orthonormal rows, float64."""
    singular_values: Tensor
    """Of the matrix of gradients (or normals), largest first, those below the threshold included where known."""
    gap: float
    """Smallest singular value kept over the largest one dropped: how clear the decision about the rank was."""
    threshold: float
    """Singular values at or below this were taken for rounding or noise."""
    curve: tuple[int, ...]
    """The rank after each sample (gradient or boundary normal), in the order they were asked."""
    ledger: Spent
    seed: int
    seconds: float
    method: str = "default"
    source: str = "gradients"
    invariance: float | None = None
    """Output change under moves inside the null space over that under equal moves anywhere; None if not checked."""
    complete: bool = True
    """False where there is reason to think that directions are missing; ``notes`` says which reason."""
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return int(self.basis.shape[0])

    @property
    def input_dim(self) -> int:
        return int(self.basis.shape[1])

    @property
    def queries(self) -> int:
        return self.ledger.total

    @property
    def evidence(self) -> dict[str, Any]:
        """Why this rank: the curve against samples, the singular values around the cut, and the checks."""
        return {
            "curve": list(self.curve),
            "singular_values": [float(value) for value in self.singular_values],
            "threshold": self.threshold,
            "gap": self.gap,
            "invariance": self.invariance,
            "complete": self.complete,
            "notes": list(self.notes),
        }

    def angles_to(self, reference: Span | Tensor) -> Tensor:
        """Principal angles in radians, smallest first, between this span and the reference's (a Span, or any rows)."""
        other = reference.basis if isinstance(reference, Span) else row_space(reference)
        return principal_angles(self.basis, other)

    def angle_to(self, reference: Span | Tensor) -> float:
        """The largest principal angle in radians: how far the worst direction lies from the reference span.

        With a partial span it says whether what was found is right; compare ``rank`` for what is missing.
        """
        angles = self.angles_to(reference)
        return float(angles[-1]) if len(angles) else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Everything but the basis, as plain values."""
        return {
            "rank": self.rank,
            "input_dim": self.input_dim,
            "queries": self.ledger.as_dict(),
            "seed": self.seed,
            "seconds": self.seconds,
            "method": self.method,
            "source": self.source,
            **self.evidence,
            "facts": self.facts,
        }

    def save(self, folder: str | Path) -> Path:
        """Write ``span.safetensors`` (the basis and singular values) and ``span.json`` (all the rest)."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {"basis": self.basis.cpu().contiguous(), "singular_values": self.singular_values.cpu().contiguous()}
        save_file(tensors, folder / "span.safetensors")
        (folder / "span.json").write_text(json.dumps(_json_ready(self.as_dict()), indent=2) + "\n")
        return folder


def load(folder: str | Path) -> Span:
    """The span that ``Span.save`` wrote."""
    from safetensors.torch import load_file

    folder = Path(folder)
    try:
        tensors = load_file(folder / "span.safetensors")
        told = json.loads((folder / "span.json").read_text())
        basis = tensors["basis"].to(torch.float64)
        asked = told["queries"]
        return Span(
            basis=basis,
            singular_values=tensors["singular_values"].to(torch.float64),
            gap=math.inf if told["gap"] is None else float(told["gap"]),
            threshold=float(told["threshold"]),
            curve=tuple(told["curve"]),
            ledger=Spent(**{kind: asked[kind] for kind in ("value", "gradient", "label", "requests")}),
            seed=told["seed"],
            seconds=told["seconds"],
            method=told["method"],
            source=told["source"],
            invariance=told["invariance"],
            complete=told["complete"],
            notes=tuple(told["notes"]),
            facts=told["facts"],
        )
    except FileNotFoundError as error:
        raise InvalidInput(
            f"{error.filename or folder} is not there; a saved span is a folder with span.safetensors and span.json."
        ) from error
    except Exception as error:  # a damaged file can fail in many ways; all mean the same to the user
        raise InvalidInput(f"{folder} does not hold a readable span: {error}.") from error


def row_space(rows: Tensor) -> Tensor:
    """An orthonormal basis [r, d] of the rows' span, with the rank that float64 can tell."""
    if rows.ndim != 2:
        raise WrongShape(f"A span needs a matrix of rows [k, d]; got a tensor of shape {tuple(rows.shape)}.")
    matrix = rows.detach().to(torch.float64)
    _, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    eps = torch.finfo(rows.dtype if rows.is_floating_point() else torch.float64).eps
    keep = int((s > (s[:1].sum() * eps * max(matrix.shape))).sum())
    basis: Tensor = vh[:keep]
    return basis


def principal_angles(first: Tensor, second: Tensor) -> Tensor:
    """Principal angles between two orthonormal bases, smallest first; accurate for tiny angles as for large ones."""
    if first.shape[1] != second.shape[1]:
        raise WrongShape(f"The spans live in different spaces: {first.shape[1]} and {second.shape[1]} inputs.")
    if len(first) == 0 or len(second) == 0:
        return first.new_zeros(0)
    if len(first) > len(second):
        first, second = second, first
    second = second.to(first)
    across = first @ second.T
    cosines = torch.linalg.svdvals(across).clamp(max=1.0)  # descending: smallest angle first
    sines = torch.linalg.svdvals(first - across @ second).clamp(max=1.0).flip(0)
    return torch.where(sines < 0.5, torch.arcsin(sines), torch.arccos(cosines))


def _json_ready(value: Any) -> Any:
    """Infinite numbers as null, tuples as lists: what strict JSON can hold."""
    if isinstance(value, dict):
        return {name: _json_ready(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_ready(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
