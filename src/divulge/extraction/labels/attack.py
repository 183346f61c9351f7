"""A whole run: what kind of boundary it is, the copy, and why it is not equivalent."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from divulge.core.errors import DivulgeError
from divulge.core.progress import report
from divulge.core.result import Spent
from divulge.extraction.label_result import LabelCopy
from divulge.extraction.labels import reasons
from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.deeper.network import DeepNetwork
from divulge.extraction.labels.deeper.solve import SeveralLayers
from divulge.extraction.labels.discovery import Discovery
from divulge.extraction.labels.earlier_answers import contradicted, segments, still_answered
from divulge.extraction.labels.facets import along_axes
from divulge.extraction.labels.linear import measure_class_pairs
from divulge.extraction.labels.network import LabelNetwork
from divulge.extraction.labels.one_hidden_layer import FIRST_SLICES, OneHiddenLayer
from divulge.extraction.labels.pencils import distinct
from divulge.extraction.labels.source import LabelSource
from divulge.extraction.labels.survey import Survey
from divulge.extraction.labels.tolerances import Domain, Tolerances
from divulge.extraction.labels.verification import (
    Agreement,
    Disagreement,
    agreement,
    disagreements,
)
from divulge.oracles.base import Oracle
from divulge.oracles.region import Region

MOST_SLICES, COARSE_SLICES = 40, 120
"""Slices of the boundary; of a coarse target more, because a neuron is found once two pairs of facets show it."""
REPAIR_CHECKS = 200
"""Points of the copy's boundary that are asked from both sides before it is repaired or accepted."""
DEEPER_CHECKS = 10
"""How many times as many fresh rows verify a copy with several hidden layers, or with output weights that the boundary
leaves open: these may show in rarer regions."""
REPAIRS = 6
"""How often a copy is mended with rows that verification contradicts, and verified anew."""
REPEATED_ROWS, REPEATS = 24, 4
"""Rows that are asked several times before anything else, to see wrong labels."""
RARE_ROWS, RARE_REPEATS = 400, 5
"""The same, before a copy is given up."""
FARTHER = (3.0, 10.0, 30.0)
"""How many times farther out a boundary is looked for where the region has none."""
FAR_ROWS = 64


