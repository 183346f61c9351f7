"""Inputs that are pictures: their shape, their range of values and their cosine transform."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SMALLEST = 8
"""Flat inputs are taken for a square picture from this side on; shorter rows are rather a table."""

Scaling = Literal["stretch", "fit", "clip"]


def picture_shape(dim: int, declared: Sequence[int] | None = None) -> tuple[int, int, int] | None:
    """The shape of inputs that are pictures.

    Parameters
    ----------
    dim : int
        How many numbers an input has.
    declared : sequence of int, optional
        The shape that the model or the data set states. One extent says nothing about pictures, and counts as none.

    Returns
    -------
    tuple of int or None
        Channels, height and width: as declared, or those of a square grey or colour picture of at least 8 x 8 with
        ``dim`` numbers; None for anything else.

    Examples
    --------
    >>> picture_shape(784), picture_shape(3072), picture_shape(30)
    ((1, 28, 28), (3, 32, 32), None)
    >>> picture_shape(12, (3, 4))
    (1, 3, 4)
    """
    if declared is not None and len(declared) > 1:
        return declared_picture(dim, declared)
    for channels in (1, 3):
        side = math.isqrt(dim // channels)
        if side >= SMALLEST and channels * side * side == dim:
            return channels, side, side
    return None


def declared_picture(dim: int, shape: Sequence[int] | None) -> tuple[int, int, int] | None:
    """Channels, height and width of ``dim`` numbers if ``shape`` says that they are a picture, else None."""
    if shape is None or len(shape) not in (2, 3) or math.prod(shape) != dim:
        return None
    channels, height, width = (1, *shape) if len(shape) == 2 else shape
    return int(channels), int(height), int(width)


def stretched(X: Tensor, value_range: tuple[float, float] = (0.0, 1.0)) -> Tensor:
    """Each row stretched so that its smallest and largest value become the ends of the range."""
    low, high = X.amin(dim=1, keepdim=True), X.amax(dim=1, keepdim=True)
    return value_range[0] + (X - low) / (high - low).clamp_min(1e-30) * (value_range[1] - value_range[0])


def as_picture(x: Any, shape: Sequence[int], *, scaling: Scaling = "stretch") -> NDArray[np.float64]:
    """One input as an image that can be drawn.

    Parameters
    ----------
    x : Tensor or array
        The numbers of one input, in any shape.
    shape : sequence of int
        Height and width, or channels, height and width.
    scaling : {"stretch", "fit", "clip"}, default "stretch"
        How values come to lie in [0, 1]: always stretched to the whole range, stretched only if some lie outside it,
        or cut off at its ends.

    Returns
    -------
    array
        [height, width], or [height, width, channels] with several channels.
    """
    array = np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x, dtype=float).reshape(tuple(shape))
    low, high = float(array.min()), float(array.max())
    if scaling == "clip":
        array = array.clip(0, 1)
    elif scaling == "stretch" or low < -1e-6 or high > 1 + 1e-6:
        array = (array - low) / (high - low) if high > low else np.zeros_like(array)
    if array.ndim == 2:
        return array
    return array[0] if len(array) == 1 else array.transpose(1, 2, 0)


def cosine_transform(size: int) -> Tensor:
    """The orthonormal cosine transform as a matrix, [frequency, place]."""
    from scipy.fft import dct  # takes a quarter of a second to load

    return torch.from_numpy(dct(np.eye(size), axis=0, norm="ortho"))
