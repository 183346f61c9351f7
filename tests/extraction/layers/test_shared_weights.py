"""Units that share weights share their side: a convolution wider than its input is turned, and copied exactly."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import divulge
from divulge.extraction import from_gradients
from divulge.extraction.layers.known_layers import KnownLayers
from divulge.extraction.layers.query_space import QuerySpace
from divulge.extraction.layers.shared_weights import shared_signs
from divulge.extraction.layers.survey import Survey

INPUTS, PLACES = 10, 8


class Convolution(QuerySpace):
    """Filters of three weights on ten inputs, eight units each, and a dense layer of five on them."""

    def __init__(self, filters: int = 2) -> None:
        super().__init__(INPUTS)
        rng = np.random.default_rng(0)
        kernels = np.array([[0.5, -0.7, 0.4], [0.3, 0.6, -0.8], [-0.9, -0.2, 0.1]])
        weight = np.zeros((filters * PLACES, INPUTS))
        for unit in range(filters * PLACES):
            weight[unit, unit % PLACES : unit % PLACES + 3] = kernels[unit // PLACES]
        weight /= np.linalg.norm(weight, axis=1, keepdims=True)
        self.first_layer = KnownLayers(INPUTS).with_layer(weight, np.repeat([0.2, -0.1, -0.4][:filters], PLACES))
        self.layers = self.first_layer.with_layer(rng.normal(size=(5, filters * PLACES)), rng.normal(size=5))
        self.weight = rng.normal(size=(2, 5))

    def maps(self, Y):
        activation, _, jacobian = self.layers.maps(Y)
        return activation @ self.weight.T, np.einsum("kh,nhd->nkd", self.weight, jacobian)


@pytest.mark.parametrize(("filters", "points"), [(2, 60), (3, 4000)])  # half of 24 units span all inputs
def test_all_units_of_a_filter_are_turned_at_once(filters, points):
    space, rng = Convolution(filters), np.random.default_rng(1)
    survey = Survey(space)
    survey.add_points(rng.normal(size=(points, INPUTS)))
    weight, bias, _ = space.first_layer.stack[0]
    turned = rng.choice([-1.0, 1.0], size=len(bias))
    sign = shared_signs(survey, weight * turned[:, None], bias * turned)
    assert sign is not None
    assert (sign == turned).all()


def test_rows_that_share_nothing_are_left_alone():
    space, rng = Convolution(), np.random.default_rng(1)
    survey = Survey(space)
    survey.add_points(rng.normal(size=(60, INPUTS)))
    assert shared_signs(survey, rng.normal(size=(16, INPUTS)), rng.normal(size=16)) is None


def test_a_unit_that_is_missing_is_noticed():
    space, rng = Convolution(), np.random.default_rng(1)
    survey = Survey(space)
    survey.add_points(rng.normal(size=(60, INPUTS)))
    weight, bias, _ = space.first_layer.stack[0]
    assert shared_signs(survey, weight[1:], bias[1:]) is None


class Picture(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), 1, 8, 8)


@pytest.mark.slow
def test_a_convolution_followed_by_dense_layers_is_copied_exactly():
    torch.manual_seed(900)
    model = nn.Sequential(
        Picture(), nn.Conv2d(1, 3, 3, stride=2), nn.ReLU(), nn.AvgPool2d(2, 1), nn.Flatten(), nn.Linear(12, 10),
        nn.ReLU(), nn.Linear(10, 3),
    ).double()  # fmt: skip
    stolen = from_gradients(divulge.oracle(model, access="gradient", input_shape=(64,)), seed=0)
    assert stolen.exact, stolen.reason
    assert stolen.widths == [27, 10]
    X = 3 * torch.randn(5000, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        assert float((model(X) - stolen.model(X)).abs().max()) < 1e-9
