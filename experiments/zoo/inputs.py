"""Inputs as the makers of the files feed them: sound, pictures, bytes of files, features. Nothing here uses divulge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def sound(count: int, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Three tones that swell and fade, with noise, between -1 and 1."""
    draw = np.random.default_rng(seed)
    samples = int(np.prod(shape))
    t = np.arange(samples) / 16_000
    pitch, size = draw.uniform(80, 2_000, (count, 3, 1)), draw.uniform(0, 0.3, (count, 3, 1))
    wave = (size * np.sin(2 * np.pi * pitch * t) * np.sin(np.pi * t / t[-1])).sum(axis=1)
    noise = draw.uniform(0, 0.05, (count, 1)) * draw.standard_normal((count, samples))
    return np.clip(wave + noise, -1, 1).astype(np.float32).reshape(count, *shape)


def pictures(count: int, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Pieces of scikit-learn's two photographs, in [0, 1], channels first; grey where there is one channel."""
    from sklearn.datasets import load_sample_images

    draw = np.random.default_rng(seed)
    channels, height, width = shape
    photographs = load_sample_images().images
    cut = np.empty((count, channels, height, width), dtype=np.float32)
    for place in range(count):
        photograph = photographs[place % len(photographs)]
        size = int(draw.integers(40, 400))
        top, left = draw.integers(photograph.shape[0] - size), draw.integers(photograph.shape[1] - size)
        rows = (top + np.linspace(0, size - 1, height)).astype(int)
        columns = (left + np.linspace(0, size - 1, width)).astype(int)
        piece = photograph[rows][:, columns].transpose(2, 0, 1) / 255
        cut[place] = piece.mean(axis=0, keepdims=True) if channels == 1 else piece
    return cut


def features(count: int, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Features of an earlier network, as wake-word models take them: numbers of the size of ten."""
    return (10 * np.random.default_rng(seed).standard_normal((count, *shape))).astype(np.float32)


def standard(count: int, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal((count, *shape)).astype(np.float32)


def file_bytes(count: int, shape: tuple[int, ...], seed: int = 0) -> Array:
    """First and last bytes of files of installed packages, 256 where a file has no more."""
    import sklearn

    half = shape[0] // 2
    files = sorted(path for path in Path(sklearn.__file__).parent.rglob("*") if path.is_file())
    chosen = np.random.default_rng(seed).permutation(len(files))[:count]
    rows = np.full((count, shape[0]), 256, dtype=np.float32)
    for place, number in enumerate(chosen):
        content = np.frombuffer(files[number].read_bytes(), dtype=np.uint8)
        first, last = content[:half], content[-half:]
        rows[place, : len(first)] = first
        rows[place, shape[0] - len(last) :] = last
    return rows
