"""Convolutional networks of Milli 2019 (two-conv, VGG-11, ResNet-18) and Balle 2022 (the small CIFAR-10 network).

Milli 2019 names its networks without their sizes, so two-conv follows common practice. VGG-11 and ResNet-18 are
the usual adaptations to 32 x 32 pictures (one dense layer behind VGG's last pool; a 3 x 3 first convolution and no
first pool in ResNet). ``width`` scales every layer's channels, for a smaller budget. Balle 2022, Table VI, leaves
the padding and the last layer open: without padding, and with the "softmax" row as a linear layer behind a dense one
of 10 units, the parameter counts are those of the paper (55 K, and 100 K with 20 units).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from divulge.core.errors import InvalidInput
from divulge.models.mlp import ACTIVATIONS

Norm = Literal["batch", "group", "none"]
VGG11 = (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool")
RESNET18 = (64, 128, 256, 512)


class PictureNetwork(nn.Sequential):
    """Layers on pictures (channels, height, width), one after the other. The outputs are logits.

    Parameters
    ----------
    layers : sequence of nn.Module
        The layers in order.
    name : str
        The architecture that builds it again.
    shape : sequence of int
        The shape of one picture.
    **options
        The other options that build it again.

    Examples
    --------
    >>> from divulge import models
    >>> models.build("two-conv", shape=(1, 8, 8), filters=(2, 3), dense=4).input_shape
    (1, 8, 8)
    """

    def __init__(self, layers: Sequence[nn.Module], *, name: str, shape: Sequence[int], **options: object) -> None:
        super().__init__(*layers)
        self.spec = {"architecture": name, "shape": list(shape), **options}
        self.input_shape = tuple(shape)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions around a shortcut, which is a 1 x 1 convolution where the size changes."""

    def __init__(self, before: int, after: int, *, stride: int, norm: Norm) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(before, after, stride=stride, norm=norm),
            nn.ReLU(),
            *_convolution(after, after, stride=1, norm=norm),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride=stride, bias=norm == "none"), *_norm(norm, after)
            )
        self.last = nn.ReLU()

    def forward(self, X: Tensor) -> Tensor:
        out: Tensor = self.last(self.body(X) + self.shortcut(X))
        return out


def two_conv(
    *, shape: Sequence[int] = (1, 28, 28), outputs: int = 10, filters: Sequence[int] = (32, 64), dense: int = 128,
    padding: int = 2,
) -> PictureNetwork:  # fmt: skip
    """Two 5 x 5 convolutions, each with ReLU and a 2 x 2 max-pool, then two dense layers."""
    if padding not in (0, 1, 2):
        raise InvalidInput(f"two-conv pads its 5 x 5 convolutions by 0, 1 or 2 pixels; got {padding!r}.")
    channels, height, width = _picture(shape, at_least=(4, 10, 16)[2 - padding])
    if len(filters) != 2:
        raise InvalidInput(f"two-conv has two convolutions, so filters takes two numbers; got {list(filters)}.")
    first, second = filters
    rows, columns = (_halved_twice(size, 4 - 2 * padding) for size in (height, width))
    layers = [
        nn.Conv2d(channels, first, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(second * rows * columns, dense), nn.ReLU(), nn.Linear(dense, outputs),
    ]  # fmt: skip
    options = {"outputs": outputs, "filters": list(filters), "dense": dense, "padding": padding}
    return PictureNetwork(layers, name="two-conv", shape=shape, **options)


def _halved_twice(size: int, lost: int) -> int:
    """The size of a picture's side after two convolutions that lose so many pixels each, pooled 2 x 2."""
    return ((size - lost) // 2 - lost) // 2


def vgg11(
    *, shape: Sequence[int] = (3, 32, 32), outputs: int = 10, width: float = 1.0, norm: Norm = "batch"
) -> PictureNetwork:
    """VGG-11: eight 3 x 3 convolutions between five max-pools, and one dense layer."""
    channels, height, breadth = _picture(shape, at_least=32)
    layers: list[nn.Module] = []
    for entry in VGG11:
        if isinstance(entry, str):
            layers.append(nn.MaxPool2d(2))
            continue
        after = _scaled(entry, width)
        layers += [*_convolution(channels, after, stride=1, norm=norm), nn.ReLU()]
        channels = after
    layers += [nn.Flatten(), nn.Linear(channels * (height // 32) * (breadth // 32), outputs)]
    return PictureNetwork(layers, name="vgg11", shape=shape, outputs=outputs, width=width, norm=norm)


def resnet18(
    *, shape: Sequence[int] = (3, 32, 32), outputs: int = 10, width: float = 1.0, norm: Norm = "batch"
) -> PictureNetwork:
    """ResNet-18: four stages of two residual blocks, the average over the picture, and one dense layer."""
    channels, _, _ = _picture(shape, at_least=8)
    before = _scaled(RESNET18[0], width)
    layers: list[nn.Module] = [*_convolution(channels, before, stride=1, norm=norm), nn.ReLU()]
    for stage, full in enumerate(RESNET18):
        after = _scaled(full, width)
        layers.append(ResidualBlock(before, after, stride=2 if stage else 1, norm=norm))
        layers.append(ResidualBlock(after, after, stride=1, norm=norm))
        before = after
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs)]
    return PictureNetwork(layers, name="resnet18", shape=shape, outputs=outputs, width=width, norm=norm)


def balle_cnn(
    *, shape: Sequence[int] = (3, 32, 32), outputs: int = 10, dense: int = 10, activation: str = "elu"
) -> PictureNetwork:
    """Balle 2022, Table VI: 16 filters of 4 x 4 with stride 2, 32 of 4 x 4, a dense layer, and the logits."""
    channels, height, width = _picture(shape, at_least=10)
    if activation not in ACTIVATIONS:
        raise InvalidInput(f"There is no activation {activation!r}; choose one of {', '.join(ACTIVATIONS)}.")
    act = ACTIVATIONS[activation]
    left = ((height - 4) // 2 - 2) * ((width - 4) // 2 - 2)  # positions after both convolutions
    layers = [
        nn.Conv2d(channels, 16, 4, stride=2), act(), nn.Conv2d(16, 32, 4), act(), nn.Flatten(),
        nn.Linear(32 * left, dense), act(), nn.Linear(dense, outputs),
    ]  # fmt: skip
    options = {"outputs": outputs, "dense": dense, "activation": activation}
    return PictureNetwork(layers, name="balle-cnn", shape=shape, **options)


def _picture(shape: Sequence[int], *, at_least: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape) < 1 or min(shape[1:]) < at_least:
        raise InvalidInput(
            f"This network takes pictures (channels, height, width) of at least {at_least} x {at_least}; "
            f"got shape {tuple(shape)}."
        )
    return int(shape[0]), int(shape[1]), int(shape[2])


def _scaled(channels: int, width: float) -> int:
    if not width > 0:
        raise InvalidInput(f"width multiplies the number of channels, so it is above 0; got {width}.")
    return max(1, round(channels * width))


def _convolution(before: int, after: int, *, stride: int, norm: Norm) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=norm == "none"), *_norm(norm, after)]


def _norm(norm: Norm, channels: int) -> list[nn.Module]:
    if norm == "batch":
        return [nn.BatchNorm2d(channels)]
    if norm == "group":
        return [nn.GroupNorm(next(groups for groups in (8, 4, 2, 1) if channels % groups == 0), channels)]
    if norm == "none":
        return []
    raise InvalidInput(f'norm is "batch", "group" or "none", not {norm!r}.')
