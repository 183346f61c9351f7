"""TorchScript, exported programs and checkpoints with the user's code: loaded when trusted, refused with the line."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import divulge
from divulge.core.errors import InvalidInput, UnsupportedModel, UntrustedFile
from divulge.core.hints import for_command_line
from divulge.oracles import load_model

CODE = """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)
    def forward(self, X):
        return self.head(nn.functional.gelu(self.norm(self.body(X))))
def make():
    return Net()
def number():
    return 3
"""


@pytest.fixture
def net(tmp_path, monkeypatch):
    """The user's network, from code of their own in the current folder."""
    (tmp_path / "nets.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    return load_model("nets.py:make").double().eval()


X = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(5, 4)


def test_torchscript_is_loaded_when_trusted_and_refused_with_the_line_to_type(net, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(net).save("net.pt")
    line = 'divulge.oracle("net.pt", trust_pickle=True)'
    with pytest.raises(UntrustedFile, match="TorchScript") as refusal:
        divulge.oracle("net.pt")
    assert line in str(refusal.value)
    oracle = eval(line)
    torch.testing.assert_close(oracle.value(X), net(X).detach())
    assert oracle.input_shape == (4,)
    gradients = divulge.oracle("net.pt", trust_pickle=True, access="gradient").gradient(X)[1]
    torch.testing.assert_close(gradients, divulge.oracle(net, access="gradient").gradient(X)[1])


@pytest.mark.slow
@pytest.mark.parametrize("rows", [None, 1, 3])
def test_an_exported_program_answers_any_number_of_rows(net, rows):
    dynamic = {"dynamic_shapes": ({0: torch.export.Dim("rows")},)} if rows is None else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(net, (X[: rows or 2],), **dynamic), "net.pt2")
    with pytest.raises(UntrustedFile, match=r'divulge\.oracle\("net\.pt2", trust_pickle=True\)'):
        divulge.oracle("net.pt2")
    oracle = divulge.oracle("net.pt2", access="gradient", trust_pickle=True)
    assert oracle.input_shape == (4,)
    torch.testing.assert_close(oracle.value(X), net(X).detach())
    torch.testing.assert_close(oracle.gradient(X)[1], divulge.oracle(net, access="gradient").gradient(X)[1])


def test_a_damaged_program_is_an_error_even_when_trusted(tmp_path):
    (tmp_path / "net.pt2").write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match="cannot be loaded"):
        load_model(tmp_path / "net.pt2", trust_pickle=True)


@pytest.mark.parametrize("key", [None, "state_dict", "model_state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_code_and_weights_in_one_name(net, key, prefix):
    state = {prefix + name: tensor for name, tensor in net.state_dict().items()}
    torch.save(state if key is None else {key: state, "epoch": 3, "optimizer": {"lr": 0.1}}, "net.pt")
    with pytest.raises(InvalidInput, match=r'divulge\.oracle\("my_code\.py:make_model@net\.pt"\)'):
        divulge.oracle("net.pt")
    torch.testing.assert_close(divulge.oracle("nets.py:make@net.pt").value(X), net(X).detach())


def test_code_and_weights_that_do_not_fit_say_so(net):
    torch.save(nn.Linear(3, 1).state_dict(), "other.pt")
    torch.save(nn.Sequential(nn.Linear(4, 2)), "whole.pt")
    torch.save(net.state_dict(), "net.pt")
    for name, error, words in (
        ("nets.py:make@other.pt", InvalidInput, "other.pt do not fit what nets.py:make returns"),
        ("nets.py:make@absent.pt", InvalidInput, "no file absent.pt"),
        ("nets.py:make@whole.pt", UntrustedFile, "save the state_dict"),
        ("nets.py:number@net.pt", UnsupportedModel, "returned int"),
    ):
        with pytest.raises(error, match=words):
            load_model(name)


@pytest.mark.parametrize(
    ("python", "command_line"),
    [
        (
            'load it with divulge.oracle("net.pt", trust_pickle=True).',
            "load it with divulge audit net.pt --seed 3 --trust-pickle.",
        ),
        ('divulge.oracle("my code.py:make@net.pt")', "divulge audit 'my code.py:make@net.pt' --seed 3"),
        ("pass input_shape=(channels, height, width).", "pass --input-shape CHANNELS,HEIGHT,WIDTH."),
        ("pass input_shape=(64,).", "pass --input-shape 64."),
        ("pass input_shape=(...) as one input has it", "pass --input-shape ... as one input has it"),
        ("name it with output=, or", "name it with --output, or"),
        ("raise timeout= or take fewer", "raise timeout= or take fewer"),
    ],
)
def test_a_hint_is_in_the_syntax_that_was_used(python, command_line):
    assert for_command_line(python, ["audit", "net.pt", "--seed", "3"]) == command_line


@pytest.mark.slow
def test_the_command_line_shows_its_own_syntax(net):
    torch.save(nn.Sequential(nn.Linear(4, 2)), "whole.pt")
    typed = [sys.executable, "-c", "from divulge.cli import main; main()", "span", "./whole.pt", "--quiet"]
    refused = subprocess.run(typed, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "load it with divulge span whole.pt --quiet --trust-pickle." in refused.stderr


@pytest.mark.slow
def test_a_pickle_from_a_script_names_the_line_and_that_line_loads_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saving = "torch.save(Net(), 'net.pt'); joblib.dump(Net(), 'net.joblib')"
    script = f"{CODE}\nif __name__ == '__main__':\n    import torch, joblib\n    {saving}\n"
    (tmp_path / "train.py").write_text(script)
    subprocess.run([sys.executable, "train.py"], check=True)
    for name in ("net.pt", "net.joblib"):
        with pytest.raises(InvalidInput, match="defined in the script") as refusal:
            divulge.oracle(name, trust_pickle=True)
        line = f'divulge.oracle("my_script.py:Net@{name}", trust_pickle=True)'
        assert line in str(refusal.value)
        assert eval(line.replace("my_script", "train")).value(X).shape == (5, 2)
        with pytest.raises(UntrustedFile):
            divulge.oracle(f"train.py:Net@{name}")
    assert not hasattr(sys.modules["__main__"], "Net")
