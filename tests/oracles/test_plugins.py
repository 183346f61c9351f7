"""Oracles and guards of the user's own: by an installed entry point or by one call, and clear refusals."""

from __future__ import annotations

import subprocess
import sys

import pytest

import divulge
from divulge import oracles
from divulge.core.errors import InvalidInput
from divulge.oracles import Guard, Oracle, guards

PLUGIN = """
from divulge.oracles import Guard, Oracle

class Total(Oracle):
    def _value(self, X):
        return X.sum(dim=1, keepdim=True)

def open_total(source, options):
    if not str(source).startswith("total://"):
        return None
    width = int(str(source).removeprefix("total://"))
    return Total(input_dim=width, output_dim=1, access=options.access, budget=options.budget)

class Clipped(Guard):
    def __init__(self, oracle, limit):
        super().__init__(oracle)
        self.limit = limit
    def _value(self, X):
        return super()._value(X).clamp(-self.limit, self.limit)

def clip(arguments, seed):
    (limit,) = map(float, arguments)
    return lambda oracle: Clipped(oracle, limit)
"""
USE = """
import divulge
from divulge.oracles import guard
oracle = divulge.oracle("total://3", budget=5)
print(oracle.value([[1.0, 2.0, 3.0]]).item(), oracle.ledger.remaining)
print(guard("clip:2.5,round:0")(oracle).value([[1.0, 2.0, 3.0]]).item())
"""


def install(folder, entry_points):
    """A package as pip leaves it: the module, and its metadata beside it."""
    (folder / "my_models.py").write_text(PLUGIN)
    metadata = folder / "my_models-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-models\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entry_points)


def run(folder, code):
    path = [str(folder), *(place for place in sys.path if place)]
    setup = f"import sys; sys.path[:] = {path!r}\n"
    return subprocess.run([sys.executable, "-c", setup + code], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_an_installed_package_brings_an_oracle_and_a_guard(tmp_path):
    install(tmp_path, "[divulge.oracles]\ntotal = my_models:open_total\n[divulge.guards]\nclip = my_models:clip\n")
    done = run(tmp_path, USE)
    assert done.stdout.split() == ["6.0", "4", "2.0"], done.stderr


@pytest.mark.slow
def test_a_plug_in_that_does_not_load_is_named_with_its_package(tmp_path):
    install(tmp_path, "[divulge.oracles]\ntotal = my_models:nothing_here\n")
    done = run(tmp_path, USE)
    last = done.stderr.strip().splitlines()[-1]
    assert "InvalidInput: The plug-in total (my_models:nothing_here) of my-models cannot be loaded" in last


class Total(Oracle):
    def _value(self, X):
        return X.sum(dim=1, keepdim=True)


@pytest.fixture
def registered():
    """Names to take out of the registries afterwards."""
    names = []
    yield names
    for name in names:
        oracles.unregister(name)
        guards.unregister(name)


def test_an_oracle_joins_by_one_call_and_is_asked_before_the_built_in_ones(registered):
    def opener(source, options):
        return Total(input_dim=3, output_dim=1, budget=options.budget) if isinstance(source, dict) else None

    registered.append("total")
    oracles.register("total", opener)
    oracle = divulge.oracle({"a": 1}, budget=7)
    assert isinstance(oracle, Total)
    assert oracle.ledger.budget == 7
    assert divulge.oracle(lambda X: X, input_shape=(2,)).output_dim == 2
    with pytest.raises(InvalidInput, match="'total' already"):
        oracles.register("total", opener)
    oracles.unregister("total")
    with pytest.raises(InvalidInput, match="no oracle for a dict"):
        divulge.oracle({"a": 1})


def test_a_model_that_the_user_s_function_returns_reaches_the_plug_in(registered, tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text("def model(): return {'width': 3}")
    monkeypatch.chdir(tmp_path)
    registered.append("total")
    oracles.register("total", lambda source, options: Total(input_dim=source["width"], output_dim=1)
                     if isinstance(source, dict) else None)  # fmt: skip
    assert divulge.oracle("shop.py:model").input_dim == 3


def test_a_plug_in_that_returns_no_oracle_is_refused(registered):
    registered.append("wrong")
    oracles.register("wrong", lambda source, options: "an oracle" if isinstance(source, dict) else None)
    with pytest.raises(InvalidInput, match="'wrong' returned a str, not an Oracle"):
        divulge.oracle({})


def test_a_guard_joins_by_one_call_and_refuses_arguments_in_its_own_form(registered):
    class Shifted(Guard):
        def __init__(self, oracle, by):
            super().__init__(oracle)
            self.by = by

        def _value(self, X):
            return super()._value(X) + self.by

    def parse(arguments, seed):
        (by,) = map(float, arguments)
        return lambda oracle: Shifted(oracle, by)

    registered.append("shift")
    guards.register("shift", parse, form="shift:BY")
    oracle = divulge.oracle(lambda X: X.sum(1), input_shape=(2,))
    assert guards.guard("shift:1,round:0")(oracle).value([[1.0, 2.2]]).item() == 4
    with pytest.raises(InvalidInput, match="write shift:BY"):
        guards.guard("shift:much")
    with pytest.raises(InvalidInput, match="shift:BY"):
        guards.guard("no-such-guard")
    with pytest.raises(InvalidInput, match="'shift' already"):
        guards.register("shift", parse)
    with pytest.raises(InvalidInput, match="letters, digits"):
        guards.register("a:b", parse)
