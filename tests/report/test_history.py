"""Audits over time: every report in a folder, also of earlier versions, and nothing else."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from divulge.core.errors import InvalidInput
from divulge.report import Report, history, remember
from divulge.report.findings import Finding, Skipped
from divulge.report.history import page, unreadable


def made(name: str, date: str, severity: str) -> Report:
    outcome = "failed" if severity == "none" else "succeeded"
    found = Finding("copy-from-values", "copy", "prediction client", "t", outcome, severity, "m", "c")  # type: ignore[arg-type]
    left = Skipped("span-from-labels", "Directions", "The time was used up.", "not tried", "medium")
    unfit = Skipped("informed-linear", "One record", "Not linear.")
    return Report({"name": name, "kind": "k"}, [found], [left, unfit], seconds=1.0, seed=0, date=date)


def test_audits_stand_by_model_and_date_with_what_each_attack_got(tmp_path: Path) -> None:
    made("b", "2026-02-01", "high").save(tmp_path / "x" / "report.json")
    made("a", "2026-03-01", "none").save(tmp_path / "y" / "report.json")
    made("a", "2026-01-01", "medium").save(tmp_path / "z" / "deep" / "report.json")
    (tmp_path / "report-of-others.json").write_text('{"findings": 3}')
    (tmp_path / "report.json").write_text("not JSON")
    assert unreadable(tmp_path) == [tmp_path / "report.json"]
    audits = history(tmp_path)
    assert [(audit.model, audit.date, audit.severity) for audit in audits] == [
        ("a", "2026-01-01", "medium"), ("a", "2026-03-01", "none"), ("b", "2026-02-01", "high"),
    ]  # fmt: skip
    assert audits[1].attacks == {"copy-from-values": "not taken", "span-from-labels": "not tried"}
    shown = page(audits)
    assert shown.count("<tr>") == 4
    assert "informed-linear" not in shown


def test_a_report_of_the_first_version_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    old = {
        "schema_version": 1, "target": {"name": "m"}, "severity": "none", "findings": [],
        "skipped": [{"name": "x", "title": "t", "reason": "The time was used up."}],
    }  # fmt: skip
    (tmp_path / "report.json").write_text(json.dumps(old))
    audit = history(tmp_path)[0]
    assert (audit.state, audit.attacks) == ("unknown", {"x": "not tried"})


def test_the_page_links_to_the_reports_below_it(tmp_path: Path) -> None:
    made("a", "2026-01-01", "high").save(tmp_path / "in" / "an audit" / "report.json")
    made("a", "2026-01-01", "high").save(tmp_path / "in" / "an audit" / "report.html")
    audits = history(tmp_path)
    assert '<a href="in/an%20audit/report.html">a</a>' in page(audits, tmp_path)
    assert "<a " not in page(audits, tmp_path / "elsewhere")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    made("<img src=x>\x1b\u202e", "2026-01-01", "high").save(tmp_path / "report.json")
    shown = page(history(tmp_path))
    assert "<img" not in shown
    assert "\u202e" not in shown


@pytest.mark.parametrize("folder", ["missing", "."])
def test_a_folder_without_audits_is_refused_in_one_sentence(tmp_path: Path, folder: str) -> None:
    with pytest.raises(InvalidInput, match="audit"):
        history(tmp_path / folder)


def test_an_sqlite_file_holds_each_audit_once_and_shows_what_the_folder_shows(tmp_path: Path) -> None:
    for number in range(2):
        made("m", f"2026-01-0{number + 1}", "high").save(tmp_path / "audits" / str(number) / "report.json")
    database = tmp_path / "kept" / "audits.sqlite"
    assert remember(tmp_path / "audits", database) == 2
    assert remember(tmp_path / "audits" / "0" / "report.json", database) == 0
    assert history(database) == history(tmp_path / "audits")
    old = {"schema_version": 1, "target": {"name": "old"}, "severity": "none", "findings": [], "skipped": []}
    (tmp_path / "audits" / "report.json").write_text(json.dumps(old))
    assert remember(tmp_path / "audits", database) == 1
    assert [audit.model for audit in history(database)] == ["m", "m", "old"]


def test_other_files_are_no_history(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{}")
    with sqlite3.connect(tmp_path / "other.sqlite") as db:
        db.execute("CREATE TABLE audits (document TEXT)")
    (tmp_path / "damaged.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    for name, words in (("report.json", "neither"), ("other.sqlite", "another program"), ("damaged.sqlite", "archive")):
        with pytest.raises(InvalidInput, match=words):
            history(tmp_path / name)
    made("m", "2026-01-01", "high").save(tmp_path / "in" / "report.json")
    with pytest.raises(InvalidInput, match="another program"):
        remember(tmp_path / "in", tmp_path / "other.sqlite")
    with pytest.raises(InvalidInput, match="no report"):
        remember(tmp_path / "nowhere", tmp_path / "new.sqlite")
    assert not (tmp_path / "new.sqlite").exists()


@pytest.mark.slow
def test_the_command_adds_to_a_file_and_shows_it(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from divulge.cli import app

    made("\x1b[31mred\u202e" + "x" * 10_000, "2026-01-01", "high").save(tmp_path / "audits" / "report.json")
    database = str(tmp_path / "audits.sqlite")
    shown = CliRunner().invoke(app, ["history", database, "--add", str(tmp_path / "audits")])
    assert (shown.exit_code, "\x1b" in shown.stdout, "\u202e" in shown.stdout) == (0, False, False)
    assert json.loads(CliRunner().invoke(app, ["history", database, "--json"]).stdout)["audits"][0]["state"] == "taken"
    assert CliRunner().invoke(app, ["history", str(tmp_path), "--add", str(tmp_path)]).exit_code == 2
