"""The format of released weights, and the size of its rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from divulge.reconstruction.known_start import precision

W = torch.randn(60, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 8


def levels(W: Tensor, largest: int, *, by_row: bool) -> Tensor:
    """The weights rounded to multiples of a step, one for all or one for each row."""
    step = (W.abs().amax(dim=1, keepdim=True) if by_row else W.abs().max()) / largest
    return (W / step).round() * step


RELEASED = {
    "float64": W,
    "float32": W.float().double(),
    "float16": W.half().double(),
    "bfloat16": W.bfloat16().double(),
    "few levels": levels(W, 127, by_row=False).float().double(),
    "few levels, by row": levels(W, 127, by_row=True).float().double(),
    "few levels, 4 bits": levels(W, 7, by_row=True).float().double(),
}


@pytest.mark.parametrize("form", RELEASED)
def test_the_format_is_told_from_the_values(form: str) -> None:
    assert precision.stored(RELEASED[form]) == form.split(",")[0]


@pytest.mark.parametrize("form", [form for form in RELEASED if form != "float64"])
def test_the_rounding_has_the_size_that_is_told(form: str) -> None:
    released = RELEASED[form]
    share = float((released - W).norm() / precision.rounding(released).norm())
    assert 0.9 < share < 1.1


def test_few_weights_are_not_taken_for_levels() -> None:
    assert precision.stored(W[:4, :5].float().double()) == "float32"
