"""What is exported to ONNX answers the same in ONNX Runtime and when it is read back into torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import divulge
from divulge import models
from divulge.core.errors import UnsupportedModel
from divulge.models import MLP, ReluNetwork
from divulge.oracles import load_model
from divulge.oracles.local.torch_module import Probabilities
from divulge.oracles.onnx.export import export_onnx

pytest.importorskip("onnxruntime")


def relu_network():
    shapes = [(6, 8), (6,), (2, 6), (2, 8), (2,)]
    return ReluNetwork(*(torch.randn(shape) for shape in shapes))


def normalised(model):
    """Running statistics as training would leave them."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.3, 0.3)
            nn.init.uniform_(module.running_var, 0.2, 0.6)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return model


def pictures(*layers):
    model = nn.Sequential(*layers)
    model.input_shape = (2, 9, 8)
    return model


CASES = {
    "mlp": (lambda: MLP([8, 16, 3]), MLP),
    "linear": (lambda: MLP([8, 3]), MLP),
    "bias first": (lambda: MLP([8, 16, 16, 1], bias="first"), MLP),
    "no bias": (lambda: MLP([8, 16, 1], bias="none"), MLP),
    "elu": (lambda: MLP([8, 5, 2], activation="elu"), MLP),
    "tanh": (lambda: MLP([8, 5, 2], activation="tanh"), MLP),
    "sigmoid": (lambda: MLP([8, 5, 2], activation="sigmoid"), MLP),
    "softplus": (lambda: MLP([8, 5, 2], activation="softplus"), MLP),
    "relu network": (relu_network, ReluNetwork),
    "two activations": (
        lambda: nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)),
        nn.Sequential,
    ),
    "leaky": (lambda: nn.Sequential(nn.Linear(8, 4), nn.LeakyReLU(0.25), nn.Dropout(), nn.Linear(4, 2)), nn.Sequential),
    "sharp elu": (lambda: nn.Sequential(nn.Linear(8, 4), nn.ELU(0.5), nn.Linear(4, 2)), nn.Sequential),
    "probabilities": (lambda: nn.Sequential(MLP([8, 4, 3]), Probabilities()), nn.Sequential),
    "log-probabilities": (lambda: nn.Sequential(MLP([8, 4, 3]), nn.LogSoftmax(1)), nn.Sequential),
    "one logit, two probabilities": (lambda: nn.Sequential(MLP([8, 4, 1]), Probabilities()), nn.Sequential),
    "one probability": (lambda: nn.Sequential(MLP([8, 4, 1]), nn.Sigmoid()), nn.Sequential),
    "softmax": (lambda: nn.Sequential(MLP([8, 4, 3]), nn.Softmax(-1)), nn.Sequential),
    "batch norm": (
        lambda: normalised(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))),
        MLP,
    ),
    "batch norm alone": (
        lambda: normalised(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 2))),
        nn.Sequential,
    ),
    "flatten": (lambda: pictures(nn.Flatten(), nn.Linear(144, 5), nn.ReLU(), nn.Linear(5, 2)), MLP),
    "unflatten": (
        lambda: nn.Sequential(nn.Linear(8, 18), nn.Unflatten(1, (2, 3, 3)), nn.Conv2d(2, 1, 2), nn.Flatten()),
        nn.Sequential,
    ),
    "conv options": (
        lambda: pictures(
            nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2, bias=False),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(120, 2),
        ),
        nn.Sequential,
    ),
    "pools": (
        lambda: pictures(
            nn.Conv2d(2, 3, 3, padding=1),
            nn.MaxPool2d(3, stride=2, padding=1),
            nn.Tanh(),
            nn.AvgPool2d(2, padding=1),
            nn.Flatten(),
            nn.Linear(27, 2),
        ),
        nn.Sequential,
    ),
    "average": (
        lambda: pictures(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2)),
        nn.Sequential,
    ),
    "two-conv": (lambda: models.build("two-conv", shape=(1, 8, 8), filters=(3, 4), dense=10), nn.Sequential),
    "balle-cnn": (lambda: models.build("balle-cnn", shape=(3, 12, 12)), nn.Sequential),
    "vgg11": (lambda: normalised(models.build("vgg11", width=0.05)), nn.Sequential),
    "resnet18": (lambda: normalised(models.build("resnet18", shape=(3, 8, 8), width=0.1)), nn.Module),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_an_exported_model_answers_the_same_and_is_read_back(name, dtype, tmp_path):
    make, kind = CASES[name]
    torch.manual_seed(0)
    model = make().to(dtype).eval()
    path = export_onnx(model, tmp_path / "deep" / "model.onnx")
    ours = divulge.oracle(model, access="gradient")
    theirs = divulge.oracle(str(path), access="weights")
    assert (theirs.dtype, theirs.input_dim, theirs.output_dim) == (dtype, ours.input_dim, ours.output_dim)
    X = torch.randn(9, ours.input_dim, generator=torch.Generator().manual_seed(1), dtype=dtype)
    expected, slopes = ours.gradient(X)
    values, gradients = theirs.gradient(X)
    most = 1 + float(expected.abs().max())
    steep = 1 + float(slopes.abs().max())
    loose = 2e3 * torch.finfo(dtype).eps
    torch.testing.assert_close(theirs.value(X), expected, rtol=0, atol=loose * most)
    torch.testing.assert_close(values, expected, rtol=0, atol=loose * most)
    torch.testing.assert_close(gradients, slopes, rtol=0, atol=loose * steep)
    assert torch.equal(theirs.label(X), ours.label(X))
    assert isinstance(theirs.weights(), kind)
    read = load_model(path)
    torch.testing.assert_close(read(X.reshape(9, *read.input_shape)), expected, rtol=0, atol=loose * most)


