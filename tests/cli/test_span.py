"""divulge span on the command line: recover, compare, write points, obfuscate; exit codes as documented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from divulge import models, span
from divulge.cli import app
from divulge.models import MLP


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved 64-12-10 network in float64, with the rows of its first layer beside it."""
    folder = tmp_path_factory.mktemp("target")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MLP([64, 12, 10]).double()
    models.save(model, folder / "model")
    np.save(folder / "rows.npy", model[0].weight.detach().numpy())
    return folder


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def run_json(*arguments: object, code: int = 0) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run(*arguments, "--json", code=code))
    return told


@pytest.mark.slow
@pytest.mark.parametrize("access", ["gradient", "value", "label"])
def test_every_access_recovers_the_span(target: Path, access: str, tmp_path: Path) -> None:
    told = run_json("span", target / "model", "--access", access, "--reference", target / "rows.npy", "--out", tmp_path)
    assert (told["rank"], told["input_dim"]) == (12, 64)
    assert told["angle"] < 1e-6
    assert told["queries"][access] > 0
    assert span.load(tmp_path).rank == 12
    assert (tmp_path / "evidence.png").stat().st_size > 5000


@pytest.mark.slow
def test_the_text_says_what_was_found(target: Path, tmp_path: Path) -> None:
    text = run("span", "recover", target / "model", "--out", tmp_path)
    assert "depends on 12 of 64 input dimensions" in text
    assert "Gap" in text
    assert run("span", target / "model", "--quiet") == ""
    assert "12 of 64" in run("span", target / "model", "--reference", tmp_path)
    assert "obfuscate" in run("span", "--help")


@pytest.mark.slow
def test_query_points_are_written_before_the_first_answer(target: Path, tmp_path: Path) -> None:
    told = run_json("span", target / "model", "--points", tmp_path / "p.npy", "--samples", 20, "--seed", 3)
    assert np.array_equal(np.load(tmp_path / "p.npy"), span.query_points(64, 20, seed=3).numpy())
    assert (told["rank"], told["queries"]["gradient"]) == (12, 20)
    run("span", target / "model", "--points", tmp_path / "q.npy", "--samples", 20, "--budget", 0, code=4)
    assert (tmp_path / "q.npy").exists()  # no answer was needed
    run("span", target / "model", "--access", "value", "--points", tmp_path / "v.npy", "--samples", 4)
    assert torch.equal(torch.from_numpy(np.load(tmp_path / "v.npy")), span.query_points(64, 4, source="values"))


def test_the_printed_algorithms_run_from_the_command_line(target: Path, tmp_path: Path) -> None:
    told = run_json("span", target / "model", "--method", "paper", "--samples", 40)
    assert (told["method"], told["rank"]) == ("paper", 12)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        models.save(MLP([5, 2, 3], activation="tanh", bias="none").double(), tmp_path)
    told = run_json("span", tmp_path, "--access", "label", "--precision", "extended", "--bits", 64, "--rank", 1)
    assert told["facts"]["bits"] == 64


@pytest.mark.slow
def test_a_rank_that_is_not_there_and_a_budget_that_ends_have_their_exit_codes(target: Path, tmp_path: Path) -> None:
    assert "Asked for rank 20" in run("span", target / "model", "--rank", 20, code=3)
    run("span", target / "model", "--outputs", 0, "--budget", 8, "--out", tmp_path, code=4)
    assert 0 < span.load(tmp_path).rank < 12  # what was paid for is kept


@pytest.mark.parametrize(
    "options",
    [
        ["--access", "weights"],
        ["--method", "best"],
        ["--precision", "half"],
        ["--precision", "extended"],
        ["--outputs", "some"],
        ["--method", "paper", "--points", "x.npy"],
        ["--input-shape", "a,b"],
        ["--reference", "nowhere.npy"],
        ["--samples", "0"],
    ],
)
def test_bad_options_are_refused_in_one_sentence(target: Path, options: list[str]) -> None:
    result = CliRunner().invoke(app, ["span", str(target / "model"), *options])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_obfuscation_keeps_labels_and_draws_the_pictures(target: Path, tmp_path: Path) -> None:
    told = run_json("span", "obfuscate", target / "model", "--input", "digits", "--rows", 20, "--out", tmp_path)
    assert told["labels_kept"] == told["rows"] == 20
    assert told["relative_distance_median"] == pytest.approx(10)
    assert told["output_change_largest"] < 1e-5
    assert np.load(tmp_path / "noisy.npy").shape == (20, 64)
    assert (tmp_path / "obfuscated.png").stat().st_size > 5000


@pytest.mark.slow
def test_obfuscation_takes_files_bounds_and_a_saved_span(target: Path, tmp_path: Path) -> None:
    run("span", target / "model", "--out", tmp_path / "span")
    generator = np.random.default_rng(0)
    np.save(tmp_path / "rows.npy", generator.random((3, 64)))
    shared = ["span", "obfuscate", target / "model", "--span", tmp_path / "span", "--bounds", "0,1"]
    told = run_json(*shared, "--input", tmp_path / "rows.npy", "--out", tmp_path / "o")
    assert told["labels_kept"] == 3
    noisy = np.load(tmp_path / "o" / "noisy.npy")
    assert noisy.min() >= 0
    assert noisy.max() <= 1
    assert "3 of 3 inputs kept their label" in run(*shared, "--input", tmp_path / "rows.npy", "--largest")

    from skimage.io import imsave

    imsave(tmp_path / "p.png", (255 * generator.random((8, 8))).astype(np.uint8), check_contrast=False)
    assert run_json(*shared, "--input", tmp_path / "p.png")["rows"] == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--input", "nowhere.npy"],
        ["--input", "iris"],
        ["--input", "digits", "--bounds", "zero,one"],
        ["--input", "digits", "--largest"],
        ["--input", "digits", "--precision", "extended"],
        ["--input", "digits", "--span", "nowhere"],
    ],
)
def test_bad_obfuscations_are_refused_in_one_sentence(target: Path, options: list[str]) -> None:
    result = CliRunner().invoke(app, ["span", "obfuscate", str(target / "model"), *options])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_inputs_that_are_no_pictures_are_obfuscated_without_one(tmp_path: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        models.save(MLP([13, 3, 2]).double(), tmp_path / "m")
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).random((2, 13)))
    told = run_json("span", "obfuscate", tmp_path / "m", "--input", tmp_path / "rows.npy", "--access", "label",
                    "--out", tmp_path / "o")  # fmt: skip
    assert told["labels_kept"] == 2
    assert "not pictures" in told["picture"]
