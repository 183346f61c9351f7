"""What is said about dependencies: unchecked is not the same as safe, and every one states a licence."""

from __future__ import annotations

import importlib.util
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("dependencies", ROOT / ".github/dependencies.py")
assert spec is not None
assert spec.loader is not None
dependencies = importlib.util.module_from_spec(spec)
spec.loader.exec_module(dependencies)

SAFE = {"name": "a", "version": "1", "vulns": []}
SKIPPED = {"name": "b", "skip_reason": "Dependency not found on PyPI and could not be audited: b (1)"}
VULNERABLE = {"name": "c", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        ([SAFE], 0, "1 packages checked, 0 known vulnerabilities."),
        ([SAFE, VULNERABLE], 1, "c 2: PYSEC-1, fixed in 2.1"),
        ([SAFE, SKIPPED], 2, "NOT CHECKED: 1 packages: b."),
        ([SKIPPED], 2, "NOT CHECKED: the advisory service knew none of the 1 packages"),
        ([], 2, "NOT CHECKED"),
        ([VULNERABLE, SKIPPED], 1, "NOT CHECKED: 1 packages: b."),
    ],
    ids=["safe", "vulnerable", "some unchecked", "none checked", "nothing", "vulnerable and unchecked"],
)
def test_what_could_not_be_checked_is_said_and_is_no_success(found, code, said):
    exit_code, lines = dependencies.judged(found)
    assert exit_code == code
    assert any(said in line for line in lines)


@pytest.mark.parametrize("printed", ["", "not json", "{}", "[]"], ids=["nothing", "text", "object", "list"])
def test_a_service_that_cannot_be_reached_is_said(tmp_path, capsys, printed):
    fake = tmp_path / "pip-audit"
    fake.write_text(f"#!{sys.executable}\nimport sys\nprint({printed!r})\nsys.exit('ConnectionError: no route')\n")
    fake.chmod(0o755)
    assert dependencies.main(["advisories", "--pip-audit", str(fake)]) == 2
    assert capsys.readouterr().out.startswith("NOT CHECKED: pip-audit reached no advisory service: ConnectionError")


@pytest.mark.slow
def test_every_installed_dependency_states_a_licence_that_can_be_used(tmp_path):
    rows = dependencies.installed(dependencies.pinned())
    assert len(rows) > 100
    assert dependencies.problems(rows) == []
    assert dependencies.main(["licences", "--out", str(tmp_path / "licences.md")]) == 0
    assert len((tmp_path / "licences.md").read_text().splitlines()) == len(rows) + 2


class Package(metadata.Distribution):
    """An installed package with these lines in its metadata."""

    def __init__(self, *lines: str) -> None:
        self.lines = lines

    def read_text(self, filename):
        return (
            "\n".join(("Metadata-Version: 2.4", "Name: p", "Version: 1", *self.lines)) if "META" in filename else None
        )

    def locate_file(self, path):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("lines", "licence", "usable"),
    [
        (["License-Expression: MIT OR GPL-3.0-only"], "MIT OR GPL-3.0-only", True),
        (["License-Expression: AGPL-3.0-or-later"], "AGPL-3.0-or-later", False),
        (["License: UNKNOWN", "Classifier: License :: OSI Approved :: BSD License"], "BSD License", True),
        (["Classifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)"],
         "GNU General Public License v3 (GPLv3)", False),
        (["License: LGPL-3.0"], "LGPL-3.0", True),
        (["License: UNKNOWN"], "", False),
        ([], "", False),
    ],
    ids=["choice", "agpl", "classifier", "gpl classifier", "lgpl", "unknown", "nothing"],
)  # fmt: skip
def test_licences_are_read_from_whichever_field_states_them(lines, licence, usable):
    package = Package(*lines)
    assert dependencies.licence_of(package) == licence
    assert (dependencies.problems([("p", "1", licence, "")]) == []) is usable
