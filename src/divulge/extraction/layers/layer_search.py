"""All layers after the first, peeled one by one from the kinks of a survey, which grows where they do not suffice."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from divulge.core.progress import report
from divulge.extraction.layers.activation_slopes import Slopes, asked_slopes
from divulge.extraction.layers.candidate_test import confirmed
from divulge.extraction.layers.cell_spans import sides_from_cells
from divulge.extraction.layers.entry_segments import segment_with_unit_on
from divulge.extraction.layers.followed_kinks import follow
from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.leftover_kinks import seldom_on
from divulge.extraction.layers.linear_entries import Passing
from divulge.extraction.layers.linear_units import linear_part
from divulge.extraction.layers.neuron import Neuron
from divulge.extraction.layers.orientation import orientation
from divulge.extraction.layers.partial_rows import SURE_ERRORS, PartialRows
from divulge.extraction.layers.peeling import next_layer
from divulge.extraction.layers.query_points import all_on_points, most_on_points, segments
from divulge.extraction.layers.survey import Survey
from divulge.extraction.layers.unseen_entries import segment_for_entry

START = [0.0, 1.0]
"""First places asked on a segment."""
SEGMENTS_A_LAYER = 6
"""Further segments for each of the layers below the last."""
SHORTEST = 1e-6
"""Segments shorter than this share of their distance from the origin are not searched."""
FEW, FEW_SHARE = 2, 0.03
"""So many kinks, and this share of all, may stay unexplained: two in one interval, mostly."""
MOST_ASTRAY = 0.7
"""Share of the kinks left that contradict a layer, above which it may lie beside a connection that skips it."""
SIDES_UNKNOWN = "the active sides of a layer's neurons were not found"
TOO_DEEP = "there are kinks left after as many hidden layers as layers= allows: the target has more"
ENTRY_ROUNDS, PROJECTED_ROUNDS = 6, 3
"""Rounds of segments for entries that are unseen, and how many of them are found by projections: the others take
mixed-integer programs."""
MOST_PROGRAMS = 6
"""Entries that programs are solved for, at most."""
MOST_ENTRIES, ENTRIES_PER_NEURON = 40, 4
"""Entries are looked for one by one only if no more than this are unseen."""
UNSEEN_SHARE = 0.02
"""Share of a layer's entries that may stay unseen before the layer above is tried, times the patience."""
SELDOM, SELDOM_AT_FIRST = 10, 6
"""Neurons with fewer kinks are tested before they are believed, and before their entries are looked for."""
ASK_CELLS = 2
"""Patience from which on the sides of neurons are asked for in single cells."""
PATIENT = 4
"""Patience from which on a neuron of unknown side is kept with both."""
POINTS_A_NEURON = 4
"""Points asked for each neuron of a layer, with most units below on, where its sides are not known."""
SLOPES, SLOPE_ROUNDS = 8, 2
"""Samples around which derivatives by activations are asked where sides are not known, and how often."""
FOLLOWS, FOLLOWED = 8, 24
"""How often kinks are followed before further segments are searched, and how many at once."""
FOLLOWED_A_NEURON = 3
"""Kinks of each neuron that are followed where entries of its row are unseen."""
POINTS_A_SIDE = 3
"""Points asked on each side of a neuron's hyperplane, to tell its active side and neurons that are always on."""


@dataclass(frozen=True)
class Peeled:
    """What peeling came to: the layers, why they are not all, and the layers whose activations need more segments."""

    layers: KnownLayers
    reason: str = ""
    stuck: KnownLayers | None = None
    last: bool = False
    beside: KnownLayers | None = None
    """Layers the last of which may lie beside a connection that skips it."""
    both: KnownLayers | None = None
    """These layers with neurons of unknown side kept with both."""
    contradicted: bool = False
    """Whether kinks contradict the last of the layers."""


