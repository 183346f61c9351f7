"""Mixed-integer programs do a fixed amount of work, so that a run repeats on a busy machine."""

from __future__ import annotations

import numpy as np

from divulge.extraction.layers import relu_program
from divulge.extraction.layers.known_layers import KnownLayers
from divulge.extraction.layers.relu_program import SEARCH, ReluProgram


def layers(width: int) -> KnownLayers:
    rng = np.random.default_rng(0)
    known = KnownLayers(6)
    for _ in range(2):
        known = known.with_layer(rng.normal(size=(width, known.width)), rng.normal(size=width))
    return known


def test_programs_are_limited_by_nodes_and_not_by_the_clock(monkeypatch):
    asked, solve = [], relu_program.milp

    def recorded(*arguments, **named):
        asked.append(dict(named["options"]))
        return solve(*arguments, **named)

    monkeypatch.setattr(relu_program, "milp", recorded)
    rows = []
    for width, share in ((5, 1.0), (5, 1.0), (5, SEARCH), (8, 1.0)):
        rows.append(ReluProgram(layers(width), -3.0, 3.0).maximum(np.ones(width), share).row)
    assert all(set(options) == {"node_limit"} for options in asked)
    nodes = [options["node_limit"] for options in asked]
    assert nodes[0] == nodes[1] > nodes[2] > 0
    assert nodes[0] > nodes[3] > 0  # a larger program takes longer for each node
    assert (rows[0] == rows[1]).all()
