"""The student of a learned copy, chosen for the data: convolutions for pictures, trees for trees, layers for tables.

A picture is learned by a small convolutional network, and so is any other grid of numbers that the model takes, such as
a spectrogram; large ones are averaged over squares first. A model that answers in steps, such as a forest, is learned
by a forest. Numbers of tokens are learned by an embedding. Any other table is learned by a network with one hidden
layer; columns in units of their own are standardised by the rows that were asked. The attacker needs no more than the
answers to choose: the shape of an input is known to every client, and steps show along lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from divulge.auditing.target import Target
from divulge.oracles.base import Oracle
from divulge.oracles.local.named_inputs import whole

LearnedAccess = Literal["label", "value", "gradient"]
HIDDEN = 128
"""Hidden units of the student of a table."""
EMBEDDING = 32
"""Numbers that stand for a token in the student of texts."""
FILTERS, DENSE = (16, 32, 64), 64
"""Of the student of pictures. Pooled filters of three layers learn more than two in steps of two, at twice the time."""
BATCH, STEPS, PASSES, FEW = 64, 300, 10, 100
"""How pictures are learned: rows a step, steps at least (half as many for few answers), and passes over the answers."""
LARGEST, AVERAGED = 64, 32
"""Height and width from which on pictures are averaged, and to which."""
FEWEST_STEPS, MOST_STEPS, STEPS_PER_QUERY, TABLE_PASSES = 300, 1200, 4, 15
"""How tables are learned: few answers in few steps, which costs less than a point of agreement (digits, 30 and 100),
and many in so many passes."""
RATE = 5e-3
"""Learning rate of the student of pictures, whose layers are normalised."""
SPREAD_ROWS = 10_000
"""Rows, at most, that show how far columns spread."""
SMALLEST_PICTURE = 16
"""Height and width from which on a picture is learned by convolutions."""
MOST_CHANNELS = 4
"""Of a grid that is learned by convolutions."""
_UNIT = (0.05, 5.0)
"""Standard deviations of columns that a network takes as they are."""
SECONDS = {"convolutions": (6.0, 3e-3), "trees": (0.5, 1e-3)}
"""About what a fit takes on one core in any case, and what each query adds."""
COLOUR = 1.4
"""Times as long as a grey picture of as many pixels."""
STEP_SECONDS, STEP_INPUTS = 2.5e-3, 1000
"""About what a step of the student of a table takes on one core, and the inputs from which on they add to it."""


@dataclass(frozen=True)
class StudentPlan:
    """Which student is fitted."""

    kind: Literal["network", "convolutions", "trees", "tokens"]
    standardised: bool
    shape: tuple[int, ...]
    """Of one input; a grid that is learned by convolutions has channels first, or last where there are few there."""
    outputs: int
    vocabulary: int = 0
    """Of a model that takes the numbers of tokens."""

    @property
    def words(self) -> str:
        """The student in words."""
        if self.kind == "trees":
            return "a forest"
        if self.kind == "tokens":
            return f"an embedding of {EMBEDDING} numbers a token, averaged, and a hidden layer of {DENSE} ReLU units"
        if self.kind == "convolutions":
            filters = f"{', '.join(map(str, FILTERS[:-1]))} and {FILTERS[-1]} filters"
            averaged = f", behind means over {self.square} x {self.square} pixels" if self.square > 1 else ""
            return f"a network with three convolutions ({filters}) and a hidden layer of {DENSE} ReLU units{averaged}"
        return f"a network with one hidden layer of {HIDDEN} ReLU units"

    def seconds(self, queries: int) -> float:
        """About what a fit takes on one core."""
        numbers = float(np.prod(self.shape))
        if self.kind in ("network", "tokens"):
            return STEP_SECONDS * max(1.0, numbers / STEP_INPUTS) * steps_of_network(queries) + 1e-3 * queries
        start, each = SECONDS[self.kind]
        if self.kind == "trees":
            return start + each * queries
        channels = _channels_first(self.shape)[0]
        pixels = numbers / channels / self.square**2 * (COLOUR if channels > 1 else 1)
        scale = max(1.0, pixels / 784, numbers / 50_000)  # a large picture is averaged at every step
        return scale * (start * min(1.0, queries / FEW + 0.2) + each * queries)

    @property
    def square(self) -> int:
        """Pixels a side over which a large picture is averaged."""
        sides = _channels_first(self.shape)[1:] if len(self.shape) == 3 else self.shape
        return 1 if max(sides) <= LARGEST else max(1, min(-(-max(sides) // AVERAGED), min(sides) // 8))

    def student(self) -> Any:
        """What ``extraction.by_training`` fits."""
        if self.kind == "trees":
            return "trees"
        widths = [int(np.prod(self.shape)), HIDDEN, self.outputs]
        if self.kind == "network" and not self.standardised:
            return {"architecture": "mlp", "widths": widths, "activation": "relu"}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if self.kind == "tokens":
                return TokenStudent(self.vocabulary, self.shape[0], self.outputs)
            if self.kind == "convolutions":
                return _convolutions(self.shape, self.square, self.outputs)
            return _standardised(widths)


def steps_of_network(queries: int) -> int:
    """Steps in which the student of a table learns so many answers."""
    return max(min(MOST_STEPS, max(FEWEST_STEPS, STEPS_PER_QUERY * queries)), TABLE_PASSES * queries // BATCH)


def steps_of_convolutions(queries: int) -> int:
    """Steps in which the student of pictures learns so many answers."""
    return max(STEPS if queries >= FEW else STEPS // 2, PASSES * queries // BATCH)


def _channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Channels, height and width of a grid, whose channels may come last."""
    return shape if shape[0] <= MOST_CHANNELS else (shape[2], *shape[:2])


