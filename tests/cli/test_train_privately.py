"""``divulge train --epsilon``: the noise is the accountant's, and what is spent is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from divulge.cli import app
from divulge.protection import Schedule, epsilon_spent, privacy_for
from divulge.training import Recipe


def _train(out: Path, *arguments: str) -> tuple[int, str, str]:
    common = ["train", "--data", "iris", "--widths", "4,3", "--out", str(out), *arguments]
    result = CliRunner().invoke(app, common)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 30])
def test_the_noise_that_an_epsilon_needs_is_found_and_kept_in_the_recipe(tmp_path: Path, batch: int) -> None:
    code, text, _ = _train(tmp_path, "--epsilon", "3", "--epochs", "2", "--batch-size", str(batch), "--json")
    assert code == 0
    told = json.loads(text)
    recipe = Recipe.load(tmp_path)
    assert recipe.privacy is not None
    schedule = Schedule.of(recipe, told["train"]["rows"])
    spent = epsilon_spent(
        noise_multiplier=recipe.privacy.noise_multiplier, steps=schedule.steps, sampling_rate=schedule.sampling_rate,
        delta=1e-5,
    )  # fmt: skip
    assert spent == pytest.approx(3, rel=0.01)
    assert told["privacy_spent"]["epsilon"] == pytest.approx(spent)


def test_a_noise_multiplier_says_what_it_spends(tmp_path: Path) -> None:
    code, text, _ = _train(tmp_path, "--noise-multiplier", "5", "--epochs", "1", "--batch-size", "0")
    assert code == 0
    assert "epsilon" in text
    assert "at delta 1e-05" in text


@pytest.mark.slow
def test_two_ways_at_once_and_no_delta_are_refused(tmp_path: Path) -> None:
    for arguments, sentence in (
        (["--epsilon", "3", "--noise-multiplier", "1"], "not both"),
        (["--epsilon", "inf"], "finite"),
        (["--epsilon", "3", "--delta", "0"], "delta"),
    ):
        code, _, error = _train(tmp_path, *arguments)
        assert code == 2
        assert sentence in error


def test_privacy_for_a_recipe() -> None:
    recipe = Recipe(widths=[4, 2], epochs=50)
    weak, strong = (privacy_for(recipe, 100, epsilon=epsilon) for epsilon in (10.0, 1.0))
    assert strong.noise_multiplier > weak.noise_multiplier > 0


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 30])
def test_a_seed_for_the_noise_is_possible_and_claims_no_epsilon(tmp_path: Path, batch: int) -> None:
    options = ["--epsilon", "3", "--noise-seed", "4", "--epochs", "1", "--batch-size", str(batch)]
    code, text, _ = _train(tmp_path, *options)
    assert code == 0
    assert "seeded: no guarantee" in text
    code, text, _ = _train(tmp_path, *options, "--json")
    told = json.loads(text)
    assert "privacy_spent" not in told
    assert told["guarantee"]["epsilon"] is None
    assert told["recipe"]["privacy"]["claim"] == "seeded: no guarantee"


@pytest.mark.slow
def test_scaling_by_the_datas_own_extremes_is_not_covered_and_declared_bounds_are(tmp_path: Path) -> None:
    code, text, _ = _train(tmp_path, "--epsilon", "3", "--epochs", "1", "--batch-size", "0")
    assert code == 0
    assert "not covered: the columns were scaled by the data's own extremes" in text
    code, text, _ = _train(tmp_path, "--epsilon", "3", "--epochs", "1", "--batch-size", "0", "--bounds", "0,10")
    assert code == 0
    assert "not covered" not in text
    for wrong in ("1", "5,1", "a,b"):
        code, _, error = _train(tmp_path, "--bounds", wrong)
        assert code == 2
        assert "ounds" in error


@pytest.mark.slow
def test_the_price_is_measured_on_unseen_rows_with_auc_and_balanced_accuracy(tmp_path: Path) -> None:
    table = tmp_path / "rare.csv"
    lines = [f"{i % 7},{(i * 5) % 11},{int(i % 25 == 0)}" for i in range(500)]
    table.write_text("a,b,target\n" + "\n".join(lines) + "\n")
    result = CliRunner().invoke(
        app, ["train", "--data", str(table), "--epsilon", "1", "--epochs", "5", "--out", str(tmp_path / "m"), "--json"]
    )
    test = json.loads(result.stdout)["test"]
    assert test["accuracy"] > 0.9  # what the common class alone gives
    assert test["balanced_accuracy"] < 0.7
    assert 0 <= test["auc"] <= 1
    result = CliRunner().invoke(
        app, ["train", "--data", str(table), "--epsilon", "1", "--epochs", "1", "--out", str(tmp_path / "m")]
    )
    held_out = next(line for line in result.stdout.splitlines() if "held out" in line)
    assert "balanced accuracy" in held_out
    assert "AUC" in held_out
