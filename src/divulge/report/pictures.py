"""Pictures for the report: grids of inputs and curves, as PNG bytes. Nothing here opens a window or a global figure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor


def picture_grid(
    rows: Sequence[tuple[str, Any]], shape: tuple[int, ...], *, captions: Sequence[Sequence[str]] | None = None
) -> bytes:
    """Rows of pictures, each with its name at the left: [(name, inputs [n, d]), ...], one column an input."""
    columns = max(len(inputs) for _, inputs in rows)
    figure = _figure(0.9 * columns + 1.6, (1.05 if captions is None else 1.3) * len(rows))
    for r, (name, inputs) in enumerate(rows):
        for c in range(columns):
            axes = figure.add_subplot(len(rows), columns, r * columns + c + 1)
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set_visible(False)
            if c == 0:
                axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
            if c < len(inputs):
                axes.imshow(as_picture(inputs[c], shape), cmap="gray", interpolation="nearest")
                if captions is not None and c < len(captions[r]):
                    axes.set_title(captions[r][c], fontsize=7, pad=2)
            else:
                axes.set_axis_off()
    return _png(figure)


def as_picture(x: Any, shape: tuple[int, ...]) -> Any:
    """One input as height x width (x channels), stretched to the full range so that anything there can be seen."""
    array = np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x, dtype=float).reshape(shape)
    low, high = array.min(), array.max()
    array = (array - low) / (high - low) if high > low else np.zeros_like(array)
    return array[0] if shape[0] == 1 else array.transpose(1, 2, 0)


def curve(
    series: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
) -> bytes:
    """Lines [(name, x, y), ...] on one pair of axes."""
    figure = _figure(6.4, 3.4)
    axes = figure.add_subplot()
    markers = "os^Dv*"
    for number, (name, x, y) in enumerate(series):
        axes.plot(x, y, marker=markers[number % len(markers)] if len(x) < 30 else None, markersize=4, label=name)
    if log_x:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    for axis, place, logarithmic in ((axes.xaxis, 1, log_x), (axes.yaxis, 2, log_y)):
        if not logarithmic and all(isinstance(count, int) for line in series for count in line[place]):
            axis.get_major_locator().set_params(integer=True)  # counts have no halves
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=9)
    return _png(figure)


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
