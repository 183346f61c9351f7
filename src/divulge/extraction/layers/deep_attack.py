"""One extraction of a network of any depth: first layer, further layers, output, verification.

Milli 2019 (section 7) asks whether networks of k layers can be learned from gradients with a number of queries that
grows like their neurons. This attack does it layer by layer:

1. The first layer's hyperplanes are those that every line crosses (``first_layer.py``). If they are independent, the
   rest is asked in activations of the first layer (``query_space.py``).
2. Segments are searched for all kinks (``survey.py``). They are peeled into layers without queries (``peeling.py``);
   entries that no kink has shown are looked for one by one (``unseen_entries.py``, ``entry_segments.py``), or told by
   the layer above (``linear_entries.py``).
3. Each neuron is turned to its active side (``orientation.py``). The layer after which no kink is left is the last, and
   the output is a least-squares fit (``output_fit.py``).
   Neurons that are on at every sample are added as linear units (``linear_units.py``), and those of the last layer
   that almost never switch from the samples that contradict the fit (``residual_units.py``), and from rows that
   programs find (``directed_rows.py``).
4. Fresh rows decide. A copy that is off is refined by Gauss-Newton (``polish.py``) and compared with other rows. Where
   it stays wrong, segments through the wrong rows are searched, and peeling starts again. A copy of answers in float32
   or of few decimals is fitted to many of them at last (``imprecise_fit.py``), and is never called exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from divulge.core.errors import DivulgeError
from divulge.core.progress import report
from divulge.extraction.attack_space import AttackSpace
from divulge.extraction.failures import ARITHMETIC, FIRST_UNKNOWN, UNSETTLED
from divulge.extraction.gradients.imprecise_copy import imprecise
from divulge.extraction.layers.acting_nowhere import note
from divulge.extraction.layers.attempts import Attempt, best_of
from divulge.extraction.layers.copy_on_layers import copy_on
from divulge.extraction.layers.deep_copy import DeepCopy
from divulge.extraction.layers.deep_verification import first_hyperplanes, unusual_rows, where_wrong
from divulge.extraction.layers.depth import Depth
from divulge.extraction.layers.determined_entries import mark_determined
from divulge.extraction.layers.first_layer import MOST_LINES, first_layer
from divulge.extraction.layers.imprecise_fit import fitted
from divulge.extraction.layers.known_layers import Array, KnownLayers
from divulge.extraction.layers.layer_search import LayerSearch
from divulge.extraction.layers.open_entries import OpenEntries, withheld
from divulge.extraction.layers.polish import parameters, polish
from divulge.extraction.layers.query_points import nearest_directions
from divulge.extraction.layers.survey import Survey
from divulge.extraction.result import Extraction
from divulge.extraction.verification import Verification, row_size, spread, verify
from divulge.oracles.ledger import Spent

CHECKS = 20_000
"""Fresh rows that verify a copy by default: copies that are wrong on one input in 10,000 occur, and most are caught."""
FIRST_CHECKS = 300
"""Fresh rows while much is wrong."""
FAR = 100.0
SEGMENTS, MORE_SEGMENTS = 16, 12
ATTEMPTS = 14
INDEPENDENT = 1e6
"""Largest condition number of a first layer whose rows count as independent."""
MOST_WRONG, ROWS_A_PARAMETER = 0.6, 3
"""A copy is polished if it is wrong on at most this share of rows, on so many values for each of its weights."""
PRECISE = 1e-12
"""A copy that is off by more than this share of the deviation is polished, though it agrees."""
LOOSER = 2.0
"""How much farther off a copy of imprecise answers may be after each attempt: weak neurons do not show in them."""
MOST_WITHHELD = 6
"""Copies whose weights were not all seen that are compared on all rows: each comparison is long."""
WRONG_SEGMENTS, RIGHT_ROWS = 4, 2_000
"""Rows that segments are searched from where the copy is wrong, and rows where it is right that they may end at."""
FEW_WRONG, AROUND = 0.05, 24
"""Share of wrong rows below which the copy lacks few neurons, and points asked around such rows."""
MANY_WRONG = 0.3
"""Share of wrong rows from which on a layer may be missing."""
IMPRECISION = 1e-2
"""Errors above this share of the deviation are due to neurons or entries that were missed, not to imprecise rows."""
FEW_JUMPS = 2
JUMPS = "The target is not continuous: its values jump, as those of ReLU networks do not."
IMPRECISE = 1e-7
"""Errors below this share of the deviation are imprecision, not neurons that were missed."""


class DeepAttack:
    """One run: what was asked, what is known, and how it ends."""

    def __init__(
        self, space: AttackSpace, survey: Survey, *, exact: float, seed: int, checks: int | None, depth: Depth,
        reach: float, one_layer: Extraction, began: float, coarse: str = "",
        survey_in: Callable[[tuple[Array, Array] | None], Survey],
    ) -> None:  # fmt: skip
        self.space, self.oracle, self.exact = space, space.oracle, exact
        self.seed, self.checks, self.depth = seed, checks or CHECKS, depth
        self.lines, self.survey_in, self.reach = survey, survey_in, reach
        self.one_layer, self.began = one_layer, began
        self.coarse = coarse  # how answers are imprecise, if no copy of them can be exact
        self.rng = np.random.default_rng(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.first: tuple[Array, Array] | None = None
        self.search: LayerSearch | None = None
        self.copy: DeepCopy | None = None
        self.verification: Verification | None = None
        self.verified = Spent()
        self.first_cost = 0
        self.peeled: list[int] = []  # widths of the hidden layers found
        self.without_effect = 0
        self.withheld = 0  # copies that agree on all rows, but have weights that were never seen
        self.attempts: list[Attempt] = []
        self.unseen: int | None = None  # entries of an earlier copy that were never seen

    def run(self) -> Extraction:
        """The extraction."""
        try:
            return self.result(self._rebuild())
        except ARITHMETIC:
            self._take_best()
            return self.result(UNSETTLED)
        except DivulgeError as error:
            self._take_best()
            error.partial = self.result(str(error))
            raise

    def _rebuild(self) -> str:
        """Do it all; the reason why the copy is not exact, or nothing."""
        report("first layer", None, None, queries=self.oracle.ledger.total)
        self.first = first_layer(self.lines, self.reach, self.rng)
        self.first_cost = self.space.spent.total
        if self.first is None:
            return FIRST_UNKNOWN
        search = self.search = self._layer_search(self.first)
        search.add_segments(SEGMENTS, search.base)
        reason = ""
        for attempt in range(ATTEMPTS):
            search.patience = attempt // 2
            if self.coarse and attempt:
                self.exact = min(IMPRECISION, LOOSER * self.exact)
            if attempt % 2 == 0:
                search.settled = search.base
            peeled = search.peel()
            self.peeled = [*([search.survey.space.dim] if search.survey.space.positive else []), *peeled.layers.widths]
            reason = peeled.reason
            if reason and len(peeled.layers) <= len(search.base) and self._found_more_first_units(search):
                continue
            if not reason:
                self.copy = copy_on(search, peeled.layers, *self.oracle.answers(), self.rng)
                searched = search.survey.segments
                reason = self._judged(search)
                if not reason:
                    return self._imprecision()
                self._remember(reason, search)
                if self.withheld >= MOST_WITHHELD:
                    break
                if search.search_leftover(peeled.layers) or search.survey.segments > searched:
                    search.search_every_layer(peeled.layers)
                    continue  # that, or segments through rows where the copy is wrong
            elif search.search_leftover(peeled.layers):
                continue
            search.add_segments(MORE_SEGMENTS, peeled.stuck or search.base)
            search.search_every_layer(peeled.stuck or search.base)
        if search.survey.has_gradients and search.survey.jumps > FEW_JUMPS:
            return JUMPS
        reason = self._take_best() or reason
        return f"The layers were not found completely. {reason[:1].upper()}{reason[1:]}."

    def _remember(self, reason: str, search: LayerSearch) -> None:
        assert self.verification is not None
        copy = self._copied()
        unseen = search.unseen_entries(copy.layers)
        self.attempts.append(Attempt(copy, self.verification, reason, unseen, self.without_effect))

    def _take_best(self) -> str:
        """Go back to the copy that is right on most of all rows asked; why it is not exact, if there is one."""
        best = best_of(self.attempts, self._wrong_rows)
        if best is None:
            return ""
        self.copy, self.verification, self.without_effect = best.copy, best.verification, best.without_effect
        self.unseen = best.unseen
        return best.reason

    def _found_more_first_units(self, search: LayerSearch) -> bool:
        """Another line, where nothing follows on a first layer with more units than inputs: one may be missing."""
        assert self.first is not None
        if search.survey.space.positive or self.lines.segments >= MOST_LINES:
            return False
        again = first_layer(self.lines, self.reach, self.rng, fewest=self.lines.segments + 1)
        if again is None or len(again[0]) <= len(self.first[0]):
            return False
        self.first = again
        search.base = search.settled = KnownLayers(again[0].shape[1]).with_layer(*again)
        return True

    def _layer_search(self, first: tuple[Array, Array]) -> LayerSearch:
        weight, bias = first
        inputs = weight.shape[1]
        if len(weight) <= inputs and np.linalg.cond(weight) < INDEPENDENT:
            survey, base = self.survey_in(first), KnownLayers(len(bias))
            most = self.depth.most - 1
        else:
            survey, base = self.survey_in(None), KnownLayers(inputs).with_layer(weight, bias)
            most = self.depth.most
        return LayerSearch(survey, base, most, self.rng)

    # -- fresh rows ---------------------------------------------------------------------------------------------------

    def _judged(self, search: LayerSearch) -> str:
        """Few fresh rows while much is wrong, all of them before a copy is called exact; a reason if it is not."""
        assert self.copy is not None
        before = self.space.spent
        reason = (
            self._checked(search, min(FIRST_CHECKS, self.checks))
            or ("" if self.coarse else self._entries_without_effect(search))
            or self._checked(search, self.checks)
        )
        if not reason:
            self.verified = self.space.spent - before
        return reason

    def _checked(self, search: LayerSearch, checks: int) -> str:
        """Compare with fresh rows; a copy that is off is polished once, and compared with others."""
        copy, all_rows, again = self.copy, checks == self.checks, True
        while True:
            assert copy is not None
            assert self.first is not None
            hyperplanes = first_hyperplanes(self.first, self.oracle.output_dim)
            verification = self.verification = verify(
                self.space, copy.value, hyperplanes, checks=checks, tolerance=self.exact, generator=self.generator,
                farthest=FAR, also=unusual_rows(copy, checks, self.space.reach, self.rng),
            )  # fmt: skip
            report("verifying", None, None, neurons=sum(copy.widths), queries=self.oracle.ledger.total)
            wrong = verification.off > verification.allowed
            if not bool(wrong.any()) and not verification.reason:  # every row that was asked agrees too
                if not all_rows and verification.worst > PRECISE * verification.scale:
                    self._polished(0.0)
                return ""
            if not again or not self._polished(float(wrong.double().mean())):
                break
            copy, again = self.copy, False
        self._search_wrong(search, copy, verification)
        layers = copy.layers
        doubtful = [depth for depth, entries in search.unseen.items() if entries.any() and depth < len(layers)]
        search.settled = layers.first(max(len(search.base), min([*doubtful, len(layers) - 1])))
        return f"{verification.reason.rstrip('.')}{where_wrong(verification)}"

    def _polished(self, wrong: float) -> bool:
        """Refine the copy by the values of all rows asked; whether it then agrees with all of them."""
        copy = self.copy
        assert copy is not None
        if self._neurons_are_missing(wrong):
            return False
        X, truth, off = self._precise_answers(copy)
        allowed = min(self.exact * spread(truth), float(off.max()))
        worst_first = off.argsort(descending=True)
        for keep_first in (True, False):  # the first layer is precise already, mostly, and has most of the weights
            count = parameters(copy.stack[1:] if keep_first else copy.stack)
            count = min(len(X), ROWS_A_PARAMETER * count // truth.shape[1] + FIRST_CHECKS)
            pick = torch.randperm(len(X), generator=self.generator)[:count]
            pick = torch.unique(torch.cat([pick, worst_first[: count // 4]]))
            stack = polish(copy.stack, X[pick].numpy(), truth[pick].numpy(), keep_first=keep_first)
            refined = replace(copy, stack=stack)
            if float((self.space.differences(truth, refined.value(X)) / row_size(X)).max()) <= allowed:
                self.copy = refined
                return True
            if self._is_far_off():
                break
        return False

    def _imprecision(self) -> str:
        """Fit a copy of imprecise answers to many of them; how far it is off then on all. Nothing for precise ones."""
        if not self.coarse:
            return ""
        assert self.copy is not None
        assert self.verification is not None
        X, truth, _ = self._precise_answers(self.copy)
        self.copy = fitted(self.space, self.copy, X, truth, self.generator)
        off = float(self._precise_answers(self.copy)[2].max())
        return imprecise(off / self.verification.scale, self.coarse)

    def _is_far_off(self) -> bool:
        """Whether the copy is off by more than imprecise weights explain."""
        assert self.verification is not None
        return self.verification.worst > IMPRECISION * self.verification.scale

    def _neurons_are_missing(self, wrong: float) -> bool:
        """Whether the copy is off on this share of rows by more than imprecise or unseen weights explain."""
        assert self.search is not None
        unseen = self.search.unseen_entries(self._copied().layers)
        return self._is_far_off() and (wrong > MOST_WRONG or (wrong > 0 and not unseen))

    def _entries_without_effect(self, search: LayerSearch) -> str:
        """Ask where entries that were never seen would matter most; a reason if there are any that may act elsewhere.

        Each is told by the values of rows where it acts, or is shown to act nowhere (``open_entries.py``).
        """
        self.without_effect = OpenEntries(
            unseen=search.unseen, samples=search.survey.data.Y, copy=self._copied,
            asked=lambda: search.survey.space.from_inputs(self.oracle.answers()[0].numpy()), agree=self._agree,
            undetermined=lambda summed: self._undetermined(search, summed), refine=lambda: self._polished(0.0),
            rng=self.rng,
        ).settle()  # fmt: skip
        assert self.copy is not None
        unseen = search.unseen_entries(self.copy.layers)
        self.withheld += bool(unseen)
        return withheld(unseen)

    def _copied(self) -> DeepCopy:
        assert self.copy is not None
        return self.copy

    def _agree(self, Y: Array) -> Array:
        """Whether the target answers like the copy at rows [n, dim] of the space where queries are made."""
        assert self.verification is not None
        copy = self._copied()
        X = torch.from_numpy(copy.space.to_inputs(Y))
        truth = self.oracle.value(X).to("cpu", torch.float64)
        off = self.space.differences(truth, copy.value(X)) / row_size(X)
        return np.asarray(off <= self.exact * self.verification.scale)

    def _wrong_rows(self, copy: DeepCopy, scale: float) -> int:
        """On how many of all rows that were asked a copy is off."""
        return int((self._precise_answers(copy)[2] > self.exact * scale).sum())

    def _undetermined(self, search: LayerSearch, summed: Array | None = None) -> int:
        """How many entries neither kinks nor values show; those that the values of all rows determine count as seen."""
        copy = self._copied()
        if search.unseen_entries(copy.layers):
            X, _, off = self._precise_answers(copy)
            mark_determined(search.unseen, copy, X.numpy(), off.numpy(), (1 / row_size(X)).numpy(), summed)
        return search.unseen_entries(copy.layers)

    def _precise_answers(self, copy: DeepCopy) -> tuple[Tensor, Tensor, Tensor]:
        """All rows whose logits are known precisely, what the target answered, and how far the copy is off."""
        X, truth = self.oracle.answers()
        precise = self.space.precise(truth)
        X, truth = X[precise], truth[precise]
        return X, truth, self.space.differences(truth, copy.value(X)) / row_size(X)

    def _search_wrong(self, search: LayerSearch, copy: DeepCopy, verification: Verification) -> None:
        """Search segments from rows where the copy is wrong, fresh or asked before, to the nearest that are right.

        A neuron that almost never switches shows on few of all rows, and on none of the segments searched so far.
        """
        space, rng = search.survey.space, self.rng
        X, truth = self.oracle.answers()
        off = (self.space.differences(truth, copy.value(X)) / row_size(X) / verification.scale).numpy()
        wrong, right = np.flatnonzero(off > self.exact), np.flatnonzero(off <= self.exact)
        search.another_layer = len(wrong) > MANY_WRONG * len(off) and not search.another_layer
        if not len(wrong) or not len(right) or off.max() < max(IMPRECISE, self.exact):
            return
        rows = rng.permutation(wrong)[: 2 * WRONG_SEGMENTS]
        ends = space.from_inputs(X.numpy()[rows])
        begin = space.from_inputs(X.numpy()[rng.permutation(right)[:RIGHT_ROWS]])
        search.search_between(begin[nearest_directions(begin, ends)], ends)
        if search.survey.has_gradients and len(wrong) < FEW_WRONG * len(off):
            search.survey.add_points(space.around(ends[np.resize(np.arange(len(ends)), AROUND)], rng))

    # -- the end ------------------------------------------------------------------------------------------------------

    def result(self, reason: str) -> Extraction:
        """Everything known so far; the copy of one hidden layer while there is no deeper one."""
        found = self._found()
        return replace(
            found, exact=not reason, reason=reason, ledger=self.space.spent, verification=self.verified,
            seconds=time.perf_counter() - self.began, facts={**found.facts, "queries": self._queries()},
        )  # fmt: skip

    def _found(self) -> Extraction:
        copy, verification = self.copy, self.verification
        if copy is None or verification is None or self.search is None:
            return replace(self.one_layer, facts={**self.one_layer.facts, "layers_found": self.peeled})
        off = self.space.differences(verification.truth, copy.value(verification.X))
        stolen = Extraction(
            model=self.space.deeper(copy.model()), width=sum(copy.widths), exact=False, seed=self.seed,
            worst_error=float((off / row_size(verification.X)).max()), scale=verification.scale,
            method=self.one_layer.method, verified_points=len(verification.X),
            notes=(*note(self.without_effect), *self.depth.notes(copy.widths)),
            facts={
                "widths": copy.widths,
                "unseen_entries": self.search.unseen_entries(copy.layers) if self.unseen is None else self.unseen,
                "entries_without_effect": self.without_effect,
                "verification": verification.facts(),
            },
        )  # fmt: skip
        return self.space.as_shown(stolen)

    def _queries(self) -> dict[str, int]:
        """Rows asked for the first layer, for all others, and to verify the copy."""
        total = self.space.spent.total
        return {
            "first layer": self.first_cost or total,
            "further layers": total - (self.first_cost or total) - self.verified.total,
            "verification": self.verified.total,
        }
