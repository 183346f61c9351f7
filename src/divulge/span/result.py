"""The result of a span recovery: the subspace, the evidence for its dimension, and the claim that follows."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

from divulge.core.errors import InvalidInput, WrongShape
from divulge.core.result import AttackResult
from divulge.core.statistics import rate_at_most
from divulge.core.storage import write_json, write_tensors
from divulge.oracles.ledger import Spent
from divulge.oracles.region import Region

Structure = Literal["constant", "affine", "linear", "low rank", "full rank"]
DOUBT = 0.05
"""The chance that a claim about moves in the null space is wrong."""


@dataclass(frozen=True)
class Span(AttackResult):
    """The input subspace on which a network depends, at the inputs that were asked.

    A partial recovery is a result too: ``complete`` is then False and ``reason`` says why.

    Examples
    --------
    >>> import divulge
    >>> from divulge.training import margin
    >>> model = margin.network([30, 4, 2], first_scale=1.0, seed=0)
    >>> span = divulge.span.from_gradients(divulge.oracle(model, access="gradient"))
    >>> span.rank, span.success, span.structure
    (4, True, 'low rank')
    """

    basis: Tensor
    """Orthonormal rows [k, d] in float64."""
    singular_values: Tensor
    """Singular values of the matrix of gradients (or normals), largest first, in standardised coordinates."""
    gap: float
    """Smallest singular value kept over the largest one dropped."""
    threshold: float
    """Singular values at or below this were taken for rounding or noise."""
    curve: tuple[int, ...]
    """The rank after each sample (gradient or boundary normal), in the order they were asked."""
    source: str = "gradients"
    """Where directions came from: "gradients", "values" or "labels"."""
    invariance: float | None = None
    """Output change under moves inside the null space over that under equal moves anywhere; None if not checked."""
    complete: bool = True
    """False where there is reason to think that directions are missing."""
    moves: int = 0
    """Moves in the null space of this span that changed no answer."""
    outputs: int = 0
    """Independent outputs of the target that were used: the rank of a linear model. 0 where it is not known."""
    affine: bool | None = None
    """Whether all gradients were equal, to their precision; None where there are no gradients."""
    region: Region | None = field(default=None, repr=False)
    """Where the inputs lie that were asked; None for N(0, scale^2)."""

    @property
    def rank(self) -> int:
        """The number of directions found."""
        return int(self.basis.shape[0])

    @property
    def input_dim(self) -> int:
        """The number of inputs of the target."""
        return int(self.basis.shape[1])

    @property
    def success(self) -> bool:
        """Whether a span was found and nothing says that it is incomplete."""
        return self.complete and self.rank > 0

    @property
    def missed_share(self) -> float:
        """Upper limit, with 95 % confidence, of the share of moves in the null space that change an answer.

        It holds for inputs like those that were asked. It is 1 where no move was made.
        """
        return rate_at_most(0, self.moves, error=DOUBT) if self.moves else 1.0

    @property
    def structure(self) -> Structure:
        """What kind of model has this span.

        "constant" has no direction. "affine" means that all gradients were equal. "linear" means that one gradient
        query already spans everything, with no more directions than outputs: so it is in every linear, logistic or
        softmax regression, by construction. "low rank" is a null space that the number of outputs does not explain.
        "full rank" leaves no null space.
        """
        if self.rank == 0:
            return "constant"
        if self.affine:
            return "affine"
        at_once = self.outputs if self.source == "labels" else self.curve[0] if self.curve else 0
        if self.rank <= self.outputs and self.rank == at_once:
            return "linear"
        return "full rank" if self.rank == self.input_dim else "low rank"

    @property
    def claim(self) -> str:
        """What the result says, with its confidence, in one or two sentences."""
        where = "the Gaussian points asked" if self.region is None else "those given"
        text = f"At inputs like {where} the model depends on at least {self.rank} of {self.input_dim} directions."
        if self.rank == self.input_dim:
            return f"At inputs like {where} the model depends on all {self.input_dim} input directions."
        if not self.complete:
            return f"{text} {self.reason}"
        if not self.moves:
            return f"{text} Whether it depends on others was not tested."
        answer = "label at the decision boundary" if self.source == "labels" else "output"
        return (
            f"{text} {self.moves} moves in the other {self.input_dim - self.rank} changed no {answer}, so with 95 % "
            f"confidence fewer than {self.missed_share:.1%} of such moves do."
        )

    @property
    def evidence(self) -> dict[str, Any]:
        """The evidence for the rank as plain values."""
        return {
            "curve": list(self.curve),
            "singular_values": [float(value) for value in self.singular_values],
            "threshold": self.threshold,
            "gap": self.gap,
            "invariance": self.invariance,
            "moves": self.moves,
            "missed_share": self.missed_share,
            "structure": self.structure,
            "outputs": self.outputs,
            "affine": self.affine,
            "complete": self.complete,
            "reason": self.reason,
            "claim": self.claim,
            "notes": list(self.notes),
        }

    def angles_to(self, reference: Span | Tensor) -> Tensor:
        """Principal angles in radians, smallest first, to a reference: a Span, or rows [k, d]."""
        other = reference.basis if isinstance(reference, Span) else basis_of_rows(reference)
        return principal_angles(self.basis, other)

    def angle_to(self, reference: Span | Tensor) -> float:
        """The largest principal angle in radians to a reference: a Span, or rows [k, d].

        For a partial span it says whether the directions found are right. ``rank`` says how many are missing.
        """
        angles = self.angles_to(reference)
        return float(angles[-1]) if len(angles) else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Everything but the basis, as plain values."""
        own = {"rank": self.rank, "input_dim": self.input_dim, "source": self.source, **self.evidence}
        return super().as_dict() | own

    def save(self, folder: str | Path) -> Path:
        """Write ``span.safetensors`` (tensors), and everything else as ``span.json`` and ``result.json``."""
        folder = Path(folder)
        tensors = {"basis": self.basis, "singular_values": self.singular_values}
        if self.region is not None:
            tensors |= {"center": self.region.center, "scale": self.region.scale}
        write_tensors(folder / "span.safetensors", tensors)
        write_json(folder / "span.json", self.as_dict())
        return super().save(folder)

    def _arrays(self) -> dict[str, Any]:
        return {}  # they are in span.safetensors


