"""Programs that ``torch.export`` wrote (``.pt2`` files) as torch modules.

An exported program has no training mode to switch, and its batch size may be fixed. ``ExportedModule`` hides both: it
pads a batch to the fixed size and cuts the answer back.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from divulge.core.errors import InvalidInput, UnsupportedModel


class ExportedModule(nn.Module):
    """An exported program that answers any number of rows. ``rows`` is its fixed batch size, or None."""

    def __init__(self, program: nn.Module, input_shape: tuple[int, ...], rows: int | None) -> None:
        super().__init__()
        self.program = program
        self.input_shape = input_shape
        self.rows = rows

    def train(self, mode: bool = True) -> ExportedModule:
        """Do nothing: the program is fixed in the mode in which it was exported."""
        return self

    def forward(self, X: Tensor) -> Tensor:
        if self.rows is None:
            out: Tensor = self.program(X)
            return out
        answers = []
        for batch in torch.split(X, self.rows):
            padding = (0, 0) * (X.ndim - 1) + (0, self.rows - len(batch))
            answers.append(self.program(nn.functional.pad(batch, padding))[: len(batch)])
        return torch.cat(answers)


def load_exported(path: Path) -> ExportedModule:
    """The program in a ``.pt2`` file. It must take one tensor of floating-point numbers, rows first."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.load(path)
            program = exported.module()
    except Exception as error:  # a damaged archive can fail in many ways
        fault = next(iter(str(error).splitlines()), "")
        raise InvalidInput(f"{path} cannot be loaded: {type(error).__name__}: {fault}") from error
    names = exported.graph_signature.user_inputs
    inputs = [n.meta["val"] for n in exported.graph.nodes if n.op == "placeholder" and n.name in names]
    if len(inputs) != 1 or not isinstance(inputs[0], Tensor) or not inputs[0].is_floating_point():
        raise UnsupportedModel(
            f"{path.name} takes {len(inputs)} inputs ({', '.join(map(str, names))}); one tensor of floating-point "
            "numbers is expected. Export a module that takes one."
        )
    extents = [int(extent) if isinstance(extent, int) else None for extent in inputs[0].shape]
    if len(extents) < 2 or None in extents[1:]:
        raise UnsupportedModel(
            f"{path.name} takes inputs of the shape {list(inputs[0].shape)}; rows first, and then fixed extents, are "
            "expected. Export it with only the first dimension dynamic."
        )
    return ExportedModule(program, tuple(extent for extent in extents[1:] if extent is not None), extents[0])
