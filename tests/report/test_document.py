"""The report: valid JSON, a self-contained page, hostile text that stays text, and what changed between two."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from divulge.auditing import severity_of
from divulge.core.errors import InvalidInput
from divulge.core.images import as_picture
from divulge.core.plots import curve, picture_grid
from divulge.oracles.ledger import Spent
from divulge.report import Report, compare, schema
from divulge.report.findings import SEVERITIES, Finding, Picture, Skipped, Table
from divulge.report.text import asked, duration, measure, number

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>|`**[a](javascript:b)"


@cache
def grid() -> bytes:
    return picture_grid([("a", np.random.default_rng(0).random((3, 64)))], (1, 8, 8))


def finding(name: str = "copy-from-values", severity: str = "high", text: str = "plain", **more: object) -> Finding:
    options = {
        "name": name,
        "question": "copy",
        "adversary": "prediction client",
        "title": text,
        "outcome": "succeeded",
        "severity": severity,
        "meaning": text,
        "certainty": text,
        "measures": {"worst_difference": 1e-12, text: text, "odd": float("nan"), "exact": True},
        "ledger": Spent(value=2100),
        "seconds": 1.5,
        "remedies": (text,),
        "command": f"divulge extract {text}",
        "pictures": (Picture(grid(), text, text),),
        "tables": (Table(text, (text, "b"), ((text, 1),)),),
        "notes": (text,),
    }
    return Finding(**{**options, **more})  # type: ignore[arg-type]


def report(*findings: Finding, text: str = "plain", **more: object) -> Report:
    options: dict[str, object] = {
        "target": {"name": text, "kind": text, "inputs": 64},
        "findings": list(findings),
        "skipped": [Skipped("x", text, text)],
        "seconds": 12.0,
        "seed": 3,
        "price": 1.5,
        "versions": {"divulge": "0.1.0"},
    }
    return Report(**{**options, **more})  # type: ignore[arg-type]


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags_of(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(page)
    return parser.found


def test_every_field_of_the_schema_is_explained_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how_to" / "sign_off.md").read_text()
    table = page[page.index("| field | what it is |") :]
    whole = schema()
    published = whole["properties"]
    parts = [published, whole["$defs"]["finding"]["properties"]]
    parts += [published[name]["items"]["properties"] for name in ("skipped", "scope")]
    missing = {field for part in parts for field in part if f"`{field}`" not in table}
    assert not missing
    assert f"is\n{published['schema_version']['const']}," in page


@pytest.mark.slow
def test_the_json_follows_the_published_schema(tmp_path: Path) -> None:
    path = report(finding(), finding("other", "none")).save(tmp_path / "report.json")
    document = json.loads(path.read_text())
    jsonschema.validate(document, schema())
    assert document["severity"] == "high"
    assert document["findings"][0]["price"] == pytest.approx(3.15)
    assert document["findings"][0]["measures"]["odd"] is None  # JSON has no NaN


@pytest.mark.slow
def test_the_page_asks_nothing_of_the_network_and_runs_nothing() -> None:
    page = report(finding()).html()
    for tag, attributes in tags_of(page):
        assert tag not in ("script", "iframe", "object", "embed", "link")
        for name in ("src", "href"):
            value = attributes.get(name) or "#"
            assert value.startswith(("data:image/png", "#")), value
    assert "url(" not in page
    assert "@import" not in page
    assert len(page) < 5_000_000


@pytest.mark.slow
def test_the_first_sentences_say_what_was_taken_and_by_whom() -> None:
    insider = finding("one", "medium", question="informed", adversary="insider", outcome="partly")
    advice = finding("two", "none", question="protection", adversary=None)
    data = finding("data", "critical", question="training-data")
    made = report(
        advice,
        insider,
        finding(),
        finding("again", outcome="partly"),
        data,
        skipped=[Skipped("x", "t", "r", "unfinished", "high")],
    )
    assert made.verdict == [
        "Anyone who may ask for predictions can compute training records and copy the model.",
        "An insider who knows all other records can sometimes compute the missing one.",
        "1 attack came to no conclusion: t.",
    ]
    assert report(advice).state == "inconclusive"
    assert (
        report(advice).verdict[0].startswith("Inconclusive: this audit says nothing about the model, because no attack")
    )
    failed = finding("one", "none", outcome="failed")
    assert report(failed).verdict == ["Nothing was taken by the one attack that ran to its end (plain)."]
    for page in (made.html(), made.markdown()):
        assert " ".join(made.verdict) in page
        assert "advice" in page
        assert "did not run to its end" in page
        assert "was not tried" not in page
    assert "| 3 | 0.5 |" in report(finding(tables=(Table("t", ("a", "b"), ((3, 0.5),)),))).markdown()


def test_shares_are_shown_in_percent() -> None:
    assert measure(0.9567, "same_decision") == "95.67%"
    assert measure(1, "hidden_units_found") == "1"
    assert measure(0.25, "worst_difference") == "0.25"
    assert asked(Spent(value=1200, gradient=1)) == "1 explanation and 1,200 predictions"


def test_hostile_names_stay_text() -> None:
    page = report(finding(text=HOSTILE), text=HOSTILE).html()
    assert "script" not in {tag for tag, _ in tags_of(page)}
    assert not any(name.startswith("on") for _, attributes in tags_of(page) for name in attributes)
    assert "&lt;script&gt;" in page
    markdown = report(finding(text=HOSTILE), text=HOSTILE).markdown()
    assert "<script>" not in markdown
    assert not re.search(r"(?<!\\)\]\(javascript", markdown)
    rows = [line for line in markdown.splitlines() if line.startswith("| high")]
    assert len(re.findall(r"(?<!\\)\|", rows[0])) == 6  # five columns, whatever the name says


def test_every_picture_has_words_and_every_section_a_heading() -> None:
    tags = tags_of(report(finding()).html())
    pictures = [attributes for tag, attributes in tags if tag == "img"]
    assert pictures
    assert all(attributes.get("alt") for attributes in pictures)
    assert next(tag for tag, _ in tags if re.fullmatch(r"h\d", tag)) == "h1"
    assert dict(tags)["html"]["lang"] == "en"


def test_a_report_with_nothing_to_show_says_so() -> None:
    empty = report(finished=False)
    assert empty.severity == "none"
    assert "no proof" in empty.html()
    assert "time ended" in empty.html()
    assert "stopped early" in report(finished=False, interrupted=True).html()
    assert not empty.reaches("low")
    assert report(finding(severity="critical")).reaches("high")


def test_the_ending_of_the_name_decides_the_form(tmp_path: Path) -> None:
    assert report(finding()).save(tmp_path / "deep" / "r.md").read_text().startswith("# What")
    with pytest.raises(InvalidInput, match=r"\.html, \.json or \.md"):
        report().save(tmp_path / "r.docx")


@pytest.mark.slow
def test_changes_between_two_reports_are_found_worst_first(tmp_path: Path) -> None:
    old = report(finding("a", "low"), finding("b", "high"), finding("gone", "low"), finding("same", "low"))
    new = report(
        finding("a", "critical", measures={"worst_difference": 1.0}),
        finding("b", "none"),
        finding("same", "low"),
        finding("new", "medium"),
        skipped=[Skipped("gone", "t", "no gradients are granted")],
    )
    changes = compare(old.save(tmp_path / "1" / "report.json").parent, new.save(tmp_path / "2.json"))
    assert {c.name: c.verdict for c in changes} == {
        "a": "worse", "new": "new", "gone": "gone", "b": "better", "same": "same",
    }  # fmt: skip
    assert changes[0].measures["worst_difference"] == (1e-12, 1.0)
    assert next(c.why for c in changes if c.name == "gone") == "no gradients are granted"
    (tmp_path / "bad.json").write_text("[]")
    for path in (tmp_path / "bad.json", tmp_path / "missing.json"):
        with pytest.raises(InvalidInput):
            compare(path, path)


def test_severity_follows_the_written_rule() -> None:
    assert severity_of("training-data", "prediction client", "succeeded") == "critical"
    assert severity_of("training-data", "holder of the weights", "succeeded") == "high"
    assert severity_of("informed", "insider", "partly") == "medium"
    assert severity_of("training-data", "label client", "partly") == "high"
    assert severity_of("copy", "explanation client", "succeeded") == "high"
    assert severity_of("copy", "prediction client", "partly") == "medium"
    assert severity_of("span", "label client", "succeeded") == "medium"
    assert severity_of("span", "label client", "partly") == "low"
    assert severity_of("copy", "prediction client", "failed") == "none"
    assert severity_of("protection", None, "succeeded") == "none"
    assert list(SEVERITIES) == ["none", "low", "medium", "high", "critical"]


def test_numbers_are_written_for_people() -> None:
    assert [number(v) for v in (None, True, 12345, 0.5, 1e-9, 0.0, "x")] == [
        "–", "yes", "12,345", "0.5", "1.00e-09", "0", "x",
    ]  # fmt: skip
    assert [duration(v) for v in (0.2, 42, 300)] == ["under a second", "42 s", "5.0 min"]


@pytest.mark.slow
def test_pictures_are_png_and_colours_survive() -> None:
    assert as_picture(np.arange(12.0), (3, 2, 2)).shape == (2, 2, 3)
    assert as_picture(np.ones(4), (1, 2, 2)).max() == 0  # nothing to stretch
    rows = [("long row", np.zeros((4, 12))), ("short", np.ones((2, 12)))]
    png = picture_grid(rows, (3, 2, 2), captions=[["a"] * 4, ["b"] * 2])
    line = curve([("a", [1, 10], [1, 2]), ("b", [1, 10], [2, 3])], x_label="x", y_label="y", log_x=True, log_y=True)
    assert png[:4] == line[:4] == b"\x89PNG"


@pytest.mark.slow
def test_a_notebook_shows_a_summary_and_not_the_whole_page() -> None:
    many = [finding(f"attack-{i}", text=HOSTILE * 20) for i in range(60)]
    page = report(*many, text=HOSTILE)._repr_html_()
    assert len(page) < 20_000
    assert "<script" not in page
    assert "<img" not in page
    assert "attack-1" in page
    assert "critical" in page or "high" in page


@pytest.mark.slow
@pytest.mark.parametrize("mark", ["\x1b[31m", "\x07", "\u202e", "\u2066", "\u200f", "\x9b2J", "\r"])
def test_marks_that_a_terminal_or_a_browser_acts_on_do_not_survive(mark: str) -> None:
    from divulge.cli.audit import _text

    made = report(finding(text=f"a{mark}b"), text=f"name{mark}end")
    for page in (made.html(), made.markdown(), _text(made, None, [Path(f"x{mark}y")])):
        assert mark[0] not in page
        assert "name" in page


def _saved(folder: Path, version: str, digest: str, *findings: Finding, skipped: tuple[Skipped, ...] = ()) -> Path:
    made = report(*findings, versions={"divulge": version}, digests={"model": digest}, skipped=list(skipped))
    return made.save(folder / f"{version}-{digest}-{len(findings)}" / "report.json")


def test_a_better_attack_on_the_same_model_is_no_change_of_the_model(tmp_path: Path) -> None:
    old = _saved(tmp_path, "1", "same", finding("a", "low"), finding("same", "low"))
    new = _saved(tmp_path, "2", "same", finding("a", "high"), finding("same", "low"), finding("later", "medium"))
    found = {change.name: change for change in compare(old, new)}
    assert {name: change.verdict for name, change in found.items()} == {
        "a": "new attack version", "later": "new attack version", "same": "same",
    }  # fmt: skip
    assert found["a"].alarming
    assert not any(change.alarming for change in compare(new, old))
    other = _saved(tmp_path, "2", "other", finding("a", "high"), finding("same", "low"))
    assert {change.name: change.verdict for change in compare(old, other)}["a"] == "worse"  # the model changed too
    unfit = _saved(tmp_path, "1", "x", skipped=(Skipped("a", "t", "does not fit"),))
    assert {change.name: change.verdict for change in compare(unfit, other)}["a"] == "new"


@pytest.mark.parametrize(
    "text",
    [
        '{"findings": [{"name": "a", "title": "t", "severity": "awful"}]}', '{"findings": [{"name": "a"}]}',
        '{"findings": 3}', '{"findings": [], "versions": 3}', '{"findings": [], "skipped": [{}]}', "\x00",
    ],
    ids=["severity", "no title", "number", "versions", "skipped", "no JSON"],
)  # fmt: skip
def test_what_is_no_report_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="not a report"):
        compare(path, path)


def test_a_report_of_a_later_version_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    later = json.loads(report(finding("a", "low")).json())
    later.update(schema_version=99, unheard_of={"x": 1})
    path = tmp_path / "report.json"
    path.write_text(json.dumps(later))
    assert {change.name: change.verdict for change in compare(path, path)} == {"a": "same"}


def test_an_attack_that_the_second_audit_does_not_name_was_not_tried(tmp_path: Path) -> None:
    old = report(finding("a", "high")).save(tmp_path / "1.json")
    (change,) = compare(old, report(skipped=[]).save(tmp_path / "2.json"))
    assert (change.verdict, change.open) == ("not tried", True)
    assert "does not name" in change.why


def test_a_severity_of_a_later_version_is_no_reason_to_refuse_the_report(tmp_path: Path) -> None:
    known = report(finding("a", "low"), finding("b", "low"))
    later = json.loads(known.json())
    later["schema_version"] = 99
    later["findings"][0]["severity"] = "apocalyptic"
    path = tmp_path / "report.json"
    path.write_text(json.dumps(later))
    found = compare(known.save(tmp_path / "old.json"), path)
    assert {change.name: change.verdict for change in found} == {"a": "inconclusive", "b": "same"}


def test_every_field_of_the_schema_is_described() -> None:
    def described(node: dict[str, Any]) -> Iterator[tuple[str, bool]]:
        for name, field in node.get("properties", {}).items():
            yield name, "description" in field
            yield from described(field)
            yield from described(field.get("items", {}))

    whole = schema()
    assert [name for part in (whole, whole["$defs"]["finding"]) for name, said in described(part) if not said] == []
