"""The table as a constraint programme (Ferry et al. 2024, section 4), solved by CP-SAT of OR-Tools.

One Boolean for each cell. Each row lies in one leaf of every tree, whose conditions its cells meet; the rows of a leaf
add up to its counts by class. With bootstrap a row is drawn some times into a tree, or not at all; scikit-learn also
keeps how many different rows a leaf has, which the paper does not use. Rows of one class are exchangeable: without
bootstrap they are laid into the leaves of the first tree in order, which leaves the solver no symmetry there.

Departures: with bootstrap the paper maximises the likelihood of the draws. Here any table that meets all counts is
taken, and the rows of each class are fixed to their mean over the trees.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divulge.core.errors import MissingPackage
from divulge.reconstruction.forest.counts import ForestCounts, Leaf

MOST_DRAWS = 6
"""Times that one row is drawn into a tree, at most: more has a probability of 1e-4 for each row and tree."""
Groups = tuple[tuple[int, ...], ...]


def solve(
    counts: ForestCounts, groups: Groups, *, seconds: float, seed: int, workers: int
) -> tuple[NDArray[np.int8] | None, str]:
    """A table [rows, columns] of 0 and 1 that meets all counts, rows sorted by class; or None, and why."""
    cp_model = solver_module()
    model = cp_model.CpModel()
    labels = np.repeat(np.arange(len(counts.classes)), counts.classes)
    cells = [[model.NewBoolVar("") for _ in range(counts.columns)] for _ in labels]
    for row in cells:
        for group in groups:
            model.AddExactlyOne(row[j] for j in group)
    for number, tree in enumerate(counts.trees):
        places = [[model.NewBoolVar("") for _ in tree] for _ in labels]
        for row, place in zip(cells, places, strict=True):
            _conditions(model, row, place, tree)
        if counts.bootstrap:
            _drawn(model, places, tree, labels)
        else:
            _all_once(model, places, tree, labels, in_order=number == 0)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.num_workers = workers
    status = solver.Solve(model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return np.array([[solver.Value(cell) for cell in row] for row in cells], dtype=np.int8), ""
    if status == cp_model.INFEASIBLE:
        return None, "No table of 0 and 1 meets all counts of the forest; its columns may not be binary."
    return None, f"The solver found no table within {seconds:.0f} s; give it more time."


def solver_module() -> Any:
    """CP-SAT, or MissingPackage."""
    try:
        return import_module("ortools.sat.python.cp_model")
    except ImportError as error:
        raise MissingPackage('Rebuilding a table from a forest needs OR-Tools; install "divulge[solver]".') from error


def _conditions(model: Any, row: list[Any], place: list[Any], tree: tuple[Leaf, ...]) -> None:
    """A row in a leaf meets its conditions."""
    for chosen, leaf in zip(place, tree, strict=True):
        for j in leaf.ones:
            model.AddImplication(chosen, row[j])
        for j in leaf.zeros:
            model.AddImplication(chosen, row[j].Not())


def _all_once(
    model: Any, places: list[list[Any]], tree: tuple[Leaf, ...], labels: NDArray[np.int64], *, in_order: bool
) -> None:
    """Every row lies in one leaf, and leaves have their rows of each class."""
    for place in places:
        model.AddExactlyOne(place)
    for number, leaf in enumerate(tree):
        for label, count in enumerate(leaf.counts):
            model.Add(sum(places[k][number] for k in np.flatnonzero(labels == label)) == int(count))
    if in_order:
        for label in range(len(tree[0].counts)):
            rows = np.flatnonzero(labels == label)
            leaves = np.repeat(np.arange(len(tree)), [leaf.counts[label] for leaf in tree])
            for k, leaf_number in zip(rows, leaves, strict=True):
                model.Add(places[k][int(leaf_number)] == 1)


def _drawn(model: Any, places: list[list[Any]], tree: tuple[Leaf, ...], labels: NDArray[np.int64]) -> None:
    """A row is drawn some times into one leaf, or not at all."""
    for place in places:
        model.AddAtMostOne(place)
    for number, leaf in enumerate(tree):
        chosen = [place[number] for place in places]
        model.Add(sum(chosen) == leaf.rows)
        draws = [model.NewIntVar(0, MOST_DRAWS, "") for _ in chosen]
        for one, times in zip(chosen, draws, strict=True):
            model.Add(times >= one)
            model.Add(times <= MOST_DRAWS * one)
        for label, count in enumerate(leaf.counts):
            model.Add(sum(draws[k] for k in np.flatnonzero(labels == label)) == int(count))
