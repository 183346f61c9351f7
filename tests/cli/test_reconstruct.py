"""divulge reconstruct on the command line: files, scores, the control, and exit codes as documented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from typer.testing import CliRunner

import divulge
from divulge import models
from divulge.cli import app
from divulge.oracles import load_model
from divulge.training import margin


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A homogeneous network trained to its margin on six digits, with its mean and its data beside it."""
    folder = tmp_path_factory.mktemp("target")
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.data))
    X, y = data.data[order] / 16, data.target[order] % 2
    mean = X[:6].mean(axis=0)
    start = margin.network([64, 80, 1], first_scale=1e-3, balanced=True)
    trained = margin.to_margin(start, torch.tensor(X[:6] - mean), torch.tensor(y[:6]), extra_epochs=500)
    models.save(trained.model, folder / "model")
    np.save(folder / "mean.npy", mean)
    np.savez(folder / "train.npz", X=X[:6], y=y[:6])
    models.save(margin.network([64, 80, 1], first_scale=1e-3), folder / "untrained")
    return folder


def run(*arguments: object, code: int = 0) -> str:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    result = CliRunner().invoke(app, ["reconstruct", *(str(argument) for argument in arguments)])
    torch.set_num_threads(threads)
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.slow
def test_writes_samples_and_says_what_broken_weights_give(target: Path, tmp_path: Path) -> None:
    told: dict[str, Any] = json.loads(
        run(target / "model", "--mean", target / "mean.npy", "--out", tmp_path, "--restarts", 3, "--json")
    )
    assert told["found"] >= 3
    assert told["broken_weights"]["found"] <= told["found"]
    assert told["match"] is None
    with np.load(tmp_path / "samples.npz") as kept:
        assert kept["samples"].shape == (told["found"], 64)
    assert (tmp_path / "samples.png").is_file()
    text = run(target / "model", "--mean", target / "mean.npy", "--out", tmp_path, "--restarts", 3, "--no-control")
    assert "agreed on by 3 restarts" in text


@pytest.mark.slow
def test_scores_by_the_data_that_was_recorded_beside_the_model(tmp_path: Path) -> None:
    trained = CliRunner().invoke(app, [
        "train", "--data", "digits", "--binary", "--rows", "8", "--centred", "--widths", "64,40,1", "--bias", "first",
        "--epochs", "3", "--batch-size", "0", "--initial-scale", "0.0003", "--out", str(tmp_path / "model"), "--quiet",
    ])  # fmt: skip
    assert trained.exit_code == 0, trained.output
    told = json.loads(run(tmp_path / "model", "--know-mean", "--n", 4, "--restarts", 1, "--no-control",
                          "--out", tmp_path / "out", "--json"))  # fmt: skip
    assert told["match"]["training_inputs"] == 8
    assert told["match"]["control_inputs"] > 100
    assert told["diagnosis"]["layers"][0] > 0.6  # three epochs tell the eight digits apart and no more
    assert "The model is far from a KKT point" in told["diagnosis"]["sentence"]
    assert (tmp_path / "out" / "margins.png").is_file()
    assert (tmp_path / "out" / "pairs.png").is_file()


@pytest.mark.slow
def test_the_printed_method_may_search_first_and_goes_on_with_its_trials(target: Path, tmp_path: Path) -> None:
    for trials in (2, 3):
        told = json.loads(run(target / "model", "--method", "paper", "--n", 6, "--search", trials, "--time", "1s",
                              "--out", tmp_path, "--json"))  # fmt: skip
        assert told["method"] == "paper"
        assert told["found"] == 12
    assert (tmp_path / "search.db").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["nowhere"], 2, "no model"),
        (["{}/untrained"], 3, "give n"),
        (["{}/untrained", "--n", "6", "--restarts", "1"], 3, "broken weights agrees on 0"),
        (["{}/model", "--range", "0"], 2, "two numbers"),
        (["{}/model", "--time", "soon"], 2, "A time"),
        (["{}/model", "--method", "magic"], 2, "row-space"),
        (["{}/model", "--mean", "{}/train.npz"], 2, "array of numbers"),
        (["{}/model", "--know-mean"], 2, "needs the training data"),
        (["{}/model", "--mean", "{}/mean.npy", "--know-mean"], 2, "not both"),
        (["{}/model", "--method", "paper"], 2, "give n or samples"),
        (["{}/model", "--search", "3"], 2, "--search is for --method paper"),
        (["{}/model", "--method", "kinks"], 2, "takes 64 inputs"),
    ],
)
def test_bad_input_gets_one_sentence(
    target: Path, tmp_path: Path, arguments: list[str], code: int, sentence: str
) -> None:
    told = run(*(argument.format(target) for argument in arguments), "--out", tmp_path / "out", code=code)
    assert sentence in told
    assert "Traceback" not in told


