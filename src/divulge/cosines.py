"""The cosine transform of pictures, in whose coordinates they are mostly weak: shared by what cleans and by what looks
for them."""

from __future__ import annotations

import numpy as np
import torch
from scipy.fft import dct
from torch import Tensor


def cosines(size: int) -> Tensor:
    """The orthonormal cosine transform, [frequency, place]."""
    return torch.from_numpy(dct(np.eye(size), axis=0, norm="ortho"))
