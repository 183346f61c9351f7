"""The copy on peeled layers: unseen entries of the last layer that samples tell are put in."""

import numpy as np
import torch

from divulge.extraction.layers.copy_on_layers import copy_on
from divulge.extraction.layers.known_layers import KnownLayers
from divulge.extraction.layers.layer_search import LayerSearch
from divulge.extraction.layers.query_space import QuerySpace
from divulge.extraction.layers.survey import Survey


class Network(QuerySpace):
    """Layers and an output that are asked directly."""

    def __init__(self, layers, above):
        super().__init__(layers.inputs)
        self.layers, self.above = layers, above

    def maps(self, Y):
        activation, _, jacobian = self.layers.maps(Y)
        return activation @ self.above.T, np.einsum("kh,nhd->nkd", self.above, jacobian)


def test_an_entry_that_no_kink_has_shown_is_told_by_samples_and_still_counts_as_unseen():
    rng = np.random.default_rng(160_001)
    first = KnownLayers(8).with_layer(rng.normal(size=(6, 8)), np.append(rng.normal(size=5), -4.0))  # seldom on
    weight, bias = rng.normal(size=(5, 6)), rng.normal(size=5)
    weight[1, 5], bias[1] = 0.8, 2.0  # the neuron is on at many rows where the unit is
    space = Network(first.with_layer(weight, bias), rng.normal(size=(1, 5)))
    survey = Survey(space)
    survey.add_points(rng.normal(size=(400, 8)))
    unseen = np.zeros(weight.shape, bool)
    unseen[1, 5] = True
    search = LayerSearch(survey, first, 3, rng)
    search.unseen[1] = unseen.copy()
    X, truth = torch.from_numpy(survey.data.Y), torch.from_numpy(survey.data.value)
    copy = copy_on(search, first.with_layer(np.where(unseen, 0.0, weight), bias), X, truth, rng)
    assert copy.widths == [6, 5]
    assert np.allclose(copy.layers.weights[1], weight)
    Y = rng.normal(size=(5000, 8))
    assert np.allclose(copy(Y), space.maps(Y)[0])
    assert (search.unseen[1] == unseen).all()