def test_a_model_that_is_not_piecewise_linear_is_refused(tmp_path: Path) -> None:
    models.save(models.MLP([64, 8, 1], activation="tanh"), tmp_path / "model")
    assert isinstance(models.load(tmp_path / "model")[1], nn.Tanh)
    assert "Tanh" in run(tmp_path / "model", "--out", tmp_path / "out", code=2)


@pytest.mark.slow
def test_the_network_in_an_estimator_is_read_and_a_table_in_its_own_units(tmp_path: Path) -> None:
    import joblib
    from sklearn.datasets import load_iris
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    table = load_iris(as_frame=True).frame
    table.to_csv(tmp_path / "iris.csv", index=False)
    network = make_pipeline(StandardScaler(), MLPClassifier((8,), max_iter=50, random_state=0))
    joblib.dump(network.fit(table.drop(columns="target"), table["target"]), tmp_path / "net.joblib")
    words = (tmp_path / "net.joblib", "--trust-pickle", "--data", tmp_path / "iris.csv", "--out", tmp_path / "out",
             "--n", 4, "--restarts", 2, "--no-control", "--json")  # fmt: skip
    told: dict[str, Any] = json.loads(run(*words, code=3))
    assert told["match"]["training_inputs"] == 150
    assert not any("range of values" in note for note in told["notes"])


CODE = """
import torch
from torch import nn


class Adapted(nn.Module):
    input_shape = (64,)

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.base, self.head = nn.Linear(64, 100), nn.Linear(100, 10)
            self.down, self.up = nn.Linear(64, 16, bias=False), nn.Linear(16, 100, bias=False)

    def forward(self, rows):
        return self.head(torch.relu(self.base(rows) + self.up(self.down(rows))))
"""


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A start, and what may be released of a training on six digits: a model, weights, a gradient, an adapter."""
    folder = tmp_path_factory.mktemp("fine_tuned")
    data = load_digits()
    X, y = torch.tensor(data.data[:6] / 16).float(), torch.tensor(data.target[:6]).long()
    recipe = divulge.Recipe(widths=[64, 300, 10], learning_rate=0.05, momentum=0.9, epochs=60, seed=1)
    base = recipe.initial_model()
    models.save(base, folder / "base")
    model = recipe.train(X, y)
    models.save(model, folder / "tuned")
    torch.save(model.state_dict(), folder / "weights.pt")
    nn.functional.cross_entropy(base(X), y).backward()
    torch.save({name: part.grad for name, part in base.named_parameters()}, folder / "gradient.pt")
    torch.save({"model.lora_A.weight": torch.zeros(4, 64)}, folder / "peft.pt")
    (folder / "adapted.py").write_text(CODE)
    adapted = load_model(f"{folder}/adapted.py:Adapted")
    assert isinstance(adapted, nn.Module)
    parts = {name: part for name, part in adapted.named_parameters() if name.startswith(("down", "up"))}
    descent = torch.optim.SGD(list(parts.values()), lr=0.2)
    for _ in range(30):
        descent.zero_grad()
        nn.functional.cross_entropy(adapted(X), y).backward()
        descent.step()
    torch.save({name: part.detach() for name, part in parts.items()}, folder / "adapter.pt")
    np.savez(folder / "train.npz", X=X.numpy(), y=y.numpy())
    return folder


@pytest.mark.parametrize("released", [["tuned"], ["weights.pt"], ["gradient.pt", "--update"]], ids=lambda r: r[0])
def test_training_inputs_out_of_what_was_released_beside_the_start(
    released: list[str], fine_tuned: Path, tmp_path: Path
) -> None:
    told = json.loads(run(fine_tuned / released[0], *released[1:], "--start", fine_tuned / "base", "--data",
                          fine_tuned / "train.npz", "--out", tmp_path, "--json"))  # fmt: skip
    assert told["rank"] == 6
    assert sum(told["certified"]) >= 4
    assert told["match"]["found"] >= 4


def test_an_adapter_alone_is_put_into_its_start(fine_tuned: Path, tmp_path: Path) -> None:
    text = run(fine_tuned / "adapter.pt", "--start", f"{fine_tuned}/adapted.py:Adapted", "--out", tmp_path)
    assert "its rank is 6" in text
    assert "No bias of the layer was trained" in text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["{}/peft.pt", "--start", "{}/base"], 2, "random numbers"),
        (["{}/gradient.pt", "--start", "{}/base"], 2, "--update"),
        (["{}/gradient.pt", "--update"], 2, "--update needs --start"),
        (["{}/tuned", "--start", "{}/base", "--update"], 2, "--update takes a .pt"),
        (["{}/tuned", "--start", "{}/base", "--range", "0,0.1"], 3, "range of values"),
    ],
)
def test_what_cannot_be_read_beside_a_start(
    arguments: list[str], code: int, said: str, fine_tuned: Path, tmp_path: Path
) -> None:
    filled = [argument.format(fine_tuned) for argument in arguments]
    assert said in run(*filled, "--out", tmp_path, code=code)
