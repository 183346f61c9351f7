"""The papers' networks come by name, in their sizes, from a seed alone, and survive the disk without a pickle."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from divulge import models
from divulge.core.errors import InvalidInput, UnsupportedModel, UntrustedFile
from divulge.core.storage import write_tensors

SMALL = {"vgg11": {"width": 0.1}, "resnet18": {"width": 0.1}, "homogeneous": {"width": 20}}


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def inputs(model: nn.Module) -> Tensor:
    return torch.rand(3, *model.input_shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
@pytest.mark.parametrize("name", models.names())
def test_every_named_network_answers_logits_and_survives_the_disk(name: str, tmp_path: Path) -> None:
    model = models.build(name, seed=4, **SMALL.get(name, {})).eval()
    with torch.no_grad():
        answer = model(inputs(model))
        assert answer.shape == (3, 1 if name == "homogeneous" else 10)
        assert bool(answer.isfinite().all())
        models.save(model, tmp_path)
        assert sorted(file.name for file in tmp_path.iterdir()) == ["model.json", "model.safetensors"]
        assert torch.equal(models.load(tmp_path)(inputs(model)), answer)


@pytest.mark.slow
def test_sizes_are_those_of_the_papers() -> None:
    counts = {name: sum(parameter.numel() for parameter in models.build(name).parameters()) for name in models.names()}
    assert counts["softmax"] == 784 * 10 + 10
    assert counts["balle-mlp"] == 784 * 10 + 10 + 10 * 10 + 10  # "8K"
    assert 54_500 < counts["balle-cnn"] < 55_500  # "55K"
    assert 99_500 < counts["balle-cnn-large"] < 102_000  # "100K"
    assert counts["homogeneous"] == 784 * 1000 + 1000 + 1000 * 1000 + 1000
    assert 11_000_000 < counts["resnet18"] < 11_300_000
    assert 9_000_000 < counts["vgg11"] < 9_400_000


@pytest.mark.parametrize("name", ["two-conv", "vgg11", "resnet18"])
def test_networks_fit_other_pictures_and_classes(name: str) -> None:
    options = {"filters": [4, 4]} if name == "two-conv" else {"width": 0.05, "norm": "group"}
    model = models.build(name, shape=(2, 40, 36), outputs=7, **options)
    assert model(inputs(model)).shape == (3, 7)


@pytest.mark.parametrize(("padding", "weights", "least"), [(0, 21_840, 16), (1, 30_840, 10), (2, 54_840, 4)])
def test_convolutions_can_go_without_padding(padding: int, weights: int, least: int) -> None:
    """Without padding, and with 10 and 20 filters and 50 dense units, it is the network of PyTorch's MNIST example."""
    options = {"filters": [10, 20], "dense": 50, "padding": padding}
    model = models.build("two-conv", shape=(1, 28, 28), **options)
    assert sum(parameter.numel() for parameter in model.parameters()) == weights
    assert model(inputs(model)).shape == (3, 10)
    smallest = models.build("two-conv", shape=(1, least, least), **options)
    assert smallest(inputs(smallest)).shape == (3, 10)
    with pytest.raises(InvalidInput, match=f"at least {least} x {least}"):
        models.build("two-conv", shape=(1, least - 1, least), **options)


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
def test_normalisation_can_be_chosen(norm: str) -> None:
    model = models.build("resnet18", width=0.05, norm=norm)
    kinds = {type(module) for module in model.modules()}
    assert (nn.BatchNorm2d in kinds) == (norm == "batch")
    assert (nn.GroupNorm in kinds) == (norm == "group")


