"""A result travels: to safetensors, to ONNX, to JSON, and back as a module."""

from __future__ import annotations

import json

import pytest
import torch

import divulge
from divulge.extraction import from_gradients
from divulge.models import ReluNetwork, load


@pytest.fixture(scope="module")
def stolen():
    g = torch.Generator().manual_seed(0)
    model = ReluNetwork(*(torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((7, 12), (7,), (2, 7))))
    return from_gradients(divulge.oracle(model, access="gradient"))


def test_safetensors_and_back_bit_for_bit(stolen, tmp_path):
    again = load(stolen.save(tmp_path))
    X = torch.randn(9, 12, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(again(X), stolen.model(X))


def test_onnx_runs_and_agrees(stolen, tmp_path):
    pytest.importorskip("onnxruntime")
    oracle = divulge.oracle(str(stolen.to_onnx(tmp_path / "copy.onnx")))
    X = torch.randn(9, 12, dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(oracle.value(X).double(), stolen.model(X), atol=1e-12)


def test_figures_are_plain_json(stolen):
    figures = json.loads(json.dumps(stolen.as_dict()))
    assert figures["exact"] is True
    assert figures["queries"]["total"] == stolen.queries
    assert figures["worst_error"] < 1e-9