class LabelAttack:
    """One run of ``from_labels``."""

    def __init__(
        self, oracle: Oracle, region: Region, domain: Domain, own: Array | None, *, seed: int, checks: int, beside: int,
        precision: float,
    ) -> None:  # fmt: skip
        self.oracle, self.region, self.own, self.seed, self.checks = oracle, region, own, seed, checks
        self.began, self.before = time.perf_counter(), oracle.ledger.snapshot()
        self.random = np.random.default_rng(seed)
        self.source = LabelSource(region.oracle(oracle), domain, self.random)
        tolerances = Tolerances.of(oracle.input_dim, precision, 2 * oracle.eps * region.rounding)
        self.tolerances, self.beside = tolerances, beside
        self._start()

    def _start(self) -> None:
        """An empty survey."""
        classes = max(2, self.oracle.output_dim)
        self.survey = Survey(self.source, self.tolerances, self.source.domain, classes, self.random)
        slices = COARSE_SLICES if self.tolerances.coarse else MOST_SLICES
        self.discovery = Discovery(self.survey, slices, self.beside)
        self.solver = OneHiddenLayer(self.survey, self.discovery, self._check)
        self.network: LabelNetwork | DeepNetwork = self._constant(0)
        self.deeper: SeveralLayers | None = None
        """The attack on several hidden layers, once it was tried."""
        self.repair: Callable[[list[Disagreement]], LabelNetwork | DeepNetwork] | None = None
        """Mends a copy of which the last check contradicted nothing, after verification did."""
        self.wrong: list[Disagreement] = []
        """Segments on which the last copy that was checked disagrees with the target."""

    def run(self) -> LabelCopy:
        """The copy, equivalent or with the reason why it is not."""
        try:
            return self._attempt()
        except DivulgeError as error:
            if error.partial is None:
                self.network = self.solver.so_far() or self.network
                error.partial = self._result(str(error), None, self.oracle.ledger.snapshot())
            raise

    def _attempt(self) -> LabelCopy:
        reason = self._rebuild()
        asked, measured = self._verified()
        for _ in range(REPAIRS):
            wrong = measured.wrong or (self._wrong_before() if measured.complete else [])
            if reason or self.repair is None or not wrong:
                break
            before, self.network = self.network, self.repair(wrong)
            spent, repaired = self._verified()
            if repaired.shares < measured.shares:
                self.network = before
                break
            asked, measured = spent, repaired
        if not reason and not measured.complete:
            reason = reasons.disagrees(measured, self.discovery, self.source)
            reason = reason if measured.rows == 1 else self._unless_rounded(reason)
        if not reason:
            reason = self._contradicted_before()
        if reason and self.source.lead == 1 and self._labels_flip():
            return self._attempt()
        return self._result(reason, measured, asked)

    def _verified(self) -> tuple[Spent, Agreement]:
        """What was asked before, and how far the copy agrees with the target on fresh rows."""
        asked = self.oracle.ledger.snapshot()
        checks = self.checks * (DEEPER_CHECKS if isinstance(self.network, DeepNetwork) or self._flat() else 1)
        return asked, agreement(self.network, self.survey, checks, self.own)

    def _wrong_before(self) -> list[Disagreement]:
        """Segments at rows that were asked on the way, which the copy decides otherwise and the target does not."""
        rows, labels = contradicted(self.network, self.source, self.tolerances)
        return segments(rows, self.survey) if len(rows) and still_answered(rows, labels, self.source) else []

    def _contradicted_before(self) -> str:
        """Why rows that were asked on the way contradict the copy, or an empty string."""
        rows, labels = contradicted(self.network, self.source, self.tolerances)
        if not len(rows):
            return ""
        same = self.source.lead == 1 and still_answered(rows, labels, self.source)
        return reasons.wrong_before(len(rows)) if same else reasons.changed()

    def _labels_flip(self) -> bool:
        """Whether labels are wrong more rarely than the first test could show; if so everything starts again."""
        self.source.test_repeats(self.survey.rows(RARE_ROWS), RARE_REPEATS)
        if not self.source.wrong:
            return False
        self._start()
        return True

    def _rebuild(self) -> str:
        """Find the network; returns why that is not possible, or an empty string."""
        survey = self.survey
        if self.source.lead == 1:
            self.source.test_repeats(survey.rows(REPEATED_ROWS), REPEATS)
        if self.source.hopeless:
            return reasons.random_labels(self.source.wrong)
        if not survey.first_facet():
            return self._no_boundary() if not survey.slices else self._unless_rounded(reasons.curved())
        while len(survey.slices) < FIRST_SLICES:
            self.discovery.another_slice()
        if not survey.corners():
            measure_class_pairs(survey)
        if along_axes(survey.facets):
            return reasons.axes()
        self.network = self.solver.run()
        self.repair = None if self.wrong or self.discovery.misfit else self.solver.repair
        bends = len(distinct(self.discovery.pencils)) if self.discovery.unrelated else 0
        if bends or self.discovery.deeper or (self.wrong and self.discovery.deep):
            self._try_several_layers()
        if bends and (self.deeper is None or not self.deeper.levels):
            return self._unless_rounded(reasons.unrelated(bends))
        if self.deeper is not None and self.deeper.deeper:
            return self._unless_rounded(reasons.more_layers(len(self.deeper.levels) + 2))
        return ""

    def _unless_rounded(self, reason: str) -> str:
        """What is said of the kind of target, unless its rounding makes a ReLU network look like that, too."""
        if not self.tolerances.coarse or self.source.wrong or along_axes(self.survey.facets):
            return reason
        return reasons.rounded(self.tolerances.line / self.tolerances.spread)

    def _try_several_layers(self) -> None:
        """A copy with several hidden layers; if there is none, one hidden layer unless bends contradict it."""
        self.deeper = deeper = SeveralLayers(self.survey, self._check)
        copy = deeper.run()
        if copy is not None:
            self.network = copy
        if copy is not None and not self.wrong:
            self.repair = deeper.repair
            return
        self.discovery.depth_tried = True
        self.discovery.restart()
        if deeper.deeper:
            return
        if not self.discovery.deep:
            self.network = self.solver.run()

    def _no_boundary(self) -> str:
        """Why the label never changed: farther out it does, or nowhere."""
        survey = self.survey
        label = survey.pool[0][1]
        self.network = self._constant(label)
        for factor in FARTHER:
            rows = survey.domain.clipped(factor * survey.random.standard_normal((FAR_ROWS, survey.inputs)))
            if bool((self.source(rows) != label).any()):
                return reasons.outside(factor, len(survey.pool))
        return reasons.one_class(label, len(survey.pool), survey.domain.unbounded)

    def _check(self, network: LabelNetwork | DeepNetwork) -> list[Disagreement]:
        self.network = network
        self.wrong = disagreements(network, self.survey, REPAIR_CHECKS)
        report("copy from labels", neurons=sum(network.widths), labels=self.oracle.ledger.label)
        return self.wrong

    def _constant(self, label: int) -> LabelNetwork:
        """The copy that answers one label everywhere."""
        k, d = self.survey.classes - 1, self.survey.inputs
        c = np.array([1.0 if label == i + 1 else 0.0 for i in range(k)]) if label else np.full(k, -1.0)
        return LabelNetwork(np.zeros((0, d)), np.zeros(0), np.zeros((k, 0)), np.zeros((k, d)), c)

    def _result(self, reason: str, measured: Agreement | None, asked: Spent) -> LabelCopy:
        spent = self.oracle.ledger.snapshot()
        shallow = isinstance(self.network, LabelNetwork) and measured is not None and measured.rows == 1
        layers = self._hidden_layers() if reason and not shallow else ()
        if layers:
            reason = f"{reason} {reasons.lowest_layers([len(rows) for rows in layers])}"
        points, pairs = self._points()
        facts: dict[str, object] = {
            "slices": len(self.survey.slices), "corners": len(self.survey.corners()),
            "facets": len(self.survey.facets), "wrong_labels": self.source.wrong, "votes_ahead": self.source.lead,
            "points_left_out": self.solver.left_out,
        }  # fmt: skip
        return LabelCopy(
            model=self.network.model(self.region, self.oracle.output_dim),
            widths=self.network.widths,
            equivalent=not reason,
            agreement=measured.rows if measured is not None else float("nan"),
            agreement_near=measured.near if measured is not None else {},
            not_visible=self._not_visible(),
            verified_rows=measured.compared if measured is not None else 0,
            hidden_layers=layers,
            rounds=self.source.rounds,
            ledger=spent - self.before,
            verification=spent - asked,
            points=points,
            pairs=pairs,
            region=self.region,
            method="labels",
            seed=self.seed,
            seconds=time.perf_counter() - self.began,
            reason=reason,
            facts=facts,
        )

    def _flat(self) -> int:
        """Combinations of output weights that change nothing where the boundary was met."""
        return self.solver.layer.flat if self.solver.layer is not None else 0

    def _not_visible(self) -> str:
        """What labels do not show of the neurons."""
        network = self.network
        if isinstance(network, DeepNetwork):
            return ""
        parts = [reasons.chosen(self.discovery.chosen)] if self.discovery.chosen else []
        parts += [reasons.flat(self._flat())] if self._flat() else []
        if 0 < len(network.W) <= self.survey.inputs and float(np.abs(network.P).max()) > 0:
            parts.append(reasons.always_on())
        return " ".join(parts)

    def _hidden_layers(self) -> tuple[Array, ...]:
        """The lowest hidden layers in the target's units, where the attack on two was tried."""
        if self.deeper is None or not self.deeper.layers or not len(self.deeper.layers[0]):
            return ()
        first, *others = self.deeper.layers
        A = first[:, :-1] / self.region.scale.double().numpy()
        b = first[:, -1] - A @ self.region.center.double().numpy()
        return (np.column_stack([A, b]), *others)

    def _points(self) -> tuple[Array, Array]:
        """The boundary points in the target's units."""
        boundary = self.survey.boundary_points()
        return self.region.to_inputs(torch.from_numpy(boundary.points)).numpy(), boundary.pairs
