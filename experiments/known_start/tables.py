"""The tables of the known_start benchmark, and the attack on networks that they trained."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from divulge import reconstruction
from divulge.core.errors import DivulgeError
from divulge.training import Recipe
from experiments.known_start.networks import MOMENTUM, RATE

LEVELS = (3, 11, 7, 4, 9, 12, 5, 8, 6, 10, 3, 12, 4, 7, 11, 5, 9, 8, 6, 10, 12, 4, 3, 7)
RICH = tuple(round(4 + 26 * place / 23) for place in range(24))
WIDE = tuple(round(20 + 10 * place / 23) for place in range(24))
SIXTY = tuple(round(4 + 26 * place / 59) for place in range(60))
WHOLE = 8


@dataclass(frozen=True)
class TableSetting:
    """A table of categories with these numbers of levels and of 8 whole numbers, and the units of the network."""

    n: int
    columns: tuple[int, ...]
    units: int = 600
    networks: int = 5


def _named(setting: TableSetting) -> tuple[str, TableSetting]:
    width = sum(setting.columns) + WHOLE
    name = f"table, {len(setting.columns)} categories, {width} columns, {setting.n} rows, {setting.units} units"
    return name, setting


TABLES = dict(
    _named(setting)
    for setting in (
        *(TableSetting(n, LEVELS) for n in (20, 50, 75)),
        TableSetting(100, LEVELS, networks=2),
        TableSetting(150, RICH),
        *(TableSetting(200, RICH, units, networks=3) for units in (400, 600, 1000)),
        TableSetting(200, WIDE),
        TableSetting(200, SIXTY, networks=3),
        TableSetting(200, SIXTY, 1000, networks=3),
        TableSetting(200, 2 * LEVELS, networks=2),
    )
)


def table(n: int, seed: int, columns: tuple[int, ...] = LEVELS) -> tuple[Tensor, Tensor]:
    """Rows of one-hot categories with unequal shares and of whole numbers up to 100, as shares, and four classes."""
    draw = torch.Generator().manual_seed(seed)
    blocks = []
    for levels in columns:
        shares = torch.randn(levels, generator=draw).softmax(dim=0)
        blocks.append(nn.functional.one_hot(torch.multinomial(shares, n, replacement=True, generator=draw), levels))
    numbers = torch.randint(101, (n, WHOLE), generator=draw) / 100
    X = torch.cat([*blocks, numbers], dim=1).float()
    return X, (X[:, : columns[0]].argmax(dim=1) + 2 * (numbers[:, -1] > 0.5)) % 4


def categories(X: Tensor, columns: tuple[int, ...]) -> Tensor:
    """The category of each categorical column of rows X [m, d], [m, c]."""
    return torch.stack([block.argmax(dim=1) for block in X[:, : sum(columns)].split(columns, dim=1)], dim=1)


def table_attacked(name: str, seed: int) -> dict[str, Any]:
    """One network that was trained on a table: rows with every category right, and rows to the last number."""
    setting = TABLES[name]
    n, columns = setting.n, setting.columns
    X, y = table(n, seed, columns)
    recipe = Recipe(
        widths=[X.shape[1], setting.units, 4], learning_rate=RATE, momentum=MOMENTUM, epochs=60, seed=seed
    )  # fmt: skip
    row: dict[str, Any] = {"seed": seed, "n": n, "columns": X.shape[1]}
    model = recipe.train(X, y)
    began = time.process_time()
    try:
        found = reconstruction.from_weights(model, start=recipe, seed=seed)
    except DivulgeError as error:
        return {**row, "refused": str(error)}
    processor = time.process_time() - began
    nearest = torch.cdist(found.samples, X.double()).min(dim=1)
    right = (categories(found.samples, columns) == categories(X, columns)[nearest.indices]).all(dim=1)
    whole = right & ((found.samples - X[nearest.indices]).abs().amax(dim=1) < 0.005)
    assert found.certified is not None
    return {
        **row, "rank": found.rank, "every_category_right": len(nearest.indices[right].unique()),
        "every_number_right": len(nearest.indices[whole].unique()), "certified": int(found.certified.sum()),
        "certified_right": int((found.certified & right).sum()), "seconds": found.seconds,
        "processor_seconds": processor,
    }  # fmt: skip
