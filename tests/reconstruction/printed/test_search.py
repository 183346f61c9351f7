"""The search over the printed method's hyper-parameters: kept on disk, taken up again, spread over processes."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from torch import nn

from divulge import reconstruction
from divulge.core.errors import AttackFailed, InvalidInput
from divulge.reconstruction import PaperSettings, Settings
from divulge.reconstruction.printed.search import PRINTED_RANGES, RANGES
from divulge.training import margin

from ...margin_targets import Target, odd_digits

QUICK = PaperSettings(iterations=20)
POSTGRES = os.environ.get("DIVULGE_POSTGRES", "")


@pytest.fixture(scope="module")
def model() -> nn.Module:
    X, y, _ = odd_digits(6, seed=1)
    return margin.to_margin(margin.network([64, 20, 1], first_scale=1e-3, balanced=True), X - X.mean(dim=0), y).model


def finished(storage: Path) -> int:
    with sqlite3.connect(storage) as database:
        return int(database.execute("select count(*) from trials where state in ('COMPLETE', 'FAIL')").fetchone()[0])


@pytest.mark.slow
def test_a_search_keeps_its_trials_and_goes_on_from_them(model: nn.Module, tmp_path: Path) -> None:
    storage = tmp_path / "search.db"
    first = reconstruction.search(model, n=6, trials=3, settings=QUICK, storage=storage)
    assert first.trials == finished(storage) == 3
    more = reconstruction.search(model, n=6, trials=5, settings=QUICK, storage=storage)
    assert more.trials == finished(storage) == 5
    assert more.score >= first.score
    again = reconstruction.search(model, n=6, trials=5, settings=QUICK, storage=storage)
    assert (again.settings, again.score) == (more.settings, more.score)
    for name, (low, high, _) in RANGES.items():
        assert low <= getattr(more.settings, name) <= high
    assert more.settings.iterations == 20


@pytest.mark.slow
def test_the_best_settings_give_the_score_they_are_said_to(model: nn.Module, tmp_path: Path) -> None:
    best = reconstruction.search(model, n=6, trials=4, settings=QUICK, storage=tmp_path / "search.db")
    found = reconstruction.from_weights(model, method="paper", n=6, settings=best.settings)
    assert -found.residual == pytest.approx(best.score)


@pytest.mark.slow
def test_the_printed_search_draws_at_random_from_the_printed_ranges(model: nn.Module, tmp_path: Path) -> None:
    """Both searches stand in one database; a printed trial does not depend on what earlier ones came to."""
    storage = tmp_path / "search.db"
    reconstruction.search(model, n=6, trials=3, settings=QUICK, storage=storage)
    reconstruction.search(model, n=6, trials=20, settings=replace(QUICK, iterations=1), storage=storage, method="paper")
    (name,) = (name for name in optuna.get_all_study_names(f"sqlite:///{storage}") if name.endswith("-printed"))
    trials = optuna.load_study(study_name=name, storage=f"sqlite:///{storage}").get_trials()
    assert len(trials) == 20
    for parameter, (low, high, log) in PRINTED_RANGES.items():
        drawn = [trial.params[parameter] for trial in trials]
        assert low <= min(drawn) <= max(drawn) <= high
        assert trials[0].distributions[parameter].log == log  # type: ignore[attr-defined]
    assert max(trial.params["lambda_min"] for trial in trials) > RANGES["lambda_min"][1]
    assert min(trial.params["lambda_min"] for trial in trials) < RANGES["lambda_min"][0]
    assert all(trial.user_attrs["residual"] > 0 for trial in trials if trial.value is not None)


@pytest.mark.slow
def test_with_training_inputs_runs_are_judged_by_them(target: Target, tmp_path: Path) -> None:
    best = reconstruction.search(
        target.model, n=8, training_inputs=target.X, trials=2, settings=QUICK, storage=tmp_path / "search.db"
    )
    assert 0 < best.score < 1


@pytest.mark.slow
def test_trials_run_in_several_processes_on_one_database(model: nn.Module, tmp_path: Path) -> None:
    storage = tmp_path / "search.db"
    best = reconstruction.search(model, n=6, trials=4, settings=QUICK, storage=storage, workers=2)
    assert best.trials == finished(storage) == 4


@pytest.mark.skipif(not POSTGRES, reason="set DIVULGE_POSTGRES to the URL of an empty PostgreSQL database")
def test_trials_of_many_machines_meet_in_postgresql(model: nn.Module) -> None:
    first = reconstruction.search(model, n=6, trials=3, settings=QUICK, storage=POSTGRES, workers=2)
    more = reconstruction.search(model, n=6, trials=5, settings=QUICK, storage=POSTGRES, workers=2)
    assert (first.trials, more.trials) == (3, 5)
    assert more.score >= first.score


@pytest.mark.slow
def test_a_trial_whose_process_died_is_made_up_for(model: nn.Module, tmp_path: Path) -> None:
    import optuna  # takes half a second

    storage = tmp_path / "search.db"
    reconstruction.search(model, n=6, trials=1, settings=QUICK, storage=storage)
    (study,) = optuna.get_all_study_summaries(f"sqlite:///{storage}")
    optuna.load_study(study_name=study.study_name, storage=f"sqlite:///{storage}").ask()
    best = reconstruction.search(model, n=6, trials=2, settings=QUICK, storage=storage)
    assert best.trials == 2


@pytest.mark.slow
def test_says_what_it_needs_and_when_nothing_came(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="trials is a whole number"):
        reconstruction.search(model, n=6, trials=0, storage=tmp_path / "search.db")
    hopeless = PaperSettings(iterations=60, stationary=1e30)
    with pytest.raises(AttackFailed, match="diverged"):
        reconstruction.search(model, n=6, trials=1, settings=hopeless, storage=tmp_path / "search.db")
    with pytest.raises(InvalidInput, match="PaperSettings"):
        reconstruction.from_weights(model, method="paper", n=6, settings=Settings())
    with pytest.raises(InvalidInput, match="row-space method takes Settings"):
        reconstruction.from_weights(model, settings=QUICK)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("storage", "sentence"),
    [
        ("postgresql://me:secret@127.0.0.1:1/trials", "driver|cannot be opened"),
        ("nonsense://x", "nonsense database"),
        ("/nowhere/search.db", "unable to open"),
    ],
)
def test_a_database_that_cannot_be_used_is_said_in_one_sentence(storage: str, sentence: str) -> None:
    network = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 1))
    with pytest.raises(InvalidInput, match=sentence) as caught:
        reconstruction.search(network, n=3, trials=1, storage=storage)
    assert "secret" not in str(caught.value)
