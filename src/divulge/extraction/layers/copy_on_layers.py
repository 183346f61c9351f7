"""The copy on top of peeled layers: the output, and what peeling cannot see of the last layer.

A neuron of the last layer that is always on has no kink: identity units carry it. One that is almost never on has few:
samples that contradict the output tell it (``residual_units.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from torch import Tensor

from divulge.extraction.layers.deep_copy import DeepCopy
from divulge.extraction.layers.directed_rows import rows_for_units
from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.layer_search import LayerSearch, has_identity, with_identity
from divulge.extraction.layers.output_fit import CARRIED, OutputFit, fit_output, with_fewest_units
from divulge.extraction.layers.residual_units import (
    WRONG,
    WRONG_ERRORS,
    Explained,
    ResidualUnit,
    largest,
    residual_units,
    with_units,
)
from divulge.extraction.layers.survey import Survey

MANY_CONTRADICT = 120
IDLE, OFTEN_ON = 1e-7, 60
"""Neurons whose weights in the output are below this share of the largest do not act, if they are on so often."""
MOST_ENTRIES, AN_ENTRY = 12, 1e-5
"""Unseen entries that samples tell, at most, and the share of them below which their bias is zero."""
DIRECTED_ROUNDS, MOST_SELDOM = 6, 3
"""Rounds of rows that tell more of neurons that are seldom on."""
COPY_ROWS, DISTANCES = 4000, (1.0, 5.0, 25.0, 100.0)
"""Rows, and their distances, at which neurons that are always on stay on in the copy."""


def copy_on(search: LayerSearch, layers: KnownLayers, X: Tensor, truth: Tensor, rng: np.random.Generator) -> DeepCopy:
    """The copy; ``X`` [n, d] and ``truth`` [n, k] are all rows that were asked, and their answers."""
    survey = search.survey
    layers, output = _output(survey, layers, rng)
    last = len(layers) - 1
    if len(layers):
        layers, output = _without_idle(search, layers, output)
        layers = _with_entries(search, layers, output, X.numpy(), truth.numpy())
    units = residual_units(survey, layers, output) if len(layers) else []
    if units:
        units = _completed(search, layers, output, units, X.numpy(), truth.numpy(), rng)
    if units:
        place = search.append_unseen(last, np.array([~unit.known for unit in units]))
        layers, output = with_units(layers, output, units, place)
    if has_identity(layers):
        layers, output, search.unseen[last] = with_fewest_units(
            layers, output, search.unseen[last], survey.space.accuracy.at_least(CARRIED, 1e4)
        )
    rows = rng.normal(size=(COPY_ROWS, survey.space.inputs)) * rng.choice(DISTANCES, size=(COPY_ROWS, 1))
    return DeepCopy.of(survey.space, layers, output, np.concatenate([survey.data.Y, survey.space.from_inputs(rows)]))


def _without_idle(search: LayerSearch, layers: KnownLayers, output: OutputFit) -> tuple[KnownLayers, OutputFit]:
    """The last layer without neurons that are on at many samples and have no weight in the output.

    They are a second time the same neuron, with entries that were not seen, and would leave these open for ever.
    """
    unseen = search.unseen.get(len(layers) - 1)
    if unseen is None or not unseen.any() or len(output.contradicting) > MANY_CONTRADICT:
        return layers, output
    on = (layers(search.survey.data.Y) > 0).sum(axis=0)
    size = np.abs(output.weight).max(axis=0)
    idle = (size < IDLE * size.max()) & (on >= OFTEN_ON)
    idle[len(unseen) :] = False
    weight, bias, linear = layers.stack[-1]
    search.unseen[len(layers) - 1] = unseen[~idle[: len(unseen)]]
    narrow = layers.first(len(layers) - 1).with_layer(weight[~idle], bias[~idle], linear[~idle])
    return narrow, replace(output, weight=output.weight[:, ~idle])


def _completed(
    search: LayerSearch, layers: KnownLayers, output: OutputFit, units: list[ResidualUnit], X: Array, truth: Array,
    rng: np.random.Generator,
) -> list[ResidualUnit]:  # fmt: skip
    """The units with entries that the samples leave open asked for, and what is still open as large as it can be."""
    survey, below = search.survey, layers.first(len(layers) - 1)
    exact_below = not any(linear.any() for linear in below.linear)
    rounds = DIRECTED_ROUNDS if survey.has_gradients and exact_below else 0
    for _ in range(rounds):
        if len(units) > MOST_SELDOM:
            break
        off = _where_off(survey, layers, output, X, truth)
        rows = rows_for_units(survey.space, below, units, survey.data.Y, off, rng)
        if not len(rows):
            break
        survey.add_points(rows)
        X, truth = (
            np.concatenate(pair)
            for pair in ((X, survey.space.to_inputs(rows)), (truth, survey.data.value[-len(rows) :]))
        )
        units = residual_units(survey, layers, output)
    off = _where_off(survey, layers, output, X, truth)
    filled = []
    for unit in units:
        theta = largest(unit, np.append(~unit.known, False).astype(float), off)
        if theta is not None:
            filled.append(replace(unit, row=theta[:-1], bias=float(theta[-1])))
    return filled


def _with_entries(search: LayerSearch, layers: KnownLayers, output: OutputFit, X: Array, truth: Array) -> KnownLayers:
    """The last layer with unseen entries of its neurons that samples tell.

    Where a neuron and the unit of an unseen entry are on, the target minus the copy is a multiple of that unit. Among
    the neurons that lack the entry, it is given to the one with which the copy explains most rows. It counts as unseen
    still: whether the rows determine it is another question (``determined_entries.py``).
    """
    last, survey = len(layers) - 1, search.survey
    for _ in range(MOST_ENTRIES):
        unseen = search.unseen.get(last)
        if unseen is None or not unseen.any():
            return layers
        best, explained = None, len(_where_off(survey, layers, output, X, truth).room)
        for unit in residual_units(survey, layers, output):
            for neuron, row in _entry_of(unit, output, unseen):
                weight, bias, linear = layers.stack[-1]
                changed = weight.copy()
                changed[neuron] += row
                trial = layers.first(last).with_layer(changed, bias, linear)
                count = len(_where_off(survey, trial, output, X, truth).room)
                if count > explained:
                    best, explained = trial, count
        if best is None:
            return layers
        layers = best
    return layers


def _entry_of(unit: ResidualUnit, output: OutputFit, unseen: Array) -> Iterator[tuple[int, Array]]:
    """Neurons whose unseen entries a residual unit may be, with what their rows lack [h]."""
    told = (np.abs(unit.row) > CARRIED * np.abs(unit.row).max()) & unit.known
    if abs(unit.bias) > AN_ENTRY * np.abs(unit.row).max() or not told.any():
        return
    for neuron in np.flatnonzero(unseen[:, told].all(axis=1)).tolist():
        above = output.weight[:, neuron]
        share = float(unit.output @ above / max(above @ above, np.finfo(float).tiny))
        if np.linalg.norm(unit.output - share * above) < AN_ENTRY * np.linalg.norm(unit.output):
            yield neuron, np.where(told, share * unit.row, 0.0)


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


def _where_off(survey: Survey, layers: KnownLayers, output: OutputFit, X: Array, truth: Array) -> Explained:
    """The rows that the copy explains without further units."""
    Y = survey.space.from_inputs(X)
    off = np.abs(layers(Y) @ output.weight.T + output.bias - truth).max(axis=1)
    least = survey.space.accuracy.at_least(WRONG, WRONG_ERRORS) * np.abs(survey.data.gradient).max()
    room = least * (1 + np.linalg.norm(Y, axis=1))
    explained = off <= room
    return Explained(layers.first(len(layers) - 1)(Y[explained]), room[explained])
