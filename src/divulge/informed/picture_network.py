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

from divulge.informed.network import NetworkMap, standardisation
from divulge.models.build import initialise
from divulge.progress import report

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
    batch_size: int = 128,
    seed: int = 0,
    start: NetworkMap | None = None,
) -> NetworkMap:
    """Train generator and discriminator in turn; ``start`` continues from another fixed set's generator."""
    features, rows = features.to(torch.float32), X.flatten(1).to(torch.float32)
    mean, spread = standardisation(features)
    inputs = (features - mean) / spread
    network, critic = generator(features.shape[1], shape), discriminator(shape[0])
    initialise(network, seed=seed)
    initialise(critic, seed=seed + 1)
    if start is not None:
        network.load_state_dict(start.network.state_dict())
    maker = torch.optim.Adam(network.parameters(), lr=learning_rate, weight_decay=1e-4)
    judge = torch.optim.Adam(critic.parameters(), lr=1e-5)
    perceptual = _perceptual()
    order = torch.Generator().manual_seed(seed)
    last = float("nan")
    for epoch in range(epochs):
        total = 0.0
        for index in torch.split(torch.randperm(len(inputs), generator=order), batch_size):
            made = network(inputs[index])
            pictures, truth = (part.reshape(-1, *shape) for part in (made, rows[index]))
            away = made - rows[index]
            loss = away.abs().mean() + away.square().mean() + ADVERSARIAL * (critic(pictures) - 1).square().mean()
            if perceptual is not None:
                loss = loss + perceptual(pictures, truth)
            maker.zero_grad()
            loss.backward()
            maker.step()
            doubt = (critic(truth) - 1).square().mean() + critic(pictures.detach()).square().mean()
            judge.zero_grad()
            doubt.backward()
            judge.step()
            total += float(loss.detach()) * len(index)
        last = total / len(inputs)
        report("training the reconstructor network", epoch + 1, epochs, loss=f"{last:.4f}")
    return NetworkMap(network.eval(), mean, spread, last)


def _perceptual() -> Callable[[Tensor, Tensor], Tensor] | None:
    """LPIPS of two batches of pictures in [0, 1], where it is installed."""
    try:
        import lpips  # type: ignore[import-not-found]
    except ImportError:
        report("the LPIPS term is left out: the package lpips is not installed")
        return None
    measure = lpips.LPIPS(net="alex", verbose=False).eval()
    return lambda made, truth: measure(made, truth, normalize=True).mean()
