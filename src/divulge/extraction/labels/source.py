"""Labels of standardised rows, by vote where the target's labels are sometimes wrong.

Wrong labels show when a row is asked several times. Each time it is moved by a rounding error, because some targets
answer the same bytes with the same wrong label. A vote asks a row until one label is ahead of the others by ``lead``
answers; a label that is wrong with probability p then stays wrong with probability about (p / (1 - p)) ** lead.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from divulge.extraction.labels.asking import Array
from divulge.extraction.labels.tolerances import Domain
from divulge.oracles.base import Oracle

HOPELESS = 0.25
"""Share of wrong labels from which a vote costs too much."""
WRONG_VOTES = 1e-9
"""Probability that a vote may be wrong."""
MOST_VOTES = 400
MOST_KEPT = 2**24
"""Numbers of asked rows that are kept, the first ones, to compare the copy with (128 MiB)."""


class LabelSource:
    """Asks an oracle in standardised coordinates; ``rounds`` counts the batches."""

    def __init__(self, oracle: Oracle, domain: Domain, random: np.random.Generator) -> None:
        self.oracle, self.domain, self.random = oracle, domain, random
        self.rounds = 0
        self.wrong = 0.0
        """Estimated share of wrong labels."""
        self.lead = 1
        self.seen: set[int] = set()
        """Labels that were answered."""
        self.asked: list[tuple[Array, Array]] = []
        """Rows with their labels, one answer each, in the order in which they were asked."""
        self._room = MOST_KEPT

    def __call__(self, rows: Array) -> Array:
        """Labels [n] of rows [n, d]."""
        return self._once(rows) if self.lead == 1 else self._voted(rows)

    def test_repeats(self, rows: Array, times: int) -> float:
        """Ask rows several times and set the votes by how often the answers differ; returns the share of wrong ones."""
        answers = self._once(self._moved(np.tile(rows, (times, 1)))).reshape(times, len(rows))
        counts = np.stack([(answers == label).sum(axis=0) for label in np.unique(answers)])
        wrong = int((times - counts.max(axis=0)).sum())
        if wrong:
            # the larger of two estimates: votes cost little, and a wrong one spoils the search
            self.wrong = min(0.5, (wrong + 2 * math.sqrt(wrong)) / answers.size)
            p = min(self.wrong, HOPELESS)
            self.lead = max(2, math.ceil(math.log(WRONG_VOTES) / math.log(p / (1 - p))))
        return self.wrong

    @property
    def hopeless(self) -> bool:
        return self.wrong >= HOPELESS

    def _once(self, rows: Array) -> Array:
        self.rounds += 1
        rows = self.domain.clipped(rows)
        labels = self.oracle.label(torch.from_numpy(rows)).cpu().numpy()
        self.seen.update(np.unique(labels).tolist())
        if self._room >= rows.size:
            self._room -= rows.size
            self.asked.append((rows, labels))
        return np.asarray(labels)

    def _moved(self, rows: Array) -> Array:
        step = 2 * self.oracle.eps
        return np.asarray(rows * (1 + step * self.random.integers(-1, 2, rows.shape)))

    def _voted(self, rows: Array) -> Array:
        votes = np.zeros((len(rows), max(2, self.oracle.output_dim)), dtype=int)
        open_rows = np.arange(len(rows))
        first = self.lead
        for _ in range(MOST_VOTES):
            answers = self._once(self._moved(np.tile(rows[open_rows], (first, 1)))).reshape(first, -1)
            for answer in answers:
                np.add.at(votes, (open_rows, answer), 1)
            top = np.sort(votes[open_rows], axis=1)
            open_rows = open_rows[top[:, -1] - top[:, -2] < self.lead]
            first = 1
            if not len(open_rows):
                break
        return np.asarray(votes.argmax(axis=1))
