"""What a span claims holds, for models whose answers hide directions: raw units, trees, flat regions, linear models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import divulge
from divulge.core.errors import AttackFailed, InvalidInput
from divulge.oracles import Region
from divulge.span import Span, from_gradients, from_labels, load

from .networks import first_layer, network

WINE = load_wine()
CANCER = load_breast_cancer()


def recover(model: Any, access: Any, **options: Any) -> Span:
    attack = from_labels if access == "label" else from_gradients
    return attack(divulge.oracle(model, access=access), **options)


# -- where inputs lie -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wine() -> Any:
    """A network on raw columns, which range from 0.1 to 1,700."""
    return make_pipeline(StandardScaler(), MLPClassifier((20,), max_iter=1000, random_state=0)).fit(
        WINE.data, WINE.target
    )


@pytest.mark.slow
@pytest.mark.parametrize("access", ["gradient", "value", "label"])
def test_a_model_in_raw_units_shows_all_directions_where_its_data_lies(wine: Any, access: Any) -> None:
    assert recover(wine, access, inputs=WINE.data).rank == 13
    if access != "label":
        assert recover(wine, access).rank < 13  # at N(0, 1) most of its units are constant


@pytest.mark.parametrize("access", ["gradient", "value", "label"])
def test_a_span_found_in_a_region_is_in_the_units_of_the_model(access: Any) -> None:
    model = network([12, 4, 8, 3], 0, activation="tanh")
    center, scale = torch.linspace(-50, 50, 12).double(), torch.logspace(-2, 3, 12).double()
    with torch.no_grad():
        model[0].weight /= scale
        model[0].bias -= model[0].weight @ center
    region = Region(center, scale)
    span = recover(model, access, inputs=region)
    assert span.rank == 4
    assert span.complete
    assert span.angle_to(first_layer(model)) < 1e-3
    assert span.region is not None
    x = region.to_inputs(torch.randn(20, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    noise = torch.randn(20, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * scale
    noise = noise - (noise @ span.basis.T) @ span.basis
    assert torch.allclose(model(x + noise), model(x), atol=1e-3)


def test_a_region_survives_being_saved(wine: Any, tmp_path: Any) -> None:
    span = recover(wine, "gradient", inputs=WINE.data)
    back = load(span.save(tmp_path))
    assert back.region is not None
    assert torch.allclose(back.region.center, torch.tensor(WINE.data.mean(axis=0)))
    assert back.as_dict() == span.as_dict()


# -- claims ----------------------------------------------------------------------------------------------------------


def test_moves_follow_from_the_risk_and_the_claim_states_it() -> None:
    model = network([30, 5, 3], 0)
    quick, careful = (recover(model, "gradient", risk=risk) for risk in (0.4, 0.05))
    assert quick.moves == 6
    assert careful.moves == 59
    assert quick.missed_share == pytest.approx(0.393, abs=1e-3)
    assert careful.missed_share < 0.05
    assert "95 % confidence fewer than 5.0% of such moves do" in careful.claim
    with pytest.raises(InvalidInput, match="risk"):
        recover(model, "gradient", risk=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_labels_verify_the_null_space_at_the_boundary(seed: int) -> None:
    model = network([24, 16, 8, 3], seed, activation="tanh")
    span = recover(model, "label", seed=seed)
    assert span.complete == (span.rank == 16)
    assert span.moves == (59 if span.complete else 0)
    assert span.success == span.complete


@pytest.mark.slow
def test_a_direction_that_random_slices_rarely_show_is_not_called_absent() -> None:
    class Gated(nn.Module):
        """The first two inputs decide; a third one only where the first is large, a fifth of the boundary."""

        input_shape = (30,)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            gate = torch.sigmoid(8 * (x[:, 0] - 1.0))
            return (x[:, 1] + 0.3 * torch.tanh(x[:, 0]) + gate * torch.tanh(x[:, 2]))[:, None]

    spans = [recover(Gated(), "label", tries=64, seed=seed) for seed in range(6)]
    assert all(span.rank == 3 or not span.complete for span in spans)


@pytest.mark.slow
def test_a_rank_that_cannot_be_verified_is_partial_and_says_so() -> None:
    digits = divulge.datasets.load("digits")
    recipe = divulge.Recipe(widths=[64, 16, 10], activation="tanh", learning_rate=0.05, momentum=0.9, epochs=15,
                            batch_size=64, seed=1)  # fmt: skip
    span = recover(recipe.train(*digits.train), "label", seed=1)
    assert span.rank < 16
    assert not span.success
    assert "still change outside" in span.reason
    assert span.reason in span.claim


@pytest.mark.parametrize("access", ["gradient", "value"])
def test_units_that_are_off_where_it_was_asked_are_outside_the_claim(access: Any) -> None:
    model = network([30, 6, 4], 0)
    with torch.no_grad():
        model[0].bias[:3] = -6.0  # off at every Gaussian point
    span = recover(model, access, risk=0.05)
    assert span.rank == 3
    assert "At inputs like the Gaussian points asked" in span.claim
    assert "at least 3 of 30" in span.claim
    far = Region(torch.zeros(30).double(), 12 * torch.ones(30).double())
    assert recover(model, access, inputs=far).rank == 6


# -- models without a gradient ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_trees_are_said_to_be_piecewise_constant_not_constant() -> None:
    model = GradientBoostingClassifier(n_estimators=20, random_state=0).fit(CANCER.data, CANCER.target)
    with pytest.raises(AttackFailed, match="piecewise constant"):
        recover(model, "value", inputs=CANCER.data)
    span = recover(model, "label", inputs=CANCER.data)
    used = np.flatnonzero(model.feature_importances_)
    assert span.rank <= len(used)
    assert float(span.basis.square().sum(dim=0)[used].sum()) == pytest.approx(span.rank)


@pytest.mark.parametrize("access", ["gradient", "value"])
def test_saturated_units_are_said_to_be_piecewise_constant(access: Any) -> None:
    model = network([30, 6, 4], 0, activation="tanh")
    with torch.no_grad():
        model[0].weight *= 1e5
    with pytest.raises(AttackFailed, match="piecewise constant"):
        recover(model, access)


@pytest.mark.parametrize("access", ["gradient", "value", "label"])
def test_constant_models_have_no_span(access: Any) -> None:
    model = network([30, 6, 4], 0)
    with torch.no_grad():
        model[-1].weight.zero_()
    with pytest.raises(AttackFailed, match=r"constant there|never changed"):
        recover(model, access)


# -- linear or surprising ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("access", ["gradient", "value", "label"])
def test_a_logistic_regression_is_told_from_a_network_of_rank_one(access: Any) -> None:
    inputs = CANCER.data / CANCER.data.std(axis=0)
    model = LogisticRegression(max_iter=5000).fit(inputs, CANCER.target)
    span = recover(model, access)
    assert span.rank == 1
    assert span.structure == ("linear" if access == "label" else "affine")  # its oracle shows logits
    probabilities = divulge.oracle(lambda X: torch.tensor(model.predict_proba(X)[:, 1]), input_shape=(30,))
    assert from_gradients(probabilities, inputs=inputs).structure == "linear"


@pytest.mark.parametrize("access", ["gradient", "value", "label"])
def test_a_softmax_regression_has_no_more_directions_than_classes(access: Any) -> None:
    model = LogisticRegression(max_iter=5000).fit(WINE.data / WINE.data.std(axis=0), WINE.target)
    span = recover(model, access)
    assert span.rank in (2, 3)  # its rows add up to zero but for rounding
    assert span.structure in ("affine", "linear")


def test_structures_of_torch_models() -> None:
    assert recover(nn.Linear(20, 3).double(), "gradient").structure == "affine"
    assert recover(nn.Linear(20, 3).double(), "value").structure == "affine"
    assert recover(network([20, 4, 3], 0), "gradient").structure == "low rank"
    assert recover(network([20, 4, 3], 0), "value").structure == "low rank"
    assert recover(network([20, 40, 3], 0), "gradient").structure == "full rank"
    assert recover(network([20, 4, 8, 3], 0, activation="tanh"), "label").structure == "low rank"
