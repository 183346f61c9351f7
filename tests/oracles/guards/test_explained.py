"""captum's explanations as an endpoint's answer: absolute gradients by default, and integrated ones that add up."""

from __future__ import annotations

import builtins
from importlib.util import find_spec

import pytest
import torch
from torch import nn

import divulge
from divulge import models
from divulge.core.errors import InvalidInput, MissingPackage, UnsupportedModel
from divulge.models import MLP
from divulge.oracles.guards import Rounded, guard
from divulge.oracles.guards.explained import Explained

pytestmark = pytest.mark.skipif(find_spec("captum") is None, reason="needs captum")
X = torch.randn(15, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def target(**options):
    torch.manual_seed(0)
    return divulge.oracle(MLP([6, 12, 3], **options).double(), access="gradient")


@pytest.mark.slow
def test_saliency_is_the_absolute_gradient_unless_told_otherwise():
    values, gradients = target().gradient(X)
    shown, maps = Explained(target()).gradient(X)
    assert torch.equal(shown, values)
    torch.testing.assert_close(maps, gradients.abs())
    torch.testing.assert_close(Explained(target(), absolute=False).gradient(X)[1], gradients)
    torch.testing.assert_close(guard("saliency:signed")(target()).gradient(X)[1], gradients)


@pytest.mark.slow
def test_integrated_gradients_add_up_to_the_change_from_the_baseline():
    oracle = target(activation="tanh")
    values, maps = Explained(oracle, "integrated-gradients", steps=60, baseline=0.5).gradient(X)
    start = oracle.value(torch.full((1, 6), 0.5))
    torch.testing.assert_close(maps.sum(2), values - start, rtol=1e-4, atol=1e-5)


def test_what_the_owner_pays_is_counted():
    explained = Explained(target(), "integrated-gradients", steps=20)
    explained.gradient(X)
    assert explained.ledger.gradient == 15
    assert (explained.cost.value, explained.cost.gradient) == (15, 15 * 3 * 20)


def test_many_rows_are_explained_in_parts(monkeypatch):
    monkeypatch.setattr("divulge.oracles.guards.explained.ROWS_AT_ONCE", 4)
    torch.testing.assert_close(Explained(target()).gradient(X)[1], target().gradient(X)[1].abs())


def test_values_and_labels_pass_unchanged():
    assert torch.equal(Explained(target()).value(X), target().value(X))
    assert torch.equal(Explained(target()).label(X), target().label(X))


def test_pictures_are_explained_too():
    model = models.build("two-conv", shape=(1, 8, 8), filters=(2, 3), dense=6, dtype=torch.float64).eval()
    oracle = divulge.oracle(model, access="gradient")
    rows = torch.randn(3, 64, dtype=torch.float64)
    torch.testing.assert_close(Explained(oracle).gradient(rows)[1], oracle.gradient(rows)[1].abs())


def test_a_function_in_torch_is_explained_too():
    oracle = divulge.oracle(lambda rows: rows**2, input_shape=(6,), access="gradient")
    torch.testing.assert_close(Explained(oracle).gradient(X)[1], oracle.gradient(X)[1].abs())


def test_other_guards_stand_in_front_of_an_explanation_not_behind():
    rounded = Rounded(Explained(target()), 2)
    assert (rounded.gradient(X)[1] - target().gradient(X)[1].abs()).abs().max() <= 0.005 + 1e-12
    with pytest.raises(UnsupportedModel, match="Rounded"):
        Explained(Rounded(target(), 2))


def test_a_model_without_a_torch_graph_is_refused():
    with pytest.raises(UnsupportedModel, match="CallableOracle"):
        Explained(divulge.oracle(lambda rows: rows.astype(float), input_shape=(6,)))


@pytest.mark.parametrize("options", [{"method": "lime"}, {"steps": 0}, {"steps": 1.5}])
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(InvalidInput):
        Explained(target(), **options)


def test_a_missing_captum_names_the_extra(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **options):
        if name.startswith("captum"):
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingPackage, match=r"divulge\[explain\]"):
        Explained(divulge.oracle(nn.Linear(2, 1), access="gradient"))
