"""The repository's own promises: one version, tests on each Python that is named, forms that GitHub can read."""

from __future__ import annotations

import ast
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

import divulge

ROOT = Path(__file__).parents[1]
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


def test_the_version_has_one_source() -> None:
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()
    assert version("divulge") == divulge.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == divulge.__version__


def test_the_version_is_a_literal_so_that_a_build_does_not_import_the_package() -> None:
    tree = ast.parse((ROOT / "src/divulge/__init__.py").read_text())
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(name) for name in node.targets] == ["__version__"]
    ]
    assert [type(value) for value in values] == [ast.Constant]


def test_every_python_that_is_named_is_tested() -> None:
    named = re.findall(r'Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert [entry["python"] for entry in jobs["test"]["strategy"]["matrix"]["include"]] == named


def test_make_has_every_target_that_the_workflow_calls() -> None:
    called = set(re.findall(r"make (\w+)", (ROOT / ".github/workflows/ci.yml").read_text()))
    assert called <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize("path", [path for path in FORMS if path.name != "config.yml"], ids=lambda path: path.stem)
def test_an_issue_form_asks_for_something_and_gives_every_question_a_name(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    questions = [part for part in form["body"] if part["type"] != "markdown"]
    assert form["name"]
    assert form["description"]
    assert len({part["id"] for part in questions}) == len(questions)
    assert any(part.get("validations", {}).get("required") for part in questions)


def test_the_lock_holds_the_pinned_versions_by_hash() -> None:
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    locked = re.findall(r"^(\S+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)",
                        (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)  # fmt: skip
    assert len(locked) > 150
    assert "torch" not in {name for name, _, _ in locked}  # its CPU build comes from an index of its own
    assert {name: version for name, version, _ in locked if pinned.get(name) != version} == {}