def test_a_stolen_network_survives_the_round_trip_to_the_last_bit(tmp_path):
    model = relu_network().double()
    read = load_model(export_onnx(model, tmp_path / "stolen.onnx"))
    assert isinstance(read, ReluNetwork)
    for name, weights in model.state_dict().items():
        assert torch.equal(read.state_dict()[name], weights)
    models.save(read, tmp_path / "again")


def test_exporting_leaves_a_model_in_training_as_it_was(tmp_path):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export_onnx(model, tmp_path / "m.onnx")
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_one_dimensional_convolutions(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.AvgPool1d(2), nn.Flatten(), nn.Linear(6, 2)
    )
    path = export_onnx(model, tmp_path / "m.onnx", input_shape=(2, 8))
    X = torch.randn(4, 16)
    torch.testing.assert_close(divulge.oracle(str(path), access="gradient").gradient(X)[0], model(X.reshape(4, 2, 8)))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.GELU()), "GELU"),
        (nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4)), "GroupNorm"),
        (nn.Sequential(nn.Linear(4, 4), nn.Softmax(0)), "dimension 0"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)), "running statistics"),
        (nn.Sequential(nn.Linear(4, 4), nn.Flatten(0)), "Flatten"),
        (nn.Sequential(nn.Linear(4, 4), nn.Unflatten(0, (1, -1))), "Unflatten"),
        (nn.Sequential(nn.Conv2d(1, 1, 3, padding="same")), "padding"),
        (nn.Sequential(nn.Conv2d(1, 1, 3), nn.MaxPool2d(2, ceil_mode=True)), "ceil_mode"),
        (nn.Sequential(nn.Conv2d(1, 1, 3), nn.AdaptiveAvgPool2d(2)), "only to 1"),
        (nn.Linear(4, 4).to(torch.bfloat16), "bfloat16"),
    ],
)
def test_a_layer_that_cannot_be_written_is_named(model, words, tmp_path):
    shape = (1, 6, 6) if isinstance(model, nn.Sequential) and isinstance(model[0], nn.Conv2d) else (4,)
    with pytest.raises(UnsupportedModel, match=words):
        export_onnx(model, tmp_path / "m.onnx", input_shape=shape)
    assert not (tmp_path / "m.onnx").exists()
