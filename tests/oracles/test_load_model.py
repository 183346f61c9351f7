"""A model by its name: folders, files and code open, and nothing that could run code does so unasked."""

from __future__ import annotations

import json
import pickle

import joblib
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.linear_model import Ridge
from torch import nn

import divulge
from divulge import models
from divulge.core.errors import InvalidInput, UnsupportedModel, UntrustedFile
from divulge.models import MLP
from divulge.oracles import load_model

ROWS = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return MLP([4, 5, 2]).eval()


@pytest.fixture
def estimator():
    rows = np.random.default_rng(0).standard_normal((20, 4))
    return Ridge().fit(rows, rows.sum(1))


class Explosive:
    """What a hostile pickle looks like: it runs a function of its choice when it is loaded."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('code ran')",))


def described(model, path):
    path.write_text(json.dumps(model.spec))


def test_a_saved_folder(model, tmp_path):
    models.save(model, tmp_path / "m")
    for name in (str(tmp_path / "m"), tmp_path / "m"):
        assert torch.equal(divulge.oracle(name).value(ROWS), model(ROWS))
        assert torch.equal(load_model(name)(ROWS), model(ROWS))


@pytest.mark.parametrize("beside", ["net.json", "model.json"])
def test_safetensors_with_the_description_beside_them(model, tmp_path, beside):
    save_file(model.state_dict(), tmp_path / "net.safetensors")
    described(model, tmp_path / beside)
    assert torch.equal(load_model(str(tmp_path / "net.safetensors"))(ROWS), model(ROWS))


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_a_state_dict_with_its_description(model, tmp_path, suffix, wrapped):
    path = tmp_path / f"net{suffix}"
    state = model.double().state_dict()
    torch.save({"state_dict": state, "epoch": 3} if wrapped else state, path)
    described(model, tmp_path / "net.json")
    found = load_model(str(path))
    assert found[0].weight.dtype == torch.float64
    assert torch.equal(found(ROWS.double()), model(ROWS.double()))


def test_weights_without_a_description_say_what_is_missing(model, tmp_path):
    torch.save(model.state_dict(), tmp_path / "net.pt")
    save_file(model.state_dict(), tmp_path / "net.safetensors")
    for name in ("net.pt", "net.safetensors"):
        with pytest.raises(InvalidInput, match=r"net\.json"):
            load_model(tmp_path / name)


def test_a_whole_module_is_loaded_only_when_trusted(model, tmp_path):
    torch.save(model, tmp_path / "net.pt")
    with pytest.raises(UntrustedFile, match="trust"):
        divulge.oracle(str(tmp_path / "net.pt"))
    asked = divulge.oracle(str(tmp_path / "net.pt"), trust_pickle=True)
    assert torch.equal(asked.value(ROWS), model(ROWS))


@pytest.mark.parametrize(("name", "dump"), [("m.joblib", joblib.dump), ("m.pkl", None)])
def test_an_estimator_in_a_pickle_is_loaded_only_when_trusted(estimator, tmp_path, name, dump):
    path = tmp_path / name
    dump(estimator, path) if dump else path.write_bytes(pickle.dumps(estimator))
    with pytest.raises(UntrustedFile, match="trust"):
        load_model(str(path))
    values = divulge.oracle(str(path), trust_pickle=True).value(ROWS)
    np.testing.assert_allclose(values[:, 0], estimator.predict(ROWS.numpy()), rtol=1e-9)


@pytest.mark.parametrize("name", ["m.pkl", "m.joblib", "m.pt", "m.pth", "m.safetensors", "m.onnx"])
def test_no_file_runs_code_unasked(tmp_path, name):
    path = tmp_path / name
    if name.endswith((".pt", ".pth")):
        torch.save(Explosive(), path)
    else:
        path.write_bytes(pickle.dumps(Explosive()))
    with pytest.raises(InvalidInput):
        divulge.oracle(str(path))


@pytest.mark.parametrize("beside", ["m.json", "model.json"])
def test_a_description_that_names_code_is_refused_unless_trusted(model, tmp_path, monkeypatch, beside):
    (tmp_path / "theirs_described.py").write_text("from divulge.models import MLP\ndef net(): return MLP([4, 5, 2])\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / beside).write_text(json.dumps({"architecture": "theirs_described:net"}))
    path = tmp_path / ("model.safetensors" if beside == "model.json" else "m.safetensors")
    save_file(model.state_dict(), path)
    targets = [path, tmp_path] if beside == "model.json" else [path]
    for target in targets:
        with pytest.raises(UntrustedFile):
            load_model(target)
        assert torch.equal(load_model(target, trust_pickle=True)(ROWS), model(ROWS))


def test_code_of_the_users_own(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        "import numpy as np, torch\n"
        "def network():\n    torch.manual_seed(3)\n    return torch.nn.Linear(4, 2)\n"
        "ready = network()\n"
        "def fails():\n    raise KeyError('weights')\n"
        "number = 3\n"
        "def function():\n    return lambda X: np.asarray(X)[:, :1] * 2\n"
    )
    monkeypatch.chdir(tmp_path)
    expected = load_model("my_models:network")(ROWS)
    for name in ("my_models:ready", f"{tmp_path}/my_models.py:network", "my_models.py:ready"):
        assert torch.equal(divulge.oracle(name).value(ROWS), expected)
    assert divulge.oracle("my_models:function", input_shape=(4,)).value(ROWS).shape == (3, 1)
    for name, words in (
        ("my_models:absent", "'absent'"),
        ("my_models:fails", "KeyError"),
        ("my_models:number", "int"),
        ("no_such_module_here:f", "no_such_module_here"),
        ("no_such_file.py:f", "no_such_file"),
    ):
        with pytest.raises(InvalidInput, match=words):
            divulge.oracle(name)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("absent", None, "no model at"),
        ("absent.onnx", None, "no file"),
        ("notes.txt", b"hello", "not a kind of model file"),
        ("empty.safetensors", b"", "safetensors"),
        ("broken.onnx", b"\x00\x01nonsense", "ONNX"),
        ("empty.pt", b"", "trust"),
    ],
)
def test_a_file_that_is_no_model_says_so(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=words):
        divulge.oracle(str(tmp_path / name))


def test_damaged_pickles_are_an_error_even_when_trusted(tmp_path):
    for name in ("m.pkl", "m.pt"):
        (tmp_path / name).write_bytes(b"not a pickle")
        with pytest.raises(InvalidInput, match="cannot be loaded"):
            load_model(tmp_path / name, trust_pickle=True)


def test_a_checkpoint_without_a_model_says_what_it_holds(tmp_path):
    torch.save([1, 2, 3], tmp_path / "list.pt")
    with pytest.raises(UnsupportedModel, match="list"):
        load_model(tmp_path / "list.pt")


def test_a_description_that_does_not_fit_says_so(model, tmp_path):
    save_file(model.state_dict(), tmp_path / "net.safetensors")
    for text, words in (
        ('{"architecture": "mlp", "widths": [4, 6, 2]}', "do not fit"),
        ("{", "not readable JSON"),
        ("[]", "one JSON object"),
        ('{"architecture": "transformer"}', "transformer"),
    ):
        (tmp_path / "net.json").write_text(text)
        with pytest.raises(InvalidInput, match=words):
            load_model(tmp_path / "net.safetensors")


def test_what_is_no_name_is_handed_back(model, estimator):
    assert load_model(model) is model
    assert load_model(estimator) is estimator


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        (3, {}, "a int"),
        (nn.Linear, {}, "class Linear itself"),
        (None, {}, "NoneType"),
        (nn.Linear(2, 1), {"journal": "a.db"}, "journal="),
        (nn.Linear(2, 1), {"token_env": "TOKEN"}, "token_env="),
        (nn.Linear(2, 1), {"gradient": abs}, "gradient="),
        ("http://127.0.0.1:9/v2/models/m", {"gradient": abs}, "gradient="),
    ],
)
def test_what_makes_no_sense_is_refused(source, options, words):
    with pytest.raises(InvalidInput, match=words):
        divulge.oracle(source, **options)


def test_an_oracle_is_not_a_source():
    with pytest.raises(InvalidInput, match="oracle already"):
        divulge.oracle(divulge.oracle(nn.Linear(2, 1)))