class _Grid(nn.Module):
    """Inputs as pictures with their channels first, averaged over squares."""

    def __init__(self, shape: tuple[int, ...], square: int) -> None:
        super().__init__()
        self.last, self.square = _channels_first(shape) != shape, square

    def forward(self, X: Tensor) -> Tensor:
        """[n, channels, height, width]."""
        pictures = X.movedim(-1, 1) if self.last else X
        return nn.functional.avg_pool2d(pictures, self.square, ceil_mode=True) if self.square > 1 else pictures


def _convolutions(shape: tuple[int, ...], square: int, outputs: int) -> nn.Module:
    """Three 3 x 3 convolutions, each pooled, then two dense layers, all normalised: pixels come in any units."""
    channels, height, width = _channels_first(shape)
    halved = square * 2 ** len(FILTERS)
    places = -(-height // halved) * -(-width // halved)
    pooled = [
        layer
        for before, after in pairwise((channels, *FILTERS))
        for layer in (nn.Conv2d(before, after, 3, padding=1, bias=False), nn.MaxPool2d(2, ceil_mode=True),
                      nn.BatchNorm2d(after), nn.ReLU())
    ]  # fmt: skip
    made = nn.Sequential(
        _Grid(shape, square), nn.BatchNorm2d(channels), *pooled, nn.Flatten(),
        nn.Linear(FILTERS[-1] * places, DENSE, bias=False), nn.BatchNorm1d(DENSE), nn.ReLU(),
        nn.Linear(DENSE, outputs),
    )  # fmt: skip
    made.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # half the time of a step
    made.input_shape = shape  # type: ignore[assignment]
    return made


class TokenStudent(nn.Module):
    """Tokens by an embedding and their place, a layer for each of them, their mean, and a hidden layer.

    Parameters
    ----------
    vocabulary : int
        Numbers that a token may have.
    length : int
        Tokens in an input.
    outputs : int
        Answers.
    """

    def __init__(self, vocabulary: int, length: int, outputs: int) -> None:
        super().__init__()
        self.input_shape, self.vocabulary = (length,), vocabulary
        self.token, self.place = nn.Embedding(vocabulary, EMBEDDING), nn.Embedding(length, EMBEDDING)
        self.each, self.hidden = nn.Linear(EMBEDDING, DENSE), nn.Linear(DENSE + EMBEDDING, DENSE)
        self.last = nn.Linear(DENSE + EMBEDDING, outputs)

    def forward(self, X: Tensor) -> Tensor:
        """Answers [n, outputs] to rows of token numbers [n, length]."""
        tokens = self.token(whole(X, self.vocabulary))
        placed = torch.relu(self.each(tokens + self.place.weight)).mean(dim=1)
        mean = tokens.mean(dim=1)
        hidden = torch.relu(self.hidden(torch.cat([placed, mean], dim=1)))
        answers: Tensor = self.last(torch.cat([hidden, mean], dim=1))
        return answers


def _standardised(widths: list[int]) -> nn.Module:
    """One hidden layer behind columns in units of their spread, which are set by the rows that are asked."""
    return nn.Sequential(
        nn.BatchNorm1d(widths[0], affine=False), nn.Linear(widths[0], widths[1]), nn.ReLU(),
        nn.Linear(widths[1], widths[2]),
    )  # fmt: skip


def grid_of(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape of one input as a grid that convolutions learn; None where it is none."""
    grid = (1, *shape) if len(shape) == 2 else tuple(shape)
    if len(grid) != 3 or min(grid[0], grid[2]) > MOST_CHANNELS:
        return None
    return grid if min(_channels_first(grid)[1:]) >= SMALLEST_PICTURE else None


def plan_for(target: Target, pool: Tensor, access: LearnedAccess) -> StudentPlan:
    """The student that fits the target and its data."""
    flat = (target.input_dim,)
    one_input = not isinstance(target.options.input_shape, Mapping)
    if target.vocabulary is not None and one_input and len(target.input_shape) == 1:
        return StudentPlan("tokens", False, flat, target.output_dim, target.vocabulary)
    if target.kind == "piecewise constant" and access != "gradient":
        return StudentPlan("trees", False, flat, target.output_dim)
    shape = grid_of(target.shape or target.input_shape)
    if shape is not None:
        return StudentPlan("convolutions", False, shape, target.output_dim)
    spread = pool[:SPREAD_ROWS].std(dim=0)
    varying = spread[spread > 0]
    own_units = len(varying) > 0 and bool((varying.min() < _UNIT[0]) & (varying.max() > 1) | (varying.max() > _UNIT[1]))
    return StudentPlan("network", own_units, flat, target.output_dim)


def answering(view: Oracle, access: LearnedAccess) -> Oracle:
    """The oracle that a student asks: decisions are given as logits."""
    from divulge.protection.guard_study import labels_as_logits

    return labels_as_logits(view) if access == "label" else view


def learned(plan: StudentPlan, asked: Oracle, access: LearnedAccess, pool: Tensor, count: int, seed: int) -> nn.Module:
    """A student fitted to so many answers."""
    from divulge import extraction

    options: dict[str, Any] = {"match": "both" if access == "gradient" else "values"}
    if access == "label":
        options["target_output"] = "logits"
    if plan.kind in ("network", "tokens") and access != "gradient":
        options["steps"] = steps_of_network(count)
    if plan.kind == "convolutions" and access != "gradient":
        options |= {
            "batch_size": min(BATCH, count), "steps": steps_of_convolutions(count), "train_norms": True,
            "hold_out": 0.0, "learning_rate": RATE,
        }  # fmt: skip
    return extraction.by_training(asked, plan.student(), pool, queries=count, seed=seed, **options).model