def load(folder: str | Path) -> Span:
    """Load a span that ``Span.save`` wrote.

    Parameters
    ----------
    folder : str or Path
        The folder with span.safetensors and span.json.

    Returns
    -------
    Span
        The span.

    Raises
    ------
    InvalidInput
        The folder does not hold a readable span.

    Examples
    --------
    >>> import tempfile, divulge
    >>> from divulge.training import margin
    >>> oracle = divulge.oracle(margin.network([9, 2, 1], first_scale=1.0), access="gradient")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     divulge.span.load(divulge.span.from_gradients(oracle).save(folder)).rank
    2
    """
    folder = Path(folder)
    try:
        tensors = load_file(folder / "span.safetensors")
        stored = json.loads((folder / "span.json").read_text())
        basis = tensors["basis"].to(torch.float64)
        asked = stored["queries"]
        return Span(
            basis=basis,
            singular_values=tensors["singular_values"].to(torch.float64),
            gap=math.inf if stored["gap"] is None else float(stored["gap"]),
            threshold=float(stored["threshold"]),
            curve=tuple(stored["curve"]),
            ledger=Spent(**{kind: asked[kind] for kind in ("value", "gradient", "label", "requests")}),
            seed=stored["seed"],
            seconds=stored["seconds"],
            method=stored["method"],
            source=stored["source"],
            invariance=stored["invariance"],
            complete=stored["complete"],
            reason=stored.get("reason", ""),
            moves=stored.get("moves", 0),
            outputs=stored.get("outputs", 0),
            affine=stored.get("affine"),
            region=Region(tensors["center"], tensors["scale"]) if "center" in tensors else None,
            notes=tuple(stored["notes"]),
            facts=stored["facts"],
        )
    except FileNotFoundError as error:
        raise InvalidInput(
            f"{error.filename or folder} is not there; a saved span is a folder with span.safetensors and span.json."
        ) from error
    except Exception as error:  # a damaged file can fail in many ways; all mean the same to the user
        raise InvalidInput(f"{folder} does not hold a readable span: {error}.") from error


def basis_of_rows(rows: Tensor) -> Tensor:
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
