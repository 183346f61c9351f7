"""``divulge serve`` says where it listens, in words or as JSON, and refuses bad input with exit code 2."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from divulge import serving
from divulge.cli import app
from divulge.models import MLP, save


@pytest.fixture
def folder(tmp_path):
    return str(save(MLP([3, 4, 2]), tmp_path / "model"))


@pytest.fixture
def listening(monkeypatch):
    """The server says that it is ready and stops."""
    asked = {}

    def serve(served, *, host, port, ready):
        asked.update(served=served, host=host, port=port)
        ready(f"http://{host}:{port}/v2/models/{served.name}")

    monkeypatch.setattr(serving, "serve", serve)
    return asked


def test_it_says_where_it_listens(folder, listening):
    result = CliRunner().invoke(
        app, ["serve", folder, "--name", "m", "--guard", "noise:0.1,round:2", "--max-batch", "9"]
    )
    assert result.exit_code == 0, result.output
    assert "http://127.0.0.1:8080/v2/models/m" in result.output
    assert (listening["host"], listening["served"].max_batch) == ("127.0.0.1", 9)


def test_json_is_one_object_and_nothing_else_and_out_keeps_it(folder, listening, tmp_path):
    command = ["serve", folder, "--gradients", "--json", "--precision", "double", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, command)
    told = json.loads(result.stdout)
    assert json.loads((tmp_path / "out" / "serving.json").read_text()) == told
    assert told["url"] == "http://127.0.0.1:8080/v2/models/model"
    assert [output["name"] for output in told["outputs"]] == ["value", "gradient"]
    assert told["inputs"][0]["datatype"] == "FP64"


def test_the_seed_of_the_noise_is_part_of_the_version(folder, listening):
    versions = set()
    for seed in ("0", "1"):
        CliRunner().invoke(app, ["serve", folder, "--guard", "noise:1", "--seed", seed, "--quiet"])
        versions.add(listening["served"].version)
    assert len(versions) == 2


@pytest.mark.parametrize(
    "options",
    [["--guard", "wall"], ["--precision", "triple"], ["--name", "a b"], ["--port", "99999"], ["--max-batch", "0"]],
    ids=str,
)
def test_bad_input_exits_with_2_and_one_sentence(folder, options):
    result = CliRunner().invoke(app, ["serve", folder, *options])
    assert result.exit_code == 2
    assert result.output.startswith("divulge: ")
    assert len(result.output.strip().splitlines()) == 1