class LayerSearch:
    """The survey, the layers that need not be doubted, and the entries that were never seen."""

    def __init__(self, survey: Survey, base: KnownLayers, most_layers: int, rng: np.random.Generator) -> None:
        self.survey, self.base, self.most_layers, self.rng = survey, base, most_layers, rng
        self.settled = base
        self.unseen: dict[int, Array] = {}  # by layer, which entries [neurons, units below] no kink has shown
        self._tried_beside: set[int] = set()  # numbers of layers known when a layer beside a skip was tried
        self.patience = 0
        self.following = False
        """Whether kinks are followed into neighbouring cells: where a layer is not found without."""
        self.another_layer = False
        """Whether a few unexplained kinks are taken for a further layer."""

    def unseen_entries(self, layers: KnownLayers) -> int:
        """Weights of these layers that no kink has shown."""
        return sum(int(entries.sum()) for depth, entries in self.unseen.items() if depth < len(layers))

    def append_unseen(self, depth: int, unseen: Array) -> int:
        """Note the unseen entries of further neurons of a layer; returns the index at which they follow the others."""
        before = self.unseen.get(depth, np.zeros((0, unseen.shape[1]), bool))
        self.unseen[depth] = np.concatenate([before, unseen])
        return len(before)

    def add_segments(self, count: int, layers: KnownLayers) -> None:
        """Search segments between points whose activations in the last of ``layers`` differ much."""
        begin, end = segments(self.survey.space, layers, count, self.rng)
        self.survey.add(begin, end, START)

    def search_every_layer(self, layers: KnownLayers) -> None:
        """Segments for the layers below the last too, after a few attempts: a neuron of any of them may be missing."""
        if len(layers) > 1 and self.patience and self.survey.has_gradients:
            for depth in range(len(self.base), len(layers)):
                self.add_segments(SEGMENTS_A_LAYER, layers.first(depth))

    def search_between(self, begin: Array, end: Array) -> None:
        """Search segments between given points."""
        space = self.survey.space
        if space.positive:
            begin, end = (np.where(Y > 0, Y, 1e-4 * self.rng.random(Y.shape)) for Y in (begin, end))
        long = np.linalg.norm(end - begin, axis=1) > SHORTEST * np.linalg.norm(begin, axis=1)
        if long.any():
            self.survey.add(begin[long], end[long], START)

    def search_leftover(self, layers: KnownLayers) -> bool:
        """Look for neurons that are seldom on among the few kinks left; whether segments were searched for them."""
        open_ = self._open(layers)
        depth, pairs = seldom_on(self.survey, layers, open_, len(self.base), self.rng)
        if depth is None:
            return False
        self.survey.add(np.array([begin for begin, _ in pairs]), np.array([end for _, end in pairs]), START)
        self.settled = layers.first(min(depth, len(self.settled)))
        return True

    def peel(self) -> Peeled:
        """All layers that the survey tells, starting from those that are settled."""
        layers, passing = self.settled, Passing(self.settled)
        while len(layers) < self.most_layers:
            self.settled = layers.first(len(layers) - 1) if passing.entries else layers
            self.following = False
            step = self._next(layers, passing)
            if step.reason and len(layers) and self.survey.has_gradients:
                self.following = True
                step = self._next(layers, passing)
            if step.beside is not None and self._may_lie_beside(step):
                step = self._beside_a_skip(step)
            if step.last or step.reason:
                return step
            layers = step.layers
            passing = Passing.of(layers, self.unseen[len(layers) - 1], self.survey.data.Y)
        return Peeled(layers, TOO_DEEP, layers)

    def _may_lie_beside(self, step: Peeled) -> bool:
        """Whether to try a layer beside a skip: if only sides are unknown once, as it takes long in deep networks."""
        if not self.patience:
            return False
        again = len(step.layers) in self._tried_beside
        self._tried_beside.add(len(step.layers))
        return step.contradicted or not again or self.patience >= PATIENT

    def _beside_a_skip(self, step: Peeled) -> Peeled:
        """The layer above, where the last one may lie beside a connection that skips it; the step as it is if not.

        Identity units are that connection, and the sides of the layer do not matter beside them. Rows above have more
        entries than there are inputs, and show where kinks are followed, and where few units are on.
        """
        assert step.beside is not None
        if self.survey.has_gradients:
            below, (weight, bias, linear) = step.beside.first(len(step.beside) - 1), step.beside.stack[-1]
            data = self.survey.data
            often = np.median(below(data.kink[data.kinked]) @ weight.T + bias, axis=0) > 0
            sign = np.where(often & ~linear, -1.0, 1.0)
            wider = with_identity(below.with_layer(weight * sign[:, None], bias * sign, linear))
            self.following = True
            above = self._next(wider, Passing(wider))
            if not above.reason:
                return above
        return Peeled(step.both) if step.both is not None and self.patience >= PATIENT else step

    def _next(self, layers: KnownLayers, passing: Passing) -> Peeled:
        """The layers with one more, which may be the last; or why there is none."""
        open_ = self._open(passing.layers)
        found, rows = next_layer(self.survey, passing.layers, open_)
        if self.following:
            found, rows = self._with_followed(passing.layers, found, rows)
        astray = int(rows.outside.sum())
        if astray > FEW + FEW_SHARE * len(rows.index) and len(layers) > len(self.base):
            self.settled = layers.first(len(layers) - 1)
            number = len(layers) + int(self.survey.space.positive)
            reason = f"{astray} kinks contradict layer {number}: it is incomplete, or a connection skips it"
            skipped = astray > MOST_ASTRAY * len(rows.index) and not has_identity(layers)
            return Peeled(layers, reason, self.settled, beside=layers if skipped else None, contradicted=True)
        if not found:
            few = open_.sum() <= FEW + FEW_SHARE * self.survey.data.kinked.sum()
            if few and len(layers) > len(self.base):
                return Peeled(layers, last=True)
            return Peeled(layers, f"no neuron was found for {int(open_.sum())} kinks", layers)
        found, rows = self._completed(passing.layers, found, rows)
        if not found:
            return Peeled(layers, "no candidate for a neuron was confirmed", layers)
        report("peeling layers", len(layers), None, neurons=len(found))
        told = passing.told(found)
        if told is None:
            return Peeled(layers, "weights that act linearly were not told by the layer above", passing.layers)
        layers, found = told
        for entry in passing.entries:
            self.unseen[len(layers) - 1][entry.neurons, entry.below] = False
        last = self._is_last(layers, found, rows)
        wider = self._above(layers, found, last)
        return replace(wider, last=last and not wider.reason)

    def _with_followed(
        self, layers: KnownLayers, found: list[Neuron], rows: PartialRows
    ) -> tuple[list[Neuron], PartialRows]:
        """Neurons from kinks that are followed because their rows show only in part, until no more are found."""
        for _ in range(FOLLOWS):
            before = len(found)
            if not self._follow(layers, found, rows, ~rows.full):
                break
            found, rows = next_layer(self.survey, layers, self._open(layers))
            if len(found) == before:
                break
        return found, rows

    def _follow(self, layers: KnownLayers, found: list[Neuron], rows: PartialRows, chosen: Array) -> bool:
        """Follow some of the chosen kinks that no neuron explains into neighbouring cells; whether there were any."""
        followed, open_ = self.survey.followed, chosen & ~rows.outside
        for neuron in found:
            open_ = open_ & ~neuron.kinks[rows.index]
        fresh = [k for k in rows.index[open_].tolist() if k not in followed or followed[k].depth < len(layers)]
        if not fresh:
            return False
        follow(self.survey, layers, self.rng.permutation(fresh)[:FOLLOWED].tolist(), self.rng)
        return True

    def _above(self, layers: KnownLayers, found: list[Neuron], last: bool) -> Peeled:
        """The layers with one more, or why there is none."""
        unseen = sum(neuron.unseen for neuron in found)
        if not last and unseen > UNSEEN_SHARE * len(found) * layers.width * (1 + self.patience):
            return Peeled(layers, f"{unseen} weights of a layer were never seen", layers)
        self.unseen[len(layers)] = np.array([~neuron.known for neuron in found])
        return self._with_layer(layers, found, last)

    def _open(self, layers: KnownLayers) -> Array:
        """Intervals with a kink that no known neuron explains."""
        data = self.survey.data
        begin, end = data.Y[data.left], data.Y[data.right]
        doubt = SURE_ERRORS * self.survey.space.accuracy.error
        if doubt:  # imprecise samples beside a kink may lie on the wrong side of the hyperplane
            along = (end - begin) / np.maximum(np.linalg.norm(end - begin, axis=1, keepdims=True), SHORTEST**2)
            along *= doubt * np.linalg.norm(begin, axis=1, keepdims=True)
            begin, end = begin - along, end + along
        return data.kinked & ~layers.cross(begin, end)

    def _completed(
        self, layers: KnownLayers, found: list[Neuron], rows: PartialRows
    ) -> tuple[list[Neuron], PartialRows]:
        """The neurons with entries that were unseen looked for, and without those that fail their test."""
        space = self.survey.space
        if not len(layers):
            return [neuron for neuron in found if not neuron.doubtful], rows
        found = confirmed(space, layers, found, SELDOM_AT_FIRST, self.rng)
        for round_ in range(ENTRY_ROUNDS):
            missing = [(neuron, unit) for neuron in found for unit in np.flatnonzero(~neuron.known).tolist()]
            if not missing or len(missing) > MOST_ENTRIES + ENTRIES_PER_NEURON * len(found):
                break
            if round_ >= PROJECTED_ROUNDS and self.survey.has_gradients and self._follow_entries(layers, found):
                found, rows = next_layer(self.survey, layers, self._open(layers))
                continue
            if round_ < PROJECTED_ROUNDS:
                ends = [segment_for_entry(self.survey, layers, neuron, unit, self.rng) for neuron, unit in missing]
            elif len(missing) <= MOST_PROGRAMS:
                ends = [segment_with_unit_on(space, layers, *entry, self.survey.data.Y) for entry in missing]
            else:
                break
            pairs = [pair for pair in ends if pair is not None and (pair[0] != pair[1]).any()]
            if not pairs:
                break
            self.survey.add(np.array([begin for begin, _ in pairs]), np.array([end for _, end in pairs]), [0.0, 1.0])
            found, rows = next_layer(self.survey, layers, self._open(layers))
        return confirmed(space, layers, found, SELDOM, self.rng), rows

    def _follow_entries(self, layers: KnownLayers, found: list[Neuron]) -> bool:
        """Follow kinks of neurons with unseen entries, with most units on; whether there were any not yet followed."""
        followed, chosen = self.survey.followed, []
        on = layers.units(self.survey.data.kink)[1].sum(axis=1)
        for neuron in found:
            kinks = np.flatnonzero(neuron.kinks) if neuron.unseen else np.zeros(0, int)
            kinks = kinks[np.argsort(-on[kinks], kind="stable")]
            fresh = [k for k in kinks.tolist() if k not in followed or followed[k].depth < len(layers)]
            chosen += fresh[:FOLLOWED_A_NEURON]
        follow(self.survey, layers, chosen, self.rng)
        return bool(chosen)

    def _is_last(self, layers: KnownLayers, found: list[Neuron], rows: PartialRows) -> bool:
        """Whether these neurons explain all kinks, up to a few."""
        open_ = self._open(layers)
        row, bias = np.array([neuron.row for neuron in found]), np.array([neuron.bias for neuron in found])
        astray = np.zeros(len(open_), bool)
        astray[rows.index[rows.outside]] = True
        left = int((self._open(layers.with_layer(row, bias)) & ~astray).sum())
        return left == 0 or (left <= FEW + FEW_SHARE * open_.sum() and not self.another_layer)

    def _with_layer(self, layers: KnownLayers, found: list[Neuron], last: bool) -> Peeled:
        """The layers with the neurons on top, turned to their active sides, or a reason if these are not all known.

        Where gradients leave the span of the rows, neurons that are always on are added (``linear_units.py``, and
        ``cell_spans.py`` with queries). In the last layer identity units carry what a neuron of unknown side leaves,
        which is linear. In a layer between, such a neuron is kept with both sides at last.
        """
        weight = np.array([neuron.row for neuron in found])
        bias = np.array([neuron.bias for neuron in found])
        unseen = ~np.all([neuron.known for neuron in found], axis=0)
        sign = orientation(self.survey, layers, weight, bias, self.rng, unseen)
        slopes: list[Slopes] = []
        for _ in range(SLOPE_ROUNDS if self.following and not last else 0):
            if (sign != 0).all():
                break
            slopes += asked_slopes(self.survey, layers, weight, bias, SLOPES, self.rng)
            sign = orientation(self.survey, layers, weight, bias, self.rng, unseen, slopes)
        if (sign == 0).any() and not last and self._ask_with_most_on(layers, weight, bias):
            sign = orientation(self.survey, layers, weight, bias, self.rng, unseen, slopes)
        unknown = sign == 0
        if unknown.any() and not last:
            linear = linear_part(self.survey, layers, weight, bias, self.rng)
            if linear is None and self.patience >= ASK_CELLS and len(layers) and self.survey.has_gradients:
                linear = sides_from_cells(self.survey, layers, weight, bias, self.rng)
            if linear is not None:
                rows = np.concatenate([weight * linear.sign[:, None], linear.rows])
                mask = np.arange(len(rows)) >= len(weight)
                offset = np.append(bias * linear.sign, np.zeros(len(linear.rows)))
                return Peeled(layers.with_layer(rows, offset, mask))
        sign[unknown] = 1
        weight, bias = weight * sign[:, None], bias * sign
        wider = layers.with_layer(weight, bias)
        if not unknown.any():
            return Peeled(wider)
        if last:
            return Peeled(with_identity(wider))
        both = layers.with_layer(np.concatenate([weight, -weight[unknown]]), np.concatenate([bias, -bias[unknown]]))
        return Peeled(layers, SIDES_UNKNOWN, layers, beside=wider, both=both)

    def _ask_with_most_on(self, layers: KnownLayers, weight: Array, bias: Array) -> bool:
        """Ask where all units below are on, on both sides of each neuron, or where most are.

        Gradients show there which neurons they combine.
        """
        if not len(layers):
            return False
        space, rng = self.survey.space, self.rng
        Y = all_on_points(space, layers, weight, bias, POINTS_A_SIDE, rng)
        if len(Y) < 2 * len(bias):
            Y = np.concatenate([Y, most_on_points(space, layers, POINTS_A_NEURON * len(bias), rng)])
        self.survey.add_points(Y)
        return True


def with_identity(layers: KnownLayers) -> KnownLayers:
    """The last layer with a unit added for each of its inputs that passes it on."""
    weight, bias, linear = layers.stack[-1]
    inputs = weight.shape[1]
    wider = np.concatenate([weight, np.eye(inputs)]), np.concatenate([bias, np.zeros(inputs)])
    return layers.first(len(layers) - 1).with_layer(*wider, np.append(linear, np.ones(inputs, bool)))


def has_identity(layers: KnownLayers) -> bool:
    """Whether ``with_identity`` has added units to the last layer."""
    if not len(layers):
        return False
    weight, _, linear = layers.stack[-1]
    inputs = weight.shape[1]
    return len(weight) > inputs and bool(linear[-inputs:].all() and (weight[-inputs:] == np.eye(inputs)).all())
