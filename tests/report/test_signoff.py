"""The sign-off summary: two tagged pages that show the worst case, without records, whatever the names are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from divulge.oracles.ledger import Spent
from divulge.report import Report
from divulge.report.findings import Finding, Picture, Skipped, Table
from divulge.report.signoff import changes, html, pdf, residuals, worst_cases

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e" + "w" * 10_000


def finding(name: str, adversary: str, severity: str, outcome: str = "succeeded", **more: object) -> Finding:
    options = {"ledger": Spent(value=2100), "seconds": 3.0, **more}
    return Finding(name, "copy", adversary, f"title of {name}", outcome, severity, "m", "c", **options)  # type: ignore[arg-type]


def report(*findings: Finding, **more: object) -> Report:
    options: dict[str, object] = {
        "target": {"name": "ward.joblib", "kind": "a linear model", "access_granted": "weights"},
        "findings": list(findings),
        "skipped": [Skipped("span-from-labels", "Directions", "The time was used up.", "not tried", "medium")],
        "seconds": 61.0, "seed": 3, "date": "2026-01-31", "auditor": "R. Keller", "versions": {"divulge": "0.1.0"},
        "digests": {"model": "ab" * 32}, "controls": ("1,000 queries a day",),
    }  # fmt: skip
    return Report(**{**options, **more})  # type: ignore[arg-type]


def pages(content: bytes) -> list[str]:
    import pypdfium2

    document = pypdfium2.PdfDocument(content)
    try:
        return [page.get_textpage().get_text_range() for page in document]
    finally:
        document.close()


@pytest.fixture
def weasyprint() -> None:
    try:
        import weasyprint  # noqa: F401
    except (ImportError, OSError):
        pytest.skip("WeasyPrint, or the Pango library that it needs, is not installed.")


def test_each_adversary_is_shown_at_their_worst() -> None:
    made = report(
        finding("a", "label client", "none", "failed"),
        finding("b", "label client", "none", "inconclusive"),
        finding("c", "prediction client", "medium", "partly"),
        finding("d", "prediction client", "high", remedies=("Guard round:2.",)),
        finding("e", "insider", "critical", worst_record="Record 17 came back."),
    )
    cases = worst_cases(made)
    assert [(case.adversary, case.result) for case in cases] == [
        ("insider", "critical"), ("prediction client", "high"), ("label client", "inconclusive"),
    ]  # fmt: skip
    assert cases[0].record == "Record 17 came back."
    assert cases[0].with_protection == "not measured"
    assert cases[1].measured == "title of d. Cost: 2,100 predictions, 3 s."
    assert cases[1].with_protection == "Guard round:2."
    assert changes(made)[0] == "title of b: run it to its end."
    assert "Guard round:2. This is against: title of d." in changes(made)


@pytest.mark.slow
def test_residual_risk_is_shown_with_and_without_the_recommended_protection(weasyprint: None) -> None:
    rows = (
        (2.5, 0.9, 0.85, 0.97, 0.02, 0.05, 0.01, 0.11, 0.0, 0.07),
        ("none", 0.97, 0.96, 0.99, 0.31, 1.0, 0.2, 0.4, 1.0, 1.0, 0.25, 0.4),
    )
    study = Finding(
        "price-of-protection", "protection", None, "t", "succeeded", "none", "m", "c",
        measures={"recommended_epsilon_by_theorems": 2.5}, tables=(Table("t", tuple("abcdefghij"), rows),),
    )  # fmt: skip
    epsilon, found = residuals(report(study))
    assert epsilon == "2.5"
    assert [(row.without, row.with_protection, row.proven) for row in found][1] == (
        "31.0 % (25.0 % to 40.0 %)",
        "2.0 %",
        "5.0 %",
    )
    assert found[3].without == "100.0 %"
    both = report(finding("d", "insider", "high"), finding("e", "label client", "high"), study)
    assert [case.with_protection for case in worst_cases(both)] == [
        "Private training at epsilon 2.5: 0.0 % rebuilt instead of 100.0 %, see below.", "not measured",
    ]  # fmt: skip
    assert any("epsilon 2.5" in sentence and "85.0 %" in sentence for sentence in changes(both))
    content = pdf(report(finding("d", "insider", "high"), study))
    assert len(pages(content)) == 2
    assert "31.0 %" in " ".join(pages(content))
    assert residuals(report()) == ("", [])


def test_a_guarantee_stands_beside_the_attacks_on_records_only() -> None:
    private = {"name": "m", "kind": "k", "differential_privacy": "epsilon 2 at delta 1e-05"}
    record = Finding("r", "informed", "insider", "t", "failed", "none", "m", "c")
    cases = {
        case.adversary: case
        for case in worst_cases(report(record, finding("x", "label client", "high"), target=private))
    }
    assert cases["insider"].proven == "epsilon 2 at delta 1e-05"
    assert cases["label client"].proven == "none"
    seeded = {**private, "differential_privacy": "not claimed (seeded); the noise would spend epsilon 2 at delta 1e-05"}
    assert worst_cases(report(record, target=seeded))[0].proven == "none"


@pytest.mark.slow
def test_two_tagged_pages_with_everything_to_decide_on(weasyprint: None, tmp_path: Path) -> None:
    path = report(finding("d", "prediction client", "high")).save(tmp_path / "report.pdf")
    content = path.read_bytes()
    text = pages(content)
    assert len(text) == 2
    whole = " ".join(" ".join(text).split())
    for expected in (
        "ward.joblib", "ab" * 8, "R. Keller", "2026-01-31", "1,000 queries a day", "title of d", "signature",
        "membership inference", "NISTAML.031", "no legal advice", "Directions: run it to its end.", "SEVERITY: HIGH",
        "sees the numbers behind decisions", "Somebody finds out what a person did not disclose.", "As above.",
    ):  # fmt: skip
        assert expected in whole, expected
    import pypdfium2

    document = pypdfium2.PdfDocument(content)
    assert pypdfium2.raw.FPDFCatalog_IsTagged(document.raw) == 1
    document.close()


@pytest.mark.slow
def test_hostile_names_stay_text_and_do_not_fill_pages(weasyprint: None) -> None:
    made = report(
        finding("d", "insider", "high", remedies=(HOSTILE,) * 9, worst_record=HOSTILE),
        target={"name": HOSTILE, "kind": HOSTILE}, auditor=HOSTILE, controls=(HOSTILE,) * 20, command=HOSTILE,
    )  # fmt: skip
    page = html(made)
    assert "<script>" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert len(pages(pdf(made))) <= 3


def test_the_command_is_shown_whole_and_words_are_explained_where_they_are_used() -> None:
    command = "divulge audit model.joblib " + " ".join(f"--control 'control number {n}'" for n in range(15))
    page = html(
        report(finding("d", "insider", "high", remedies=("Noise multiplier 3 at delta 0.1.",)), command=command)
    )
    assert command.replace("'", "&#39;") in page
    assert "<dt>delta</dt>" in page
    assert "<dt>noise multiplier</dt>" in page
    assert "<dt>student</dt>" not in page
    assert "called from Python" in html(report())


def test_every_form_names_auditor_digests_and_controls() -> None:
    made = report(finding("d", "insider", "high"))
    for text in (made.html(), made.markdown()):
        for expected in ("R. Keller", "ab" * 32, "1,000 queries a day"):
            assert expected in text


def test_no_record_is_shown() -> None:
    private = finding(
        "d", "insider", "high",
        tables=(Table("values", ("secret",), (("aged 93",),), records=True),),
        pictures=(Picture(b"png", "a face", "a face", records=True),),
    )  # fmt: skip
    page = html(report(private))
    assert "aged 93" not in page
    assert "<img" not in page


def test_sarif_has_a_rule_for_each_attack_and_a_result_where_something_was_taken(tmp_path: Path) -> None:
    made = report(finding("a", "insider", "critical"), finding("b", "label client", "none", "failed"))
    log = json.loads(made.save(tmp_path / "report.sarif").read_text())
    run = log["runs"][0]
    assert (log["version"], [rule["id"] for rule in run["tool"]["driver"]["rules"]]) == ("2.1.0", ["a", "b"])
    assert [(r["ruleId"], r["level"]) for r in run["results"]] == [("a", "error")]
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "ward.joblib"


def test_the_fragment_of_a_bill_of_materials_names_the_model_and_is_the_same_each_time(tmp_path: Path) -> None:
    made = report(finding("a", "insider", "critical"))
    first, second = (json.loads(made.save(tmp_path / f"{n}.cdx.json").read_text()) for n in "ab")
    assert first == second
    assert (first["bomFormat"], first["components"][0]["type"]) == ("CycloneDX", "machine-learning-model")
    assert {"name": "divulge:severity", "value": "critical"} in first["components"][0]["properties"]


@pytest.mark.slow
def test_the_findings_as_a_table() -> None:
    table = report(
        finding("a", "insider", "high", measures={"error": 0.25}), finding("b", "insider", "none")
    ).to_frame()
    assert table["name"].tolist() == ["a", "b"]
    assert table["measures.error"].iloc[0] == 0.25
    assert table["queries"].tolist() == [2100, 2100]
