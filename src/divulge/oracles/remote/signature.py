"""What is known of a remote model before it is queried: its tensors, their shapes and number formats.

A protocol reads a ``Signature`` from the server's metadata; ``complete`` adds what the user says and checks the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray

from divulge.core.errors import AccessDenied, InvalidInput, UnsupportedModel
from divulge.oracles.base import Access
from divulge.oracles.ledger import Kind

Array = NDArray[Any]
DATATYPES = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}  # number formats of rows and values
TORCH_TYPES = {"FP16": torch.float16, "FP32": torch.float32, "FP64": torch.float64}
UNKNOWN_WIDTH = 1000  # outputs that a model may have before its first answer shows their number


@dataclass(frozen=True)
class Signature:
    """The tensors of a remote model. A field is None where neither the server nor the user said."""

    identity: dict[str, Any]  # what distinguishes this model from others, for the journal
    input_shape: tuple[int, ...] | None = None
    output_dim: int | None = None
    input_name: str = "input"
    input_datatype: str = "FP64"
    output: str | None = None
    output_datatype: str | None = None
    gradient: str | None = None
    label: str | None = None
    labels_only: bool = False
    threshold: float = 0.0  # above it a single output means label 1
    max_rows: int | None = None
    binary: bool = False

    def output_names(self, kind: Kind) -> list[str | None]:
        """The names of the tensors that answer a query, in order; None for the only tensor there is."""
        return {"value": [self.output], "gradient": [self.output, self.gradient], "label": [self.label]}[kind]

    def max_numbers(self, kind: Kind, rows: Array) -> int:
        """The most numbers that an honest answer to these rows can hold."""
        width = self.output_dim or UNKNOWN_WIDTH
        return len(rows) * (width * (1 + rows.shape[1]) if kind == "gradient" else width)

    @property
    def dtype(self) -> torch.dtype:
        """The coarser of the announced number formats."""
        names = (self.input_datatype, self.output_datatype)
        announced = [TORCH_TYPES[name] for name in names if name in TORCH_TYPES]
        return max(announced, key=lambda dtype: torch.finfo(dtype).eps)


@dataclass(frozen=True)
class TensorNames:
    """The tensors that the user named; None leaves the choice to the server's metadata."""

    input: str | None = None
    output: str | None = None
    gradient: str | None = None
    label: str | None = None


def complete(
    signature: Signature,
    url: str,
    *,
    access: Access,
    input_shape: Sequence[int] | None,
    output_dim: int | None,
    has_explain: bool,
) -> Signature:
    """The signature with the user's word added, once it covers the access that was asked for."""
    if access == "weights":
        raise AccessDenied("A remote model does not hand out its weights; choose label, value or gradient access.")
    if signature.labels_only and access != "label":
        raise AccessDenied(f'{url} answers labels only; build the oracle with access="label".')
    if access == "gradient" and signature.gradient is None and not has_explain:
        raise AccessDenied(
            f"{url} announces no output that holds gradients; name it with gradient_output= if there is one."
        )
    if input_shape is not None:
        signature = replace(signature, input_shape=tuple(int(extent) for extent in input_shape))
    if not signature.input_shape or min(signature.input_shape) < 1:
        raise InvalidInput(f"{url} does not say what one input looks like; pass input_shape=(...), such as (64,).")
    if output_dim is not None:
        if signature.output_dim not in (None, output_dim):
            raise InvalidInput(
                f"The model announces {signature.output_dim} outputs, and output_dim={output_dim} was given."
            )
        return replace(signature, output_dim=output_dim)
    only_labels = signature.labels_only or (access == "label" and signature.label is not None)
    return replace(signature, output_dim=1) if signature.output_dim is None and only_labels else signature


def checked_dtype(signature: Signature, url: str, dtype: torch.dtype | None, precision: str) -> torch.dtype:
    """The number format of the oracle: the user's, or the announced one."""
    chosen = dtype if dtype is not None else signature.dtype
    if chosen not in TORCH_TYPES.values():
        raise InvalidInput(f"dtype is torch.float16, float32 or float64, not {dtype}.")
    if precision == "double" and chosen != torch.float64:
        raise UnsupportedModel(
            f'{url} answers in {str(chosen).removeprefix("torch.")}; precision="double" needs a server that computes '
            "in FP64."
        )
    return chosen
