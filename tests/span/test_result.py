"""A Span measures angles exactly, survives being saved, and refuses what makes no sense."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from divulge.core.errors import InvalidInput, WrongShape
from divulge.oracles import Spent
from divulge.span import Span, load
from divulge.span.result import basis_of_rows, principal_angles


def span_of(basis: torch.Tensor) -> Span:
    return Span(
        basis=basis, singular_values=torch.ones(len(basis), dtype=torch.float64), gap=math.inf, threshold=1e-12,
        curve=(1, 2), ledger=Spent(gradient=3, value=4), seed=5, seconds=0.5, notes=("a note",), facts={"step": 0.1},
    )  # fmt: skip


@pytest.mark.parametrize("angle", [1e-13, 1e-9, 1e-4, 0.3, 1.2, math.pi / 2])
def test_the_angle_between_two_planes_is_right_from_tiny_to_right(angle: float) -> None:
    eye = torch.eye(6, dtype=torch.float64)
    turned = torch.stack([eye[0], math.cos(angle) * eye[1] + math.sin(angle) * eye[2]])
    generator = torch.Generator().manual_seed(0)
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    angles = principal_angles(eye[:2] @ rotation, turned @ rotation)
    assert float(angles[1]) == pytest.approx(angle, rel=1e-3, abs=3e-16)
    assert float(angles[0]) < 1e-7


def test_a_partial_span_inside_its_reference_is_at_angle_zero() -> None:
    rows = torch.randn(5, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = basis_of_rows(rows)
    assert span_of(whole[:3]).angle_to(rows) < 1e-14
    assert span_of(whole).angle_to(span_of(whole[:3])) < 1e-14
    assert span_of(whole[:0]).angle_to(rows) == 0.0


def test_the_row_space_of_dependent_rows_has_their_rank() -> None:
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    basis = basis_of_rows(torch.cat([rows, rows.sum(0, keepdim=True), torch.zeros(1, 8, dtype=torch.float64)]))
    assert basis.shape == (3, 8)
    assert torch.allclose(basis @ basis.T, torch.eye(3, dtype=torch.float64), atol=1e-14)


def test_a_saved_span_comes_back(tmp_path: Path) -> None:
    span = span_of(torch.eye(4, dtype=torch.float64)[:2])
    span.save(tmp_path / "s")
    back = load(tmp_path / "s")
    assert torch.equal(back.basis, span.basis)
    assert back.gap == math.inf
    assert (back.rank, back.input_dim, back.queries) == (2, 4, 7)
    assert back.as_dict() == span.as_dict()
    assert back.evidence["notes"] == ["a note"]


def test_a_folder_without_a_span_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"span\.safetensors"):
        load(tmp_path / "nowhere")
    span_of(torch.eye(4, dtype=torch.float64)[:2]).save(tmp_path)
    (tmp_path / "span.json").write_text("{}")
    with pytest.raises(InvalidInput, match="readable"):
        load(tmp_path)


def test_spans_of_different_spaces_cannot_be_compared() -> None:
    eye = torch.eye(4, dtype=torch.float64)
    with pytest.raises(WrongShape):
        span_of(eye[:2]).angle_to(torch.eye(5, dtype=torch.float64)[:2])
    with pytest.raises(WrongShape):
        basis_of_rows(torch.ones(3))
