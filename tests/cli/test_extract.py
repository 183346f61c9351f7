"""``divulge extract``: the copy on disk, the figures on screen, and the exit code that tells how it went."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from divulge import models
from divulge.cli import app

runner = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("targets")
    models.save(models.MLP([20, 8, 1]).double(), folder / "relu")
    models.save(models.MLP([20, 8, 1], activation="elu").double(), folder / "elu")
    models.save(models.MLP([20, 3]).double(), folder / "softmax")
    return folder


def extract(*arguments: object):
    return runner.invoke(app, ["extract", *map(str, arguments)])


@pytest.mark.slow
def test_an_exact_copy_is_written_and_loads_again(folder, tmp_path):
    result = extract(folder / "relu", "--out", tmp_path / "copy", "--onnx")
    assert result.exit_code == 0, result.output
    assert "exact: 8 hidden neurons" in result.output
    X = torch.randn(50, 20, dtype=torch.float64)
    with torch.no_grad():
        assert torch.allclose(models.load(tmp_path / "copy")(X), models.load(folder / "relu")(X), atol=1e-10)
    assert (tmp_path / "copy" / "model.onnx").is_file()
    assert json.loads((tmp_path / "copy" / "extraction.json").read_text())["exact"] is True


def test_json_is_one_object_and_nothing_else(folder):
    result = extract(folder / "relu", "--json", "--checks", 100)
    figures = json.loads(result.stdout)
    assert figures["width"] == 8
    assert figures["verified_points"] == 100
    assert figures["queries"]["total"] == figures["queries"]["gradient"] + figures["queries"]["value"]
    assert figures["verification_queries"]["value"] == 100
    assert figures["queries"]["value"] < 100


@pytest.mark.slow
def test_two_hidden_layers_are_copied_with_method_deep(tmp_path):
    torch.manual_seed(1)
    models.save(models.MLP([12, 5, 4, 1]).double(), tmp_path / "deep")
    result = extract(tmp_path / "deep", "--method", "deep", "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["exact"] is True
    assert figures["widths"] == [5, 4]


def test_an_onnx_file_is_a_target_too(folder, tmp_path):
    from divulge.oracles.onnx.export import export_onnx

    path = export_onnx(models.load(folder / "relu"), tmp_path / "target.onnx")
    assert extract(path, "--quiet").exit_code == 0


def test_a_copy_that_is_not_exact_exits_with_3_and_says_why(folder):
    result = extract(folder / "elu")
    assert result.exit_code == 3
    assert "not piecewise linear" in result.output


def test_a_budget_exits_with_4_and_keeps_the_partial_copy(folder, tmp_path):
    result = extract(folder / "relu", "--budget", 45, "--out", tmp_path / "partial")
    assert result.exit_code == 4
    assert "budget of 45 rows" in result.output
    assert json.loads((tmp_path / "partial" / "extraction.json").read_text())["exact"] is False
    assert models.load(tmp_path / "partial")


@pytest.mark.slow
def test_values_the_printed_method_and_softmax_are_a_flag_away(folder):
    assert extract(folder / "relu", "--access", "value", "--quiet").exit_code == 0
    assert extract(folder / "softmax", "--method", "softmax", "--output", "probabilities", "--quiet").exit_code == 0
    printed = extract(folder / "relu", "--method", "paper", "--width", 8, "--json")
    assert printed.exit_code == 3  # it assumes no biases, and notices
    assert json.loads(printed.stdout)["method"] == "paper"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--access", "label", "--method", "paper"),
        ("--access", "everything"),
        ("--method", "worst-case"),
        ("--method", "paper"),
        ("--input-shape", "three"),
        ("--checks", 2),
        ("--data", "digits"),
        ("--student", "one-hidden"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(folder, arguments):
    result = extract(folder / "relu", *arguments)
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1


def test_a_target_that_is_not_there_is_bad_input(tmp_path):
    assert extract(tmp_path / "nowhere").exit_code == 2


@pytest.mark.slow
def test_a_guard_stands_before_the_model_of_an_exact_attack_too(folder):
    result = extract(folder / "relu", "--access", "value", "--guard", "round:6", "--json")
    figures = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (figures["exact"], figures["close"]) == (False, True)
    assert "multiples of 1e-06" in figures["reason"]
    coarse = extract(folder / "relu", "--access", "value", "--guard", "round:0")
    assert coarse.exit_code == 3
    assert coarse.stdout.startswith("not exact")


def test_a_float32_model_is_copied_as_well_as_its_answers_allow(folder, tmp_path):
    models.save(models.load(folder / "relu").float(), tmp_path / "single")
    result = extract(tmp_path / "single", "--access", "value")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("as good as exact: 8 hidden neurons")
