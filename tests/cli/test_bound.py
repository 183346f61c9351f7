"""``divulge bound``: the recommendation, the plot, and one sentence for each thing that cannot be answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from divulge.cli import app
from divulge.training import Recipe


def _bound(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["bound", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.slow
def test_noise_and_epsilon_under_each_bound_and_a_plot(tmp_path: Path) -> None:
    code, text, _ = _bound("--data", "digits", "--gamma", "0.05", "--eta", "0.01", "--out", str(tmp_path))
    assert code == 0
    for name in ("tight", "Theorem 2", "Corollary 3", "Corollary 4"):
        assert name in text
    assert "95% confidence" in text
    assert (tmp_path / "bounds.png").stat().st_size > 5000


@pytest.mark.slow
def test_json_is_one_object_and_a_recipe_sets_the_schedule(tmp_path: Path) -> None:
    path = Recipe(widths=[64, 10], epochs=3, batch_size=500).save(tmp_path)
    code, text, _ = _bound("--kappa", "0.01", "--recipe", str(path), "--records", "1000", "--epsilon", "2", "--json")
    told = json.loads(text)
    assert code == 0
    assert (told["steps"], told["sampling_rate"]) == (6, 0.5)
    tight = next(row for row in told["bounds"] if row["bound"] == "tight")
    assert 0.01 < tight["gamma"] < 0.01 * 2.72**2 + 1e-5


@pytest.mark.slow
def test_sampled_batches_and_pictures_in_closed_form() -> None:
    code, text, _ = _bound("--kappa", "0.001", "--gamma", "0.1", "--steps", "20", "--sampling-rate", "0.1")
    assert code == 0
    assert "each with 0.1 of the records" in text
    code, text, _ = _bound("--prior", "gaussian:3072:0.3", "--eta", "2", "--epsilon", "50")
    assert code == 0
    assert "chance 10^-" in text


def test_extreme_privacy_is_refused_or_not_written_as_none() -> None:
    code, text, said = _bound("--kappa", "0.001", "--epsilon", "1e300")
    assert code == 2
    assert "protects nobody" in text + said
    code, text, _ = _bound("--kappa", "0.001", "--epsilon", "1e-9")
    assert code == 0
    assert "by at most 0.1 points" in text
    assert "0.0 points" not in text


def test_a_bound_that_says_nothing_says_so() -> None:
    code, text, _ = _bound("--data", "digits", "--eta", "0.02", "--epsilon", "2000", "--many", "1000000")
    assert code == 0
    assert "e+" not in text
    assert " 0.0%" not in text
    assert "no smaller number can be promised" in text
    for line in ("Whatever they know", "Error", "Error without bias"):
        assert f"{line}: no limit at this privacy" in text


@pytest.mark.slow
def test_fisher_information_limits_the_error_of_a_logistic_regression() -> None:
    given = ("--data", "breast-cancer", "--eta", "0.001", "--fisher", "--json")
    shares = []
    for epsilon in ("1", "100"):
        code, text, _ = _bound(*given, "--epsilon", epsilon)
        further = json.loads(text)["further"]
        assert code == 0
        assert further["Fisher information"]["epsilon"] == pytest.approx(float(epsilon), rel=0.01)
        assert "Guo et al. 2022" in further["Error without bias"]["from"]
        shares.append((further["Fisher information"]["value"], further["Error without bias"]["value"]))
    (much, wide), (little, narrow) = shares
    assert 0 < little < much <= 1
    assert 0 <= narrow < wide


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--kappa 0.01 --gamma 1.5", "strictly between 0 and 1"),
        ("--kappa 0.01 --gamma nan", "strictly between 0 and 1"),
        ("--kappa 1", "strictly between 0 and 1"),
        ("--kappa 0.2 --gamma 0.1", "blind guess already"),
        ("--prior uniform:9 --eta 1", "kappa is 1"),
        ("--prior gaussian:9:1 --eta 99", "kappa is 1"),
        ("--data digits --eta 9", "always right"),
        ("--data digits", "--eta"),
        ("--data digits --eta 0.1 --error cosine", "mse, l2, l1, max"),
        ("--kappa 0.01 --delta 0", "strictly between 0 and 1"),
        ("--kappa 0.01 --epsilon inf", "finite"),
        ("--kappa 0.01 --epsilon 1e6 --sampling-rate 0.5", "smaller epsilon"),
        ("--kappa 0.01 --steps 0", "at least one step"),
        ("--kappa 0.01 --fisher", "takes the records"),
        ("--kappa 0.01 --eta 0.1", "leave --eta out"),
        ("--kappa 0.01 --records 50", "belongs to --recipe"),
        ("--prior cauchy:3 --eta 1", "no prior"),
        ("--prior uniform:x --eta 1", "uniform:DIMENSION"),
        ("--kappa 0.1 --prior uniform:3", "in one way"),
        ("", "in one way"),
        ("--kappa 0.1 --recipe nowhere.json", "not there"),
        ("--kappa 0.1 --recipe r.json --steps 3", "leave --steps"),
    ],
)
def test_each_impossible_request_gets_one_sentence_and_exit_code_2(arguments: str, sentence: str) -> None:
    code, out, error = _bound(*arguments.split())
    assert code == 2
    assert out == ""
    assert error.startswith("divulge: ")
    assert sentence in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_a_gamma_next_to_kappa_asks_for_much_noise_and_a_huge_epsilon_for_none() -> None:
    code, text, error = _bound("--kappa", "0.01", "--gamma", "0.0100001", "--steps", "5", "--sampling-rate", "0.1")
    assert (code, error) == (0, "")
    assert "tight" in text
    code, text, error = _bound("--kappa", "0.01", "--epsilon", "1e9")
    assert (code, error) == (0, "")
    assert "chance 1, noise multiplier" in text


def test_a_recipe_of_batches_needs_the_number_of_records(tmp_path: Path) -> None:
    path = Recipe(widths=[64, 10], epochs=3, batch_size=500).save(tmp_path)
    code, _, error = _bound("--kappa", "0.01", "--recipe", str(path))
    assert code == 2
    assert "--records" in error
