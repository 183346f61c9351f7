"""RecoNN for pictures (Balle 2022, Tables V, VII and VIII): a dense layer, two transposed convolutions, and a
patch-based discriminator that tells reconstructions from rows, as printed for CIFAR-10.

Adam at 1e-4 with weight decay 1e-4, batches of 128; mean absolute plus mean squared error, plus the squared error of
the discriminator (itself trained at 1e-5). The weight of that last term is not printed; it is ``ADVERSARIAL`` here. The
LPIPS term is added where the package ``lpips`` and its weights are installed, and left out otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from divulge.core.progress import report
from divulge.informed.shadow_models.reconstructor_network import NetworkMap, descend, learn, off
from divulge.models.build import initialise

ADVERSARIAL = 0.01


def generator(features: int, shape: Sequence[int]) -> nn.Module:
    """Table VII for pictures whose sides are multiples of four: 4,096 units for 32 x 32."""
    channels, height, width = shape
    side = (64, height // 4, width // 4)
    return nn.Sequential(
        nn.Linear(features, side[0] * side[1] * side[2]), nn.ReLU(), nn.Unflatten(1, side),
        nn.ConvTranspose2d(64, 32, 5, stride=2, padding=2, output_padding=1), nn.ReLU(),
        nn.ConvTranspose2d(32, channels, 5, stride=2, padding=2, output_padding=1), nn.Flatten(),
    )  # fmt: skip


def discriminator(channels: int) -> nn.Module:
    """Table VIII: a score for every patch."""
    sizes = ((channels, 64, 2), (64, 128, 2), (128, 256, 2), (256, 512, 1))
    layers: list[nn.Module] = []
    for before, after, stride in sizes:
        layers += [nn.Conv2d(before, after, 4, stride=stride, padding=1 if stride == 2 else 2), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Conv2d(512, 1, 4, padding=2))


def fit(
    features: Tensor,
    X: Tensor,
    *,
    shape: Sequence[int],
    epochs: int = 100,
    learning_rate: float = 1e-4,
    seed: int = 0,
    start: NetworkMap | None = None,
    half: bool = False,
) -> NetworkMap:
    """The network for pictures: generator and discriminator in turn."""
    network, critic = generator(features.shape[1], shape), discriminator(shape[0])
    initialise(critic, seed=seed + 1)
    maker = torch.optim.Adam(network.parameters(), lr=learning_rate, weight_decay=1e-4)
    judge = torch.optim.Adam(critic.parameters(), lr=1e-5)
    perceptual = _perceptual()

    def step(made: Tensor, rows: Tensor) -> Tensor:
        pictures, truth = (part.reshape(-1, *shape) for part in (made, rows))
        loss: Tensor = off(made, rows) + ADVERSARIAL * (critic(pictures) - 1).square().mean()
        if perceptual is not None:
            loss = loss + perceptual(pictures, truth)
        descend(maker, loss)
        descend(judge, (critic(truth) - 1).square().mean() + critic(pictures.detach()).square().mean())
        return loss

    return learn(network, step, features, X, epochs=epochs, seed=seed, start=start, half=half)


def _perceptual() -> Callable[[Tensor, Tensor], Tensor] | None:
    """LPIPS of two batches of pictures in [0, 1], where it is installed."""
    try:
        import lpips  # type: ignore[import-not-found]
    except ImportError:
        report("the LPIPS term is left out: the package lpips is not installed")
        return None
    measure = lpips.LPIPS(net="alex", verbose=False).eval()
    return lambda made, truth: measure(made, truth, normalize=True).mean()