def test_a_homogeneous_network_is_homogeneous() -> None:
    """Scaling all parameters by a scales the output by a^L, which is what Haim 2022 needs."""
    model = models.build("homogeneous", shape=(5,), width=7, depth=2)
    X = inputs(model)
    before = model(X)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    assert torch.allclose(model(X), 8 * before, rtol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_fixes_the_weights_and_nothing_global_is_touched(seed: int) -> None:
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first = models.build("two-conv", seed=seed)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(12)
    assert torch.equal(weights(first), weights(models.build("two-conv", seed=seed)))
    assert not torch.equal(weights(first), weights(models.build("two-conv", seed=seed + 1)))


def test_the_initial_distribution_is_torchs() -> None:
    ours, torchs = models.build("mlp", widths=[400, 300, 10]), models.MLP([400, 300, 10])
    for mine, theirs in zip(ours.parameters(), torchs.parameters(), strict=True):
        assert float(mine.detach().abs().max()) == pytest.approx(float(theirs.detach().abs().max()), rel=0.2)
        if mine.ndim == 2:
            assert float(mine.detach().std()) == pytest.approx(float(theirs.detach().std()), rel=0.05)


def test_a_relu_network_computes_its_formula_and_survives_the_disk(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    A, b, W, P, q = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((4, 3), (4,), (2, 4), (2, 3), (2,))
    )
    model = models.ReluNetwork(A, b, W, P, q)
    x = torch.randn(3, generator=generator, dtype=torch.float64)
    assert torch.allclose(model(x[None])[0], W @ (A @ x + b).clamp(min=0) + P @ x + q)
    models.save(model, tmp_path)
    again = models.load(tmp_path)
    assert torch.equal(weights(model), weights(again))
    assert weights(again).dtype == torch.float64
    assert torch.equal(models.ReluNetwork(A, b, W).q, torch.zeros(2, dtype=torch.float64))


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("alexnet", {}, "no architecture 'alexnet'; choose one of"),
        (None, {}, "no architecture None"),
        ("mlp", {}, "does not fit"),
        ("mlp", {"widths": [3]}, "at least an input and an output width"),
        ("mlp", {"widths": [3, 2], "activation": "gelu"}, "no activation 'gelu'"),
        ("mlp", {"widths": [3, 2], "bias": "last"}, "bias is"),
        ("softmax", {"colour": 1}, "does not fit"),
        ("two-conv", {"shape": (784,)}, "takes pictures"),
        ("two-conv", {"shape": (1, 3, 28)}, "at least 4 x 4"),
        ("two-conv", {"filters": [3]}, "two convolutions"),
        ("two-conv", {"padding": 3}, "by 0, 1 or 2 pixels"),
        ("vgg11", {"shape": (3, 28, 28)}, "at least 32 x 32"),
        ("vgg11", {"width": 0}, "above 0"),
        ("resnet18", {"norm": "layer"}, "norm is"),
        ("balle-cnn", {"activation": "step"}, "no activation 'step'"),
    ],
)
def test_descriptions_that_make_no_sense_are_refused(name: str | None, options: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        models.build({"architecture": name, **options})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return models.save(models.build("mlp", widths=[3, 2]), tmp_path)


def test_damaged_and_missing_files_are_named(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nowhere/model\.json is not there"):
        models.load(tmp_path / "nowhere")
    (saved / "model.json").write_text('{"architecture": "mlp", "widths": [4, 2]}')
    with pytest.raises(InvalidInput, match=r"do not fit its model\.json"):
        models.load(saved)
    (saved / "model.json").write_text('{"architecture": "mlp", "widths": [1000000000, 1000000000]}')
    with pytest.raises(InvalidInput, match=r"do not fit its model\.json"):  # and no memory is asked for
        models.load(saved)
    (saved / "model.json").write_text('{"architecture": "mlp", "widths": [1e400, 2]}')
    with pytest.raises(InvalidInput, match="does not fit"):
        models.load(saved)
    (saved / "model.json").write_text("[]")
    with pytest.raises(InvalidInput, match="does not describe a model"):
        models.load(saved)
    (saved / "model.json").write_text("{")
    with pytest.raises(InvalidInput, match="readable model"):
        models.load(saved)
    (saved / "model.json").write_text('{"architecture": "mlp", "widths": [3, 2]}')
    (saved / "model.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(InvalidInput, match="readable model"):
        models.load(saved)
    (saved / "model.safetensors").unlink()
    with pytest.raises(InvalidInput, match=r"model\.safetensors is not there"):
        models.load(saved)


def test_what_cannot_be_rebuilt_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="Linear is not one of divulge's architectures"):
        models.save(nn.Linear(2, 2), tmp_path)


# -- the user's own ---------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_networks.py").write_text(
        "from torch import nn\n"
        "def make(width=3):\n    return nn.Sequential(nn.Linear(4, width), nn.Dropout(0.5), nn.Linear(width, 2))\n"
        "def wrong():\n    return 7\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_networks", None)


@pytest.mark.parametrize("name", ["my_networks:make", "my_networks.py:make"])
def test_a_network_of_the_users_own(own: Path, name: str) -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    model = models.build(name, width=6, seed=1, dtype=torch.float64)
    assert torch.equal(torch.get_rng_state(), state)
    assert weights(model).dtype == torch.float64
    assert torch.equal(weights(model), weights(models.build(name, width=6, seed=1, dtype=torch.float64)))
    folder = models.save(model, own / "saved")
    assert json.loads((folder / "model.json").read_text()) == {"architecture": name, "width": 6}
    with pytest.raises(UntrustedFile, match="asks to import and run"):
        models.load(folder)
    assert torch.equal(weights(models.load(folder, trust_code=True)), weights(model))


def test_training_a_network_with_dropout_is_repeatable(own: Path) -> None:
    from divulge import Recipe

    recipe = Recipe(architecture="my_networks:make", epochs=5)
    X, y = torch.rand(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    assert torch.equal(weights(recipe.train(X, y)), weights(recipe.train(X, y)))


def test_code_that_does_not_do_is_refused(own: Path) -> None:
    for name, error, told in [
        ("no_such_module_here:make", InvalidInput, "could not be imported"),
        ("nothing.py:make", InvalidInput, "could not be imported"),
        ("my_networks:nothing", InvalidInput, "has no function 'nothing'"),
        ("my_networks:number", InvalidInput, "has no function 'number'"),
        ("my_networks:wrong", UnsupportedModel, r"returned int, not a torch\.nn\.Module"),
    ]:
        with pytest.raises(error, match=told):
            models.build(name)
    with pytest.raises(InvalidInput, match="could not be called with"):
        models.build("my_networks:make", colour=1)
    with pytest.raises(InvalidInput, match="draws its own initial weights"):
        models.build("my_networks:make", scales=[0.1])


@pytest.mark.parametrize(
    "spec",
    [
        {"architecture": "mlp", "widths": [2] * 200_000},
        {"architecture": "mlp", "widths": [10**12, 2]},
        {"architecture": "mlp", "widths": [10**3999, 2]},
        {"architecture": "relu-network", "inputs": 10**9, "width": 10**9, "outputs": 1},
        {"architecture": "softmax", "shape": [10**6, 10**6], "outputs": 2},
    ],
)
def test_a_description_of_an_impossible_size_is_refused_in_one_short_sentence(spec, tmp_path):
    """Before any memory is asked for, however many widths or digits the file holds."""
    (tmp_path / "model.json").write_text(json.dumps(spec))
    write_tensors(tmp_path / "model.safetensors", {"0.weight": torch.zeros(2, 2)})
    for refused in (lambda: models.build(spec), lambda: models.load(tmp_path)):
        with pytest.raises(InvalidInput) as refusal:
            refused()
        assert len(str(refusal.value)) < 500
