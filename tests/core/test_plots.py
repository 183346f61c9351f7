"""Figures are complete files, and leave matplotlib's global state alone."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.image import imread

from divulge.core.plots import DOTS, curve, grid_of_pictures, new_axes, picture_grid, save


def test_every_picture_of_every_row_is_drawn_where_it_belongs():
    bright, dark = np.ones((5, 64)), np.zeros((3, 64))
    figure = grid_of_pictures([("bright", bright), ("dark", dark)], (1, 8, 8), columns=2, scaling="clip")
    assert len(figure.axes) == 8
    tops = sorted({round(axes.get_position().y0, 6) for axes in figure.axes}, reverse=True)
    shown = [[float(axes.images[0].get_array().mean()) for axes in figure.axes if round(axes.get_position().y0, 6) == y]
             for y in tops]  # fmt: skip
    assert shown == [[1, 1], [0, 0], [1, 1], [0], [1]]  # blocks of two, the rows below one another in each


def test_pictures_do_not_overlap_and_lie_inside_the_figure():
    figure = grid_of_pictures([("a long name of a row", np.zeros((4, 12))), ("b", np.ones((4, 12)))], (3, 2, 2),
                              captions=[["x"] * 4, []])  # fmt: skip
    boxes = [axes.get_position() for axes in figure.axes]
    assert all(box.x0 > 0 and box.y0 > 0 and box.x1 < 1 and box.y1 < 1 for box in boxes)
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_an_empty_grid_is_a_figure_too():
    assert picture_grid([("none", np.zeros((0, 64)))], (8, 8))[:4] == b"\x89PNG"


@pytest.mark.slow
@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_the_ending_of_the_name_decides_the_format(tmp_path, suffix, start):
    figure, _ = new_axes(2, 1)
    assert save(figure, tmp_path / "new" / f"figure{suffix}").read_bytes().startswith(start)


def test_a_figure_has_the_size_that_was_asked_for(tmp_path):
    figure, _ = new_axes(2, 1)
    assert imread(save(figure, tmp_path / "figure.png")).shape[:2] == (DOTS, 2 * DOTS)


@pytest.mark.slow
def test_pyplot_is_never_loaded():
    program = (
        "import sys, numpy as np\nfrom divulge.core.plots import curve, picture_grid\n"
        "picture_grid([('a', np.zeros((2, 64)))], (8, 8)); curve([('a', [1, 2], [1, 2])], x_label='x', y_label='y')\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_curve_of_counts_has_whole_ticks():
    assert curve([("a", [1, 2], [3, 4])], x_label="x", y_label="y")[:4] == b"\x89PNG"
