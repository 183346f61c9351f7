"""A run does the parts that were asked for, until its time is up, and says what it left."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from experiments.catalogue import BENCHMARKS, PAPERS, listing
from experiments.plan import Plan, brief

from divulge.core.errors import InvalidInput

ROOT = Path(__file__).resolve().parents[2]


def test_only_what_was_asked_for_is_measured_and_printed_as_it_comes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(tmp_path, only=("b*", "last"))
    found = plan.measure(
        "some", {"first": lambda: pytest.fail("not asked for"), "b1": lambda: 0.5, "the last": lambda: [1]}
    )
    assert found == {"b1": 0.5, "the last": [1]} == json.loads((tmp_path / "some.json").read_text())
    assert capsys.readouterr().out == "b1: 0.5\nthe last: [1]\n"


def test_nothing_begins_after_the_time_and_what_is_left_is_named(tmp_path: Path) -> None:
    plan = Plan(tmp_path, seconds=-1.0, loud=False)
    assert plan.measure("some", {"a": lambda: pytest.fail("no time"), "b": lambda: 1}) == {}
    assert plan.left == ["a", "b"]
    with pytest.raises(InvalidInput, match="No part is called 'z'; the parts are: a"):
        Plan(tmp_path, only=("z",)).measure("some", {"a": lambda: 1})


def test_rows_are_printed_on_one_line() -> None:
    assert brief({"a": 1 / 3, "b": [1, 2], "c": {"d": {"e": 1}}}) == "a 0.3333, b [1, 2], c d 1 entries"


@pytest.mark.slow
@pytest.mark.parametrize("experiment", [*PAPERS, *BENCHMARKS], ids=lambda experiment: experiment.name)
def test_every_listed_experiment_is_there_with_its_page(experiment) -> None:
    folder = "papers" if experiment in PAPERS else "benchmarks"
    assert callable(import_module(f"experiments.{folder}.{experiment.name.replace('-', '_')}").run)
    assert (ROOT / "docs" / "results" / f"{experiment.page}.md").is_file()


def test_every_benchmark_is_listed(tmp_path: Path) -> None:
    modules = {path.stem for path in (ROOT / "experiments" / "benchmarks").glob("*.py")} - {"__init__"}
    assert modules == {experiment.name for experiment in BENCHMARKS}
    (tmp_path / "span.json").write_text("{}")
    rows = {row["name"]: row["run here"] for row in listing(BENCHMARKS, tmp_path)}
    assert rows["span"] == "yes"
    assert rows["shadows"] == "no"


def test_an_experiment_that_was_run_is_found_under_the_name_of_its_module(tmp_path: Path) -> None:
    (tmp_path / "balle_dp").mkdir()
    (tmp_path / "balle_dp" / "result.json").write_text("{}")
    rows = listing(PAPERS, tmp_path)
    assert {row["name"] for row in rows if row["run here"] == "yes"} == {"balle-dp"}
    for row in rows + listing(BENCHMARKS, tmp_path):
        assert (ROOT / row["published"]).is_file()


@pytest.mark.slow
def test_reproduce_lists_what_there_is_from_a_clone() -> None:
    words = [sys.executable, "-c", "from divulge.cli import main; main()", "reproduce", "--list", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    assert [row["name"] for row in json.loads(done.stdout)["experiments"]] == [one.name for one in PAPERS]
