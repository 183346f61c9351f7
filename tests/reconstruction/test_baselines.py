"""The comparisons: model inversion, the first layer, broken weights, and the printed method."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from divulge import reconstruction
from divulge.core.errors import AttackFailed, InvalidInput, UnsupportedModel
from divulge.models import MLP
from divulge.models.weight_matrices import read
from divulge.reconstruction import baselines
from divulge.reconstruction.printed import kkt
from divulge.training import margin

from ..margin_targets import Target, odd_digits


@pytest.mark.slow
def test_model_inversion_drives_outputs_apart_inside_the_range(target: Target) -> None:
    rebuilt = baselines.model_inversion(target.model, starts=40, steps=60, mean=target.mean)
    out = read(target.model)(rebuilt)[:, 0]
    usual = read(target.model)(target.X)[:, 0].abs().max()
    assert float(out[::2].min()) > 0 > float(out[1::2].max())
    assert float(out.abs().median()) > float(usual)
    assert float((rebuilt + target.mean).min()) > -1e-6
    assert float((rebuilt + target.mean).max()) < 1 + 1e-6
    several = baselines.model_inversion(MLP([64, 9, 3]), starts=6, steps=5)
    assert several.shape == (6, 64)
    with pytest.raises(InvalidInput, match="at least one start"):
        baselines.model_inversion(target.model, starts=0)


def test_broken_weights_keep_the_spectrum_and_lose_the_function(target: Target) -> None:
    whole, broken = read(target.model), read(baselines.broken(target.model))
    assert torch.allclose(torch.linalg.svdvals(broken.first()), torch.linalg.svdvals(whole.first()))
    assert not torch.allclose(broken(target.X), whole(target.X))
    assert baselines.first_layer(target.model).shape == (256, 64)


def test_the_printed_loss_is_the_equation_it_says(target: Target) -> None:
    quick = kkt.PaperSettings(iterations=1, initial_scale=0.5, alpha=1e6)
    found = kkt.reconstruct(target.model, n=4, settings=quick, seed=3)
    generator = torch.Generator().manual_seed(3)
    X = 0.5 * torch.randn(8, 64, generator=generator, dtype=torch.float64)
    multipliers = torch.rand(8, generator=generator, dtype=torch.float64)
    labels = torch.tensor([1.0] * 4 + [-1.0] * 4).double()
    parameters = list(target.model.parameters())
    pulled = torch.autograd.grad((multipliers * labels * target.model(X)[:, 0]).sum() / 8, parameters)
    gap = sum(float((p - g).detach().square().sum()) for p, g in zip(parameters, pulled, strict=True))
    size = sum(float(p.detach().square().sum()) for p in parameters)
    assert found.residual == pytest.approx((gap / size) ** 0.5, rel=1e-6)


@pytest.mark.slow
def test_the_printed_method_lowers_its_residual_and_returns_all_samples() -> None:
    X, y, _ = odd_digits(8, seed=1)
    model = margin.to_margin(margin.network([64, 40, 1], first_scale=1e-3, balanced=True), X - X.mean(dim=0), y).model
    first, later = (
        kkt.reconstruct(model, n=8, settings=kkt.PaperSettings(iterations=steps, learning_rate=0.01, lambda_rate=0.01))
        for steps in (1, 400)
    )
    assert later.residual < first.residual
    assert later.samples.shape == (16, 64)
    assert later.method == "paper"
    quick = reconstruction.from_weights(model, method="paper", samples=6, seconds=0.01)
    assert quick.samples.shape == (6, 64)


@pytest.mark.slow
def test_a_run_of_the_printed_method_goes_on_where_it_stopped(target: Target, tmp_path: Path) -> None:
    def run(iterations: int, folder: Path | None, seed: int = 0) -> torch.Tensor:
        settings = kkt.PaperSettings(iterations=iterations, learning_rate=1e-6)
        return kkt.reconstruct(target.model, n=4, seed=seed, settings=settings, checkpoint=folder).samples

    run(60, tmp_path)
    assert torch.allclose(run(100, tmp_path), run(100, None))
    assert torch.allclose(run(100, tmp_path), run(100, None))
    assert torch.allclose(run(100, tmp_path, seed=1), run(100, None, seed=1))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_diverging_run_is_said() -> None:
    X, y, _ = odd_digits(8, seed=1)
    model = margin.to_margin(margin.network([64, 40, 1], first_scale=1e-3, balanced=True), X, y).model
    with pytest.raises(AttackFailed, match="diverged"):
        kkt.reconstruct(model, n=8, settings=kkt.PaperSettings(iterations=300, learning_rate=1e9))


def test_the_printed_method_takes_convolutions_and_several_classes() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(108, 3, bias=False))
    model.input_shape = (1, 8, 8)  # type: ignore[assignment]
    found = kkt.reconstruct(model, n=3, settings=kkt.PaperSettings(iterations=3))
    assert found.samples.shape == (6, 64)


def test_the_printed_method_says_what_it_needs(target: Target) -> None:
    with pytest.raises(InvalidInput, match="give n"):
        reconstruction.from_weights(target.model, method="paper")
    with pytest.raises(UnsupportedModel, match="batch normalisation"):
        kkt.reconstruct(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1)), n=2)
    with pytest.raises(UnsupportedModel, match="has none"):
        kkt.reconstruct(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)), n=2)


@pytest.mark.slow
def test_results_are_written(target: Target, tmp_path: Path) -> None:
    found = reconstruction.from_weights(
        target.model, mean=target.mean, restarts=1, settings=reconstruction.Settings(steps=30)
    )
    found.save(tmp_path)
    assert (tmp_path / "samples.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "samples.npz").is_file()
    assert found.as_dict()["found"] == len(found.samples) > 0
