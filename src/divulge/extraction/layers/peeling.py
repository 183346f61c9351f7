"""The next layer's neurons from the kinks that the known layers leave unexplained, without a query.

Kinks whose partial rows agree are merged into one neuron (``partial_rows.py``). A neuron of a deeper layer agrees with
itself as long as no neuron between is switched. It is told apart in two ways:

- the hyperplane of a neuron of this layer, where it is predicted to pass between two samples, must be a kink there;
- among its kinks, neurons of the same layer change sides. Else it is doubted, and asked at other places.

Canales-Martinez 2024 and Foerster 2024 peel layers from values in the same order; they measure each partial row anew.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from divulge.extraction.layers.hidden_rows import hidden_groups
from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.neuron import Neuron
from divulge.extraction.layers.partial_rows import PartialRows
from divulge.extraction.layers.survey import Survey

CONTINUES = 0.95
"""Share of its predicted crossings that must be kinks for a candidate to be a neuron of this layer."""
MANY_KINKS, LESS_STRICT = 12, 0.1
"""With so many kinks the share may be lower by this much: two kinks in one interval hide each other."""
SURE = 8
"""Kinks that make a neuron sure."""
CHANGING = 0.15
"""Share of the sure neurons of the layer that change sides among the kinks of a candidate."""
DETERMINED = 1e-9
GROWTHS = 20


def next_layer(
    survey: Survey, layers: KnownLayers, open_: Array, *, continues: float = CONTINUES
) -> tuple[list[Neuron], PartialRows]:
    """Neurons of the layer after ``layers`` among the open kinks, and the partial rows that they were made from."""
    rows = PartialRows(survey, layers, open_)
    used = np.zeros(len(rows.index), bool)
    found = _from_agreement(rows, used, continues)
    found += _from_followed(rows, used)
    for members in hidden_groups(rows, used):
        neuron, members = _neuron(rows, members, used)
        if neuron is not None and neuron.count >= 3 and neuron.share >= CONTINUES:
            used[members] = True
            found.append(neuron)
    return _doubted(rows, found), rows


def _from_agreement(rows: PartialRows, used: Array, continues: float) -> list[Neuron]:
    """Neurons from kinks that agree with each other, those with most of them first; ``used`` is updated."""
    agree = rows.agreeing()
    found: list[Neuron] = []
    while True:
        free = agree & ~used[:, None] & ~used[None]
        count = free.sum(axis=1)
        if not len(count) or count.max() < 1:
            return found
        seed = int(np.argmax(count - 1e-9 * np.minimum(rows.condition, 1e8)))
        group = [seed, *np.flatnonzero(free[seed]).tolist()]
        neuron, members = _neuron(rows, group, used)
        if neuron is None:
            agree[seed, group] = agree[group, seed] = False
            continue
        used[members] = True
        strict = continues if neuron.count < MANY_KINKS else continues - LESS_STRICT
        if neuron.share >= strict and neuron.count >= 2:
            used |= np.isin(rows.index, np.flatnonzero(neuron.kinks))
            found.append(neuron)


def _from_followed(rows: PartialRows, used: Array) -> list[Neuron]:
    """Neurons from single kinks that were followed (``followed_kinks.py``); ``used`` is updated."""
    found: list[Neuron] = []
    for k in rows.followed:
        if used[k]:
            continue
        neuron, members = _neuron(rows, [k], used)
        if neuron is not None and neuron.count >= 3 and neuron.share >= CONTINUES:
            used[members] = True
            used |= np.isin(rows.index, np.flatnonzero(neuron.kinks))
            found.append(neuron)
    return found


def _neuron(rows: PartialRows, members: list[int], used: Array) -> tuple[Neuron | None, list[int]]:
    """Merge kinks and take in whatever else agrees, until nothing does."""
    solved = None
    for _ in range(GROWTHS):
        solved = rows.merged(members)
        if solved is None:
            return None, members
        row, bias, known, misfit, determined = solved
        if misfit > rows.misfit_allowed(members) or determined < DETERMINED or determined < 10 * misfit:
            if len(members) <= 2:
                return None, members
            members = members[: max(2, len(members) // 2)]  # the seed with fewer of its neighbours
            continue
        more = (rows.on_hyperplane(row, bias, known) | rows.overlapping(row, bias, known)) & ~used
        more |= rows.extending(row, bias, known, used)
        more[members] = False
        if not more.any():
            break
        members = members + np.flatnonzero(more).tolist()
    assert solved is not None
    row, bias, known = solved[:3]
    kinks, missing = rows.crossings(row, bias, known)
    return Neuron(row, bias, known, kinks, float(kinks.sum() / max(1, kinks.sum() + missing.sum()))), members


def _doubted(rows: PartialRows, found: list[Neuron]) -> list[Neuron]:
    """Doubt those that may be deeper: they look like neurons of this layer only while none of it changes sides."""
    sure = [neuron for neuron in found if neuron.count >= SURE]
    if len(sure) < 4:
        return found
    kept = []
    for neuron in found:
        if neuron.count >= SURE and neuron.share == 1.0:  # one of a deeper layer would miss some crossings
            kept.append(neuron)
            continue
        places = np.isin(rows.index, np.flatnonzero(neuron.kinks))
        activation, on = rows.activation[places], rows.on[places]
        changes = 0
        for other in sure:
            visible = ~(on & ~other.known).any(axis=1)
            side = activation[visible] @ other.row + other.bias > 0
            changes += bool(other is not neuron and side.any() and not side.all())
        enough = changes >= max(1 + (neuron.count >= 6), round(CHANGING * len(sure)))
        kept.append(neuron if enough else replace(neuron, doubtful=True))
    return kept
