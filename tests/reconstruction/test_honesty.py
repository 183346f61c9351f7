"""What a stranger's model gets: a result that says what it is, or one clear sentence."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier
from torch import Tensor, nn

import divulge
from divulge.core.errors import AttackFailed, UnsupportedModel
from divulge.reconstruction import PaperSettings, Settings, from_weights, match
from divulge.training import margin

from ..margin_targets import Target, odd_digits

QUICK = Settings(steps=60)


def mlp(widths: tuple[int, int, int]) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(widths[0], widths[1]), nn.ReLU(), nn.Linear(widths[1], widths[2]))


def trained_a_little(loss: str, epochs: int) -> nn.Sequential:
    """64-128-1 on 300 digits, which it does not fit."""
    X, y, _ = odd_digits(300, seed=0)
    X = (X - X.mean(dim=0)).float()
    wanted = y.float() if loss == "logistic" else X.mean(dim=1)
    model = mlp((64, 128, 1))
    for _ in range(epochs):
        out = model(X)[:, 0]
        error = (out - wanted).square().mean()
        if loss == "logistic":
            error = nn.functional.binary_cross_entropy_with_logits(out, wanted)
        with torch.no_grad():  # not torch.optim, which takes seconds to import
            slopes = torch.autograd.grad(error, list(model.parameters()))
            for parameter, slope in zip(model.parameters(), slopes, strict=True):
                parameter -= 0.1 * slope
    return model


@pytest.mark.parametrize(
    "trained",
    [lambda: mlp((64, 128, 1)), lambda: trained_a_little("logistic", 20), lambda: trained_a_little("square", 100)],
    ids=["not at all", "logistic", "square"],
)
def test_a_model_that_was_never_trained_to_fit_keeps_no_sample(trained: Callable[[], nn.Module]) -> None:
    model = trained()
    with pytest.raises(AttackFailed, match="no gap in its singular values"):
        from_weights(model)
    found = from_weights(model, n=8, settings=QUICK)
    assert len(found.samples) == 0
    assert not found.success
    assert found.reason


def test_low_rank_weights_without_training_keep_no_sample() -> None:
    model = mlp((64, 128, 1))
    with torch.no_grad():
        mixing = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
        model[0].weight.copy_(model[0].weight[:, :4] @ mixing)  # a gap that training did not make
    found = from_weights(model, settings=QUICK)
    assert len(found.samples) == 0
    assert "unexplained" in found.reason


def test_convolutions_are_named_and_the_printed_method_says_what_it_left_unexplained() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 1))
    model.input_shape = (1, 8, 8)  # type: ignore[assignment]
    with pytest.raises(UnsupportedModel, match="Conv2d"):
        from_weights(model)
    found = from_weights(model, method="paper", n=4, settings=PaperSettings(iterations=20))
    assert not found.success
    assert "unexplained" in found.reason


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_read(target: Target, dtype: torch.dtype) -> None:
    found = from_weights(copy.deepcopy(target.model).to(dtype), mean=target.mean, settings=QUICK)
    assert 6 <= found.rank <= 16  # rounding to bfloat16 shows as a few directions more
    assert found.everything is not None
    assert bool(torch.isfinite(found.everything).all())


def test_a_constant_column_has_the_size_of_its_value_as_its_unit() -> None:
    X = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    table = torch.cat([X, torch.full((30, 1), 7.0, dtype=torch.float64)], dim=1)
    near = table[:10] + torch.tensor([0.0, 0, 0, 0, 0.07])
    judged = match(near, table[:15], unseen=table[15:])
    assert judged.found() == 10
    assert float(judged.column_error[-1]) == pytest.approx(0.01, rel=1e-6)
    assert float(judged.correlation.min()) > -10


def test_a_constant_column_is_reconstructed_like_any_other() -> None:
    X, y, _ = odd_digits(8, seed=0)
    table = torch.cat([X, torch.full((8, 1), 7.0, dtype=torch.float64)], dim=1)
    model = margin.to_margin(margin.network([65, 128, 1], first_scale=1e-3), table, y).model
    found = from_weights(model, value_range=(0.0, 7.0), settings=QUICK)
    assert found.everything is not None
    assert bool(torch.isfinite(found.everything).all())


def test_a_single_training_row_is_found() -> None:
    X, y, unseen = odd_digits(1, seed=0)
    model = margin.to_margin(margin.network([64, 50, 1], first_scale=1e-3), X, y).model
    judged = from_weights(model, settings=QUICK).match(X, unseen)
    assert judged.found() == 1


@pytest.mark.slow
def test_a_scikit_learn_network_is_read_once_it_is_a_module() -> None:
    digits = load_digits()
    fitted = MLPClassifier((30,), max_iter=2000, random_state=0).fit(digits.data[:20] / 16, digits.target[:20] % 2)
    with pytest.raises(UnsupportedModel, match=r"access=\"weights\"\)\.weights\(\)"):
        from_weights(fitted)  # type: ignore[arg-type]
    module = divulge.oracle(fitted, access="weights").weights()
    found = from_weights(module, n=20, settings=QUICK)
    assert isinstance(found.samples, Tensor)
    assert found.success == bool(len(found.samples))
