"""The hidden neurons, from the corners and facets of the boundary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from divulge.extraction.labels.facets import Facet, along_axes
from divulge.extraction.labels.open_neurons import Evidence, likeliest, solved_members, uncrossed
from divulge.extraction.labels.pencils import Neuron, Pencil, Sighting, distinct, settle, shared
from divulge.extraction.labels.polygon import Corner, Edge
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.trials import Trials

MANY_INPUTS = 40
"""From here on a facet costs more than a slice: no other is measured while a pencil waits."""
PATIENCE = 3
"""Slices for which a pencil may wait before others are measured beside it."""
SLIGHT, SLIGHT_PENCILS = 1e-3, 2
"""So many pencils of turns smaller than this may wait: they are imprecise, and more of them are of the same neuron."""
UNRELATED, UNRELATED_SLICES = 10, 5
"""Pencils that wait, and slices, from which on the target has no hidden ReLU neurons if hardly one was found."""
UNRELATED_COARSE = 60
"""The same number of pencils of a coarse target, where each waits for a second one of its neuron."""
FEW_FACETS = 4
"""Facets that tell a tree, if all are parallel to axes."""
DEEPER = 3
"""Hyperplanes, and a quarter of them all, that edges must cross for a network with more than one hidden layer; bends
that the neurons found cannot make."""
MOST_OPEN = 6
"""Neurons that may be seen between one pair of facets only."""
RANK = 1e-4
"""Smallest singular value of neurons of unit length that are independent."""
PRECISE, DECADES = 0.01, 4
"""Largest error of a facet that is derived, in largest angles between measurements, and how many decades below it the
most precise ones begin."""
SAME = 3e-6
"""Neurons nearer to each other than this, as homogeneous rows of unit length, are one that was found twice."""
FRUITLESS = 6
"""Slices in a row without a new neuron after which the search ends."""
SHORTEST, SLIGHTEST = 1e-4, 1e-6
"""Edges shorter than this (in spreads) and turns smaller than this are too imprecise to measure."""


@dataclass(eq=False)
class Discovery:
    """Neurons found so far, and pencils that wait for corners elsewhere."""

    survey: Survey
    most_slices: int
    beside: int = 1
    """Corners whose facets are measured side by side: more of them need fewer requests and more labels."""
    least: int = 2
    """Corners elsewhere that must agree on a neuron."""
    neurons: list[Neuron] = field(default_factory=list)
    pencils: list[Pencil] = field(default_factory=list)
    elsewhere: Sequence[Sighting] = ()
    """Points on hyperplanes of neurons beside the corners of the survey."""
    tried: set[int] = field(default_factory=set)
    open: list[Pencil] = field(default_factory=list)
    """Pencils whose neuron was chosen, because labels leave one number of it open."""
    faint: list[Pencil] = field(default_factory=list)
    """Pencils whose neuron was chosen from fewer corners than tell it for certain."""
    depth_tried: bool = False
    """Whether a copy with several hidden layers was tried, without success."""
    trials: Trials = field(init=False)

    def __post_init__(self) -> None:
        self.trials = Trials(self.survey)

    def run(self) -> None:
        """Measure facets at corners of unknown neurons, cheapest first, with more slices where pencils wait."""
        fruitless, found = 0, len(self.neurons)
        while True:
            self.update()
            if len(self.neurons) > found:
                fruitless, found = 0, len(self.neurons)
            if len(self.survey.facets) >= FEW_FACETS and along_axes(self.survey.facets):
                return
            if self.deep if self.depth_tried else self.deeper:
                return
            if self.unrelated:
                return
            choice = self._worth_measuring()
            if choice:
                self._measure(choice[: self.beside])
                continue
            if self._tried_out():
                continue
            if fruitless >= FRUITLESS and (self._settle_open() or self._settle_faint()):
                found = len(self.neurons)
                continue
            if not self.pencils or len(self.survey.slices) >= self.most_slices or fruitless >= FRUITLESS:
                return
            self.another_slice()
            fruitless += 1

    def _worth_measuring(self) -> list[Corner]:
        """Candidates that are hardly of a neuron that a pencil waits for already: those of the same slice."""
        choice = self.candidates()
        if self.survey.tolerances.coarse:
            return choice if len(self.pencils) < UNRELATED_COARSE else []
        if sum(p.corner.turn < SLIGHT for p in self.pencils) >= SLIGHT_PENCILS:
            choice = [c for c in choice if c.turn >= SLIGHT]
        if len(self.pencils) >= UNRELATED and self._mostly_crossed:
            return []
        if all(len(self.survey.slices) - pencil.slices >= PATIENCE for pencil in self.pencils):
            return choice
        if self.survey.inputs >= MANY_INPUTS:
            return []
        return [c for c in choice if c.slice is self.pencils[-1].corner.slice]

    def another_slice(self) -> None:
        """One more slice: through a facet that is known, or between two classes where there are many."""
        survey = self.survey
        known = [f for f in survey.facets if f.step > 1e-3 * survey.tolerances.spread]
        if known and survey.classes == 2:
            survey.walk([survey.through(known[int(survey.random.integers(len(known)))])])
        elif (pair := survey.different()) is not None:
            survey.walk([survey.between(*pair)])

    def update(self) -> None:
        """All that follows without labels: corners of known neurons, facets beyond them, pencils that settle."""
        self.explain()
        self.derive()
        self._settle_pencils()
        self.survey.forecast.update(self.neurons, self.survey.corners())

    def _measure(self, corners: list[Corner]) -> None:
        self.tried.update(id(c) for c in corners)
        self.survey.measure([edge for c in corners for edge in (c.before, c.after)])
        for c in corners:
            if c.before.facet is not None and c.after.facet is not None:
                self.pencils.append(Pencil.of(c, self.survey.tolerances.spread, len(self.survey.slices)))

    def explain(self) -> None:
        """Mark the corners that lie on a neuron's hyperplane."""
        if not self.neurons:
            return
        t = self.survey.tolerances
        W, b = self.hyperplanes()
        error = np.array([n.error for n in self.neurons])
        for c in self.sightings():
            if c.neuron is None:
                x = c.x
                gap = np.abs(W @ x + b) / (t.spread + np.linalg.norm(x))
                j = int(gap.argmin())
                if gap[j] < 10 * (t.tight + c.error / t.spread + error[j]):
                    c.neuron = j

    def sightings(self) -> list[Sighting]:
        """All points on hyperplanes of neurons."""
        return [*self.survey.corners(), *self.elsewhere]

    def free(self) -> list[Sighting]:
        """Those of neurons that are not known."""
        return [c for c in self.sightings() if c.neuron is None]

    def hyperplanes(self) -> tuple[np.ndarray, np.ndarray]:
        """W [h, d] and b [h] of the neurons, each at unit length."""
        d = self.survey.inputs
        W = np.stack([n.w for n in self.neurons]) if self.neurons else np.zeros((0, d))
        return W, np.array([n.b for n in self.neurons])

    def derive(self) -> None:
        """Facets without further labels: past a corner of a known neuron one point of the next edge gives its facet.

        The most precise go first, because errors add up from facet to facet and the first that is found stays.
        """
        for precise in PRECISE * self.survey.tolerances.loose * np.logspace(-DECADES, 0, DECADES + 1):
            while self._derive_to(float(precise)):
                pass

    def _derive_to(self, precise: float) -> bool:
        """Derive facets up to an error; whether there was one."""
        found = False
        for c in self.survey.corners():
            if c.neuron is None:
                continue
            for known, new in ((c.before, c.after), (c.after, c.before)):
                if known.facet is not None and new.facet is None and known.facet.error < precise:
                    facet = self._beyond(known.facet, self.neurons[c.neuron], new)
                    if facet is not None and facet.error < precise:
                        new.facet, found = facet, True
        return found

    def _beyond(self, facet: Facet, neuron: Neuron, edge: Edge) -> Facet | None:
        """The facet of an edge past a neuron's hyperplane; the edge's second point checks it."""
        t = self.survey.tolerances
        old, row = facet.homogeneous(t.spread), neuron.homogeneous(t.spread)
        ends = edge.points()
        X = np.concatenate([ends / t.spread, np.ones((2, 1))], axis=1)
        at, lever = X @ old, X @ row
        noise = np.where(edge.asked, t.line, max(t.line, edge.error)) / t.spread
        k = int((np.abs(lever) / noise).argmax())
        beta = -at[k] / lever[k]
        new = old + beta * row
        size = float(np.linalg.norm(new[:-1]))
        miss = abs(float(X[1 - k] @ new)) / size
        own = math.hypot(facet.error, beta * neuron.error, size * noise[k] / lever[k]) / float(np.linalg.norm(new))
        error = own + t.line / t.spread
        if miss > 10 * (error + float(noise[1 - k]) + t.tight):
            return None
        base = edge.slice.lift(edge.extent(t.spread)[0])
        normal = new[:-1] / size
        return Facet(normal, -float(new[-1]) * t.spread / size, edge.pair, ends, 0.0, error, base)

    def _settle_pencils(self) -> None:
        again = True
        while again:
            again = False
            self.pencils = [p for p in self.pencils if p.corner.neuron is None]
            for pencil in self.pencils:
                if pencil.corner.neuron is None and self._settle(pencil):
                    self.explain()
                    self.derive()
                    again = True

    def _settle(self, pencil: Pencil) -> bool:
        """Whether the pencil's neuron could be found; if so it is added."""
        free = [c for c in self.free() if c is not pencil.corner]
        if not free:
            return False
        coarse = self.survey.tolerances.coarse
        found = None if coarse else settle(pencil, free, self.survey.tolerances, self.least)
        if found is not None:
            self._add(found[0], [pencil.corner, *(free[i] for i in found[1])])
            return True
        waiting = [p for p in self.pencils if p is not pencil and p.corner.neuron is None]
        met = shared(pencil, waiting, self.survey.tolerances)
        if met is not None:
            self._add(met[0], [pencil.corner, met[1].corner])
            return True
        neuron = self._from_scales(pencil)
        if neuron is not None:
            self._add(neuron, [pencil.corner])
        return neuron is not None

    def _from_scales(self, pencil: Pencil) -> Neuron | None:
        """The neuron from the slopes on its two sides, where other neurons show both in one scale."""
        one, two = pencil.corner.before.facet, pencil.corner.after.facet
        return None if one is None or two is None else self.survey.forecast.between(one, two)

    def _tried_out(self) -> bool:
        """Whether labels confirmed a candidate of a pencil that waits."""
        for pencil in self.pencils:
            free = [c for c in self.free() if c is not pencil.corner]
            found = self.trials.settle(pencil, free) if free else None
            if found is not None:
                self._add(found[0], [pencil.corner, found[1]])
                return True
        return False

    def _settle_open(self) -> bool:
        """Whether a neuron was chosen that the boundary shows between one pair of facets only.

        Labels leave one number of it open: hyperplanes through that ridge which the boundary does not cross elsewhere
        decide alike. There must be no corner that could tell them apart.
        """
        waiting = distinct([p for p in self.pencils if p.corner.neuron is None])
        spread = self.survey.tolerances.spread
        if len(waiting) > MOST_OPEN or not all(any(p.ridge(c, spread) for p in waiting) for c in self.free()):
            return False
        ratios = {i: ratio for i, p in enumerate(waiting) if (ratio := uncrossed(p, self.survey)) is not None}
        if not ratios:
            return False
        evidence = Evidence.of(*self.hyperplanes(), self.survey)
        solved = solved_members(waiting, list(ratios.values()), evidence) if len(ratios) == len(waiting) else None
        if solved is not None:
            for pencil, neuron in zip(waiting, solved, strict=True):
                self._add(neuron, [pencil.corner])
            return True
        i, ratio = next(iter(ratios.items()))
        self._add(waiting[i].members(np.array([ratio]), spread)[0], [waiting[i].corner])
        self.open.append(waiting[i])
        return True

    def _settle_faint(self) -> bool:
        """Whether a neuron was chosen on which corners elsewhere agree, though so few that it may be by chance.

        The check of the copy tells whether it is right.
        """
        waiting = distinct([p for p in self.pencils if p.corner.neuron is None])
        coarse = self.survey.tolerances.coarse
        found = None if coarse or len(waiting) > MOST_OPEN else likeliest(waiting, self.free(), self.survey)
        if found is None:
            return False
        pencil, neuron, corners = found
        self._add(neuron, [pencil.corner, *corners])
        self.faint.append(pencil)
        return True

    @property
    def chosen(self) -> int:
        """Neurons of which labels leave one number open."""
        return len({p.corner.neuron for p in self.open if p.corner.neuron is not None})

    def reopen(self) -> None:
        """Forget the neurons that were chosen, where the target contradicts the copy: their pencils wait again."""
        waiting = [*self.open, *self.faint]
        self.open, self.faint = [], []
        if waiting:
            self.survey.forget_derived()
        self.drop([p.corner.neuron for p in waiting if p.corner.neuron is not None])
        self.pencils += [p for p in waiting if p.corner.neuron is None]

    def _add(self, neuron: Neuron, corners: Sequence[Sighting]) -> None:
        """Add a neuron with its corners; one that was found before, more precisely, only gets the corners."""
        spread = self.survey.tolerances.spread
        row = neuron.homogeneous(spread)
        known = np.array([n.homogeneous(spread) for n in self.neurons]).reshape(-1, len(row))
        away = np.minimum(np.linalg.norm(known - row, axis=1), np.linalg.norm(known + row, axis=1))
        which = int(away.argmin()) if away.min(initial=np.inf) < SAME else len(self.neurons)
        if which == len(self.neurons):
            self.neurons.append(neuron)
        for corner in corners:
            corner.neuron = which

    def drop(self, which: list[int]) -> bool:
        """Forget these neurons; whether there were any."""
        if which:
            self.neurons = [n for i, n in enumerate(self.neurons) if i not in which]
            self.restart()
        return bool(which)

    def restart(self) -> None:
        """Mark the corners anew: the neurons were numbered anew."""
        for corner in self.sightings():
            corner.neuron = None
        self.survey.forecast.forget()
        self.explain()

    @property
    def deep(self) -> bool:
        """Whether edges cross many of the hyperplanes without a bend: corners of deeper neurons, which are not flat."""
        crossed = int(self.survey.crossed(self.neurons).sum())
        return crossed >= DEEPER and 4 * crossed >= len(self.neurons)

    @property
    def deeper(self) -> bool:
        """Whether there are bends that neurons of the first hidden layer cannot make.

        Fewer neurons than inputs are linearly independent, and two facets differ by a multiple of the neuron between
        them. Where the neurons found span all normals that were measured, bends at other hyperplanes are of neurons
        above: those of pencils that wait, and of neurons that are sums of others.
        """
        W, _ = self.hyperplanes()
        loose = self.survey.tolerances.loose
        _, singular, basis = np.linalg.svd(W, full_matrices=False)
        basis = basis[singular > RANK]
        rank = len(basis)
        if not 0 < rank < self.survey.inputs or not self.survey.facets:
            return False
        normals = np.stack([f.normal for f in self.survey.facets])
        if float(np.linalg.norm(normals - normals @ basis.T @ basis, axis=1).max()) > loose:
            return False
        rows = np.stack([n.homogeneous(self.survey.tolerances.spread) for n in self.neurons])
        waiting = [p for p in self.pencils if p.corner.neuron is None and p.error < loose and not p.holds(rows, loose)]
        return len(waiting) + len(W) - rank >= DEEPER

    @property
    def unrelated(self) -> bool:
        """Whether many bends of the boundary, each between other facets, wait, and few that were found are neurons'."""
        many = UNRELATED_COARSE if self.survey.tolerances.coarse else UNRELATED
        if len(self.survey.slices) < UNRELATED_SLICES or len(self.pencils) < many:
            return False
        return len(distinct(self.pencils)) >= many and self._mostly_crossed

    @property
    def _mostly_crossed(self) -> bool:
        """Whether edges run straight through at least half of the hyperplanes found."""
        return bool(2 * self.survey.crossed(self.neurons).sum() >= len(self.neurons))

    @property
    def misfit(self) -> bool:
        """Whether the target cannot be a network with one hidden layer."""
        if self.unrelated:
            return True
        trees = len(self.survey.facets) >= FEW_FACETS and along_axes(self.survey.facets)
        return trees or self.deep or (self.deeper and not self.depth_tried)

    def candidates(self) -> list[Corner]:
        """Corners of unknown neurons by what their facets would cost; short edges and slight turns last."""
        spread, unmeasurable = self.survey.tolerances.spread, self.survey.unmeasurable
        ranked = []
        for i, c in enumerate(self.survey.corners()):
            edges = (c.before, c.after)
            if c.neuron is not None or id(c) in self.tried or any(id(e) in unmeasurable for e in edges):
                continue
            length = min(e.extent(spread)[1] for e in edges) / spread
            if length < SHORTEST or c.turn < SLIGHTEST:
                continue
            short = 0.5 * max(0.0, -math.log10(length / 0.03))
            slight = 0.2 * max(0.0, -math.log10(c.turn / 0.05))
            ranked.append((sum(e.facet is None for e in edges) + short + slight, i, c))
        return [c for _, _, c in sorted(ranked, key=lambda r: r[:2])]
