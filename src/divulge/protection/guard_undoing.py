"""Whether a client can undo a guard without an attack on the model: by repeating a query, or by replaying its noise.

Averaging: fresh noise of deviation s leaves s / sqrt(n) in the mean of n answers to one input. Noise that is fixed for
each input leaves as much in the mean over n inputs that are nearly the same. Replay: noise that is drawn from a public
generator by a seed that can be guessed is drawn again by the client and subtracted. All are tried on the guard as a
server draws it, from a secret source, and also with the public seed that the caller names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.oracles import oracle
from divulge.oracles.guards import guard
from divulge.protection.guard_study import StudySetup

ROWS = 20
"""Inputs that are repeated."""
REPEATS = 64
NEARBY = 1e-4
"""How far nearly equal inputs lie apart, in standard deviations of each column."""
GUESSES = range(20)
"""Seeds that a client would try first."""


@dataclass(frozen=True)
class UndoneGuard:
    """What is left of a guard after its answers are averaged, and after guessed noise is subtracted.

    Each error is the root mean square of the difference to the unguarded answers, over their spread.
    """

    guard: str
    single: float
    """Of one answer."""
    averaged: float
    """Of the mean of ``REPEATS`` answers to the same input."""
    nearby: float
    """Of the mean of the answers to ``REPEATS`` inputs that are nearly the same."""
    replayed: float
    """Of one answer minus the noise of the guessed seed that fits best."""

    @property
    def averages_out(self) -> bool:
        """Whether repeating a query removes more than half of what the guard changes."""
        return self.averaged < self.single / 2

    @property
    def averages_out_nearby(self) -> bool:
        """Whether asking nearly equal inputs does."""
        return self.nearby < self.single / 2

    @property
    def replays(self) -> bool:
        """Whether a guessed seed removes more than half of what the guard changes."""
        return self.replayed < self.single / 2


def undo_guard(
    name: str, setup: StudySetup, *, seed: int | None = None, guesses: Iterable[int] = GUESSES
) -> UndoneGuard | None:
    """Repeat and replay queries behind a guard; None where the guard shows no numbers.

    Parameters
    ----------
    name : str
        The guards, as ``divulge.oracles.guard`` reads them.
    setup : StudySetup
        The model, and the rows that are asked.
    seed : int or None, default None
        What the guard draws from: None is the secret source of a server.
    guesses : iterable of int, default range(20)
        Seeds that the client tries.

    Returns
    -------
    UndoneGuard or None
    """
    rows = setup.judges[:ROWS]
    plain = setup.make("value")
    view = guard(name, seed=seed)(setup.make("value"))
    if not view.allows("value"):
        return None
    truth = plain.value(rows).double().cpu()
    first = view.value(rows).double().cpu()
    repeated = view.value(rows.repeat(REPEATS, 1)).double().cpu().reshape(REPEATS, *first.shape)
    beside = view.value(_moved(rows.repeat(REPEATS, 1))).double().cpu().reshape(REPEATS, *first.shape)
    zero = oracle(lambda X: torch.zeros(len(X), plain.output_dim, dtype=torch.float64), input_shape=(plain.input_dim,))
    drawn = [guard(name, seed=guess)(zero).value(rows).double().cpu() for guess in guesses]
    spread = max(float(truth.std()), torch.finfo(torch.float64).tiny)

    def error(answers: Tensor) -> float:
        return float((answers - truth).square().mean().sqrt()) / spread

    replayed = min((error(first - noise) for noise in drawn), default=1.0)
    return UndoneGuard(name, error(first), error(repeated.mean(dim=0)), error(beside.mean(dim=0)), replayed)


def _moved(rows: Tensor) -> Tensor:
    """Rows that are nearly these; columns of whole numbers stay as they are."""
    step = NEARBY * rows.double().std(dim=0) * (rows != rows.round()).any(dim=0)
    drawn = torch.randn(rows.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (rows.double() + step * drawn.to(rows.device)).to(rows)
