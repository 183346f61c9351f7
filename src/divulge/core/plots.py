"""Figures: grids of pictures and curves. None of them opens a window or touches pyplot's global state."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divulge.core.storage import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from divulge.core.images import Scaling

DOTS = 110  # an inch
NAME = 17  # characters of a row's name in one line


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this many inches, with a layout that keeps labels apart."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, without the lines at the top and on the right."""
    figure = new_figure(width, height)
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def png(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS)
    return buffer.getvalue()


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure in the format that the ending of the name says (.png, .svg, .pdf). Returns the path."""
    with replacing(path) as part:
        figure.savefig(part, dpi=DOTS)
    return Path(path)


def grid_of_pictures(
    rows: Sequence[tuple[str, Any]],
    shape: Sequence[int],
    *,
    captions: Sequence[Sequence[str]] | None = None,
    columns: int | None = None,
    side: float = 0.9,
    scaling: Scaling = "stretch",
) -> Figure:
    """Rows of pictures, each with its name at the left.

    Parameters
    ----------
    rows : sequence of (str, inputs)
        The name of each row and its inputs [n, d]; the inputs of one place stand below one another.
    shape : sequence of int
        Height and width of a picture, or channels, height and width.
    captions : sequence of sequences of str, optional
        Above each picture of each row; a row may have none.
    columns : int, optional
        Pictures beside one another; longer rows go on in a further block below. By default all are in one line.
    side : float, default 0.9
        Inches a picture.
    scaling : {"stretch", "fit", "clip"}, default "stretch"
        How values come to lie between black and white, as in ``divulge.core.images.as_picture``.

    Returns
    -------
    matplotlib.figure.Figure
        To be written by ``save``; ``picture_grid`` gives the same as PNG bytes.
    """
    from divulge.core.images import as_picture

    count = max(len(inputs) for _, inputs in rows)
    columns = max(1, count if columns is None else min(columns, count))
    blocks = max(1, -(-count // columns))
    names = [textwrap.fill(name, NAME) for name, _ in rows]
    margin = 0.1 + 0.075 * max(len(line) for name in names for line in name.splitlines() or [""])
    above = [0.22 if captions is not None and any(captions[row : row + 1]) else 0.06 for row in range(len(rows))]
    width, height = margin + columns * (side + 0.05) + 0.05, blocks * (sum(above) + len(rows) * side) + 0.06
    figure = new_figure(width, height)
    figure.set_layout_engine("none")
    top = height
    for first in range(0, max(1, count), columns):
        for row, (_, inputs) in enumerate(rows):
            top -= above[row] + side
            if names[row]:
                figure.text((margin - 0.08) / width, (top + side / 2) / height, names[row], ha="right", va="center",
                            fontsize=9)  # fmt: skip
            for place in range(first, min(first + columns, len(inputs))):
                left = margin + (place - first) * (side + 0.05)
                axes = figure.add_axes((left / width, top / height, side / width, side / height))
                axes.imshow(as_picture(inputs[place], shape, scaling=scaling), cmap="gray", vmin=0, vmax=1,
                            interpolation="nearest")  # fmt: skip
                axes.set_axis_off()
                if captions is not None and place < len(captions[row]):
                    axes.set_title(captions[row][place], fontsize=7, pad=2)
    return figure


def picture_grid(
    rows: Sequence[tuple[str, Any]], shape: Sequence[int], *, captions: Sequence[Sequence[str]] | None = None
) -> bytes:
    """``grid_of_pictures`` in one block, as a PNG."""
    return png(grid_of_pictures(rows, shape, captions=captions))


def curve(
    series: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
) -> bytes:
    """Lines [(name, x, y), ...] on one pair of axes, as a PNG."""
    figure, axes = new_axes(6.4, 3.4)
    markers = "os^Dv*"
    for number, (name, x, y) in enumerate(series):
        axes.plot(x, y, marker=markers[number % len(markers)] if len(x) < 30 else None, markersize=4, label=name)
    if log_x:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    if not log_x and all(isinstance(count, int) for _, x, _ in series for count in x):
        axes.locator_params(axis="x", integer=True)  # counts have no halves
    if not log_y and all(isinstance(count, int) for _, _, y in series for count in y):
        axes.locator_params(axis="y", integer=True)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=9)
    return png(figure)
