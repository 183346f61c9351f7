"""The copy on top of peeled layers: the output, and what peeling cannot see of the last layer.

A neuron of the last layer that is always on has no kink: identity units carry it. One that is almost never on has few:
samples that contradict the output tell it (``residual_units.py``).
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from divulge.extraction.layers.deep_copy import DeepCopy
from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.layer_search import LayerSearch, has_identity, with_identity
from divulge.extraction.layers.output_fit import CARRIED, OutputFit, fit_output, with_fewest_units
from divulge.extraction.layers.residual_units import WRONG, WRONG_ERRORS, bounded, residual_units, with_units
from divulge.extraction.layers.survey import Survey

MANY_CONTRADICT = 120
COPY_ROWS, DISTANCES = 4000, (1.0, 5.0, 25.0, 100.0)
"""Rows, and their distances, at which neurons that are always on stay on in the copy."""


def copy_on(search: LayerSearch, layers: KnownLayers, X: Tensor, truth: Tensor, rng: np.random.Generator) -> DeepCopy:
    """The copy; ``X`` [n, d] and ``truth`` [n, k] are all rows that were asked, and their answers."""
    survey = search.survey
    layers, output = _output(survey, layers, rng)
    last = len(layers) - 1
    units = residual_units(survey, layers, output) if len(layers) else []
    if units:
        units = bounded(units, _where_off(survey, layers, output, X.numpy(), truth.numpy()))
        place = search.append_unseen(last, np.array([~unit.known for unit in units]))
        layers, output = with_units(layers, output, units, place)
    if has_identity(layers):
        layers, output, search.unseen[last] = with_fewest_units(
            layers, output, search.unseen[last], survey.space.accuracy.at_least(CARRIED, 1e4)
        )
    rows = rng.normal(size=(COPY_ROWS, survey.space.inputs)) * rng.choice(DISTANCES, size=(COPY_ROWS, 1))
    return DeepCopy.of(survey.space, layers, output, np.concatenate([survey.data.Y, survey.space.from_inputs(rows)]))


def _output(survey: Survey, layers: KnownLayers, rng: np.random.Generator) -> tuple[KnownLayers, OutputFit]:
    """The output; if many samples contradict it, with the linear part that an always-on neuron leaves."""
    output = fit_output(survey, layers, rng)
    if len(output.contradicting) > MANY_CONTRADICT and len(layers):
        wider = with_identity(layers)
        again = fit_output(survey, wider, rng)
        fits = len(wider) > 1 or survey.space.positive
        if fits and len(again.contradicting) < len(output.contradicting):
            return wider, again
    return layers, output


def _where_off(
    survey: Survey, layers: KnownLayers, output: OutputFit, X: Array, truth: Array
) -> Array:  # fmt: skip
    """Activations [n, h] below the last layer at the rows that the copy explains without further units."""
    Y = survey.space.from_inputs(X)
    off = np.abs(layers(Y) @ output.weight.T + output.bias - truth).max(axis=1)
    least = survey.space.accuracy.at_least(WRONG, WRONG_ERRORS) * np.abs(survey.data.gradient).max()
    explained = off <= least * (1 + np.linalg.norm(Y, axis=1))
    return np.asarray(layers.first(len(layers) - 1)(Y[explained]))
