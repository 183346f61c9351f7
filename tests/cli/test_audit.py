"""divulge audit, compare, bound and reproduce as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import joblib
import pytest
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

from divulge import datasets
from divulge.auditing import registry
from divulge.cli import app
from divulge.cli.common import seconds_of, show
from divulge.core.errors import InvalidInput

runner = CliRunner()


def run(*arguments: str) -> Any:
    return runner.invoke(app, list(arguments))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    made = run(
        "train", "--data", "iris", "--positive", "setosa", "--widths", "4,3,1", "--epochs", "30", "--batch-size", "0",
        "--precision", "float64", "--out", str(folder), "--quiet",
    )  # fmt: skip
    assert made.exit_code == 0, made.stderr
    return folder


@pytest.mark.slow
def test_one_command_makes_a_report_and_fails_a_build_on_what_it_finds(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [probe for probe in registry.available_probes() if probe.name.startswith(("copy-from", "span-from"))]
    monkeypatch.setattr(registry, "available_probes", lambda: some)
    done = run(
        "audit", str(trained), "--access", "gradient", "--time", "40s", "--out", str(tmp_path), "--format", "markdown",
        "--price", "1.5", "--fail-on", "high", "--json",
    )  # fmt: skip
    assert done.exit_code == 5, done.stderr
    told = json.loads(done.stdout)
    assert told["severity"] == "high"
    assert {Path(p).name for p in told["files"]} == {"report.html", "report.json", "report.md"}
    assert told["target"]["training_records"] > 0  # data.json was found beside the weights
    again = run("audit", str(trained), "--access", "gradient", "--time", "40s", "--resume", str(tmp_path))
    assert again.exit_code == 0
    assert "HIGH" in again.stdout
    assert str(tmp_path / "report.html") in again.stdout
    same = run("compare", str(tmp_path), str(tmp_path / "report.json"))
    assert same.exit_code == 0
    assert "same" in same.stdout


def test_compare_exits_5_when_something_got_worse(trained: Path, tmp_path: Path) -> None:
    base = {"title": "t", "measures": {"a": 1}}
    for name, severity in (("old", "low"), ("new", "high")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"findings": [{"name": "x", "severity": severity, **base}]}))
    worse = run("compare", str(tmp_path / "old.json"), str(tmp_path / "new.json"), "--json")
    assert worse.exit_code == 5
    assert json.loads(worse.stdout)["changes"][0]["verdict"] == "worse"
    (tmp_path / "nothing.json").write_text(json.dumps({"findings": []}))
    assert run("compare", str(tmp_path / "nothing.json"), str(tmp_path / "new.json")).exit_code == 5
    assert run("compare", str(tmp_path / "new.json"), str(tmp_path / "nothing.json")).exit_code == 6  # not tried
    unfit = {"findings": [], "skipped": [{"name": "x", "title": "t", "reason": "no weights", "ending": "does not fit"}]}
    (tmp_path / "unfit.json").write_text(json.dumps(unfit))
    gone = run("compare", str(tmp_path / "new.json"), str(tmp_path / "unfit.json"))
    assert gone.exit_code == 0
    assert "no weights" in gone.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--fail-on", "terrible"], "--fail-on takes"),
        (["--format", "docx"], "docx"),
        (["--time", "soon"], "90s, 5m or 1h"),
        (["--data", "nowhere.csv"], "nowhere.csv"),
        (["--recipe", "nowhere.json"], "nowhere.json"),
        (["--resume", "nowhere"], "no audit in nowhere"),
        (["--workers", "0"], "number from 1"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_bad_options_get_one_sentence(trained: Path, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    done = run("audit", str(trained), "--out", str(tmp_path), *arguments)
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", [["audit", "MODEL"], ["bound", "--kappa", "0.01"], ["extract", "MODEL"]])
def test_what_cannot_be_written_gets_one_sentence(trained: Path, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run(*(str(trained) if word == "MODEL" else word for word in words), "--out", str(tmp_path / "file" / "x"))
    assert done.exit_code == 2
    assert done.stderr == f"divulge: Not a directory: {tmp_path / 'file' / 'x'}.\n"


def test_reproduce_names_what_there_is() -> None:
    done = run("reproduce", "nothing")
    assert done.exit_code == 2
    assert "jayaram" in done.stderr


def test_the_version_and_times_as_people_write_them() -> None:
    assert run("--version").stdout.strip() == "0.1.0"
    assert [seconds_of(text) for text in ("90", "90s", "5m", "1.5h")] == [90, 90, 300, 5400]
    with pytest.raises(InvalidInput):
        seconds_of("0")


def test_json_holds_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    show({"a": float("nan"), "b": torch.tensor([1.0, float("inf")]), "c": Path("x")}, json_wanted=True, quiet=False,
         text="")  # fmt: skip
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"a": None, "b": [1.0, None], "c": "x"}


@pytest.mark.slow
def test_a_gate_that_cannot_say_exits_6_and_unknown_attacks_exit_2(trained: Path, tmp_path: Path) -> None:
    done = run("audit", str(trained), "--time", "0.01s", "--fail-on", "low", "--out", str(tmp_path), "--json")
    assert done.exit_code == 6, done.stderr
    told = json.loads(done.stdout)
    assert (told["state"], told["finished"], told["gate"]["result"]) == ("inconclusive", False, "inconclusive")
    assert run("audit", str(trained), "--time", "0.01s", "--out", str(tmp_path / "b"), "--quiet").exit_code == 0
    unknown = run("audit", str(trained), "--require", "nothing", "--out", str(tmp_path / "c"))
    assert unknown.exit_code == 2
    assert "no attack called 'nothing'" in unknown.stderr


@pytest.mark.slow
def test_declared_controls_are_listed_beside_a_table_that_the_model_never_saw(tmp_path: Path) -> None:
    """The option --control and the rows of --unseen are two things."""
    table = datasets.load("breast-cancer")
    X, y = (part.numpy() for part in table.train)
    lines = ["a,b,c,y", *(",".join(map(str, [*x[:3], t])) for x, t in zip(X, y, strict=True))]
    (tmp_path / "seen.csv").write_text("\n".join(lines[:200]))
    (tmp_path / "others.csv").write_text("\n".join([lines[0], *lines[200:300]]))
    joblib.dump(LogisticRegression().fit(X[:199, :3], y[:199]), tmp_path / "model.joblib")
    files = {name: str(tmp_path / name) for name in ("model.joblib", "seen.csv", "others.csv", "audit")}
    done = run(
        "audit", files["model.joblib"], "--trust-pickle", "--data", files["seen.csv"], "--target", "y", "--unseen",
        files["others.csv"], "--control", "100 rows a day", "--time", "3s", "--out", files["audit"], "--format", "pdf",
        "--quiet",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "audit" / "report.json").read_text())["controls"] == ["100 rows a day"]
