"""What divulge brings along: known vulnerabilities of the locked packages, and the licence of every installed one.

    python .github/dependencies.py advisories --pip-audit PATH     # asks PyPI's advisory service through pip-audit
    python .github/dependencies.py licences --out licences.md      # reads what is installed here; needs no network

``advisories`` exits 1 for a known vulnerability and 2 where packages could not be checked: pip-audit alone reports
success when the service knows none of the packages. ``licences`` exits 1 where a package states no licence, or one that
does not let divulge be passed on under its own.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
REFUSED = re.compile(r"(?<!L)\bA?GPL|GNU (Affero )?General Public|non-?commercial|SSPL|proprietary", re.IGNORECASE)
"""Licences under which a program that needs the package could not be passed on under Apache-2.0."""


# -- advisories -------------------------------------------------------------------------------------------------------


def advisories(pip_audit: str) -> int:
    """Ask for known vulnerabilities of requirements.lock, print what there is, and return the exit code."""
    words = [pip_audit, "--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(
        [*words, "--requirement", str(ROOT / "requirements.lock")], capture_output=True, text=True, check=False
    )
    try:
        dependencies = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        print(f"NOT CHECKED: pip-audit reached no advisory service: {reason}")
        return 2
    code, lines = judged(dependencies)
    print("\n".join(lines))
    return code


def judged(dependencies: list[dict[str, Any]]) -> tuple[int, list[str]]:
    """The exit code and the lines for what pip-audit found."""
    skipped = [one["name"] for one in dependencies if "skip_reason" in one]
    checked = [one for one in dependencies if "skip_reason" not in one]
    found = [(one, advisory) for one in checked for advisory in one.get("vulns", [])]
    lines = [
        f"{one['name']} {one['version']}: {advisory['id']}, fixed in {', '.join(advisory['fix_versions']) or 'none'}"
        for one, advisory in found
    ]
    if not checked:
        lines.append(f"NOT CHECKED: the advisory service knew none of the {len(skipped)} packages; was it reached?")
        return 2, lines
    lines.append(f"{len(checked)} packages checked, {len(found)} known vulnerabilities.")
    if skipped:
        lines.append(f"NOT CHECKED: {len(skipped)} packages: {', '.join(skipped)}.")
    return (1 if found else 2 if skipped else 0), lines


# -- licences ---------------------------------------------------------------------------------------------------------


def licence_of(package: metadata.Distribution) -> str:
    """The licence that an installed package states, or an empty text."""
    fields = package.metadata
    expression = fields.get("License-Expression") or ""
    if expression.strip():
        return expression.strip()
    classified = (line.split(" :: ") for line in fields.get_all("Classifier") or ())
    named = [parts[-1] for parts in classified if parts[0] == "License" and parts[-1] != "OSI Approved"]
    if named:
        return " or ".join(dict.fromkeys(named))
    first = ((fields.get("License") or "").strip().splitlines() or [""])[0].strip()  # of a whole text it is the name
    return "" if first.upper() == "UNKNOWN" else first


def installed(names: Iterable[str]) -> list[tuple[str, str, str, str]]:
    """Name, version, licence and page of those of the packages that are installed here."""
    rows = []
    for name in names:
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        rows.append((package.metadata["Name"], package.version, licence_of(package), _page(package)))
    return sorted(rows, key=lambda row: row[0].lower())


def _page(package: metadata.Distribution) -> str:
    labelled = [line.split(",", 1)[-1].strip() for line in package.metadata.get_all("Project-URL") or ()]
    return (package.metadata.get("Home-page") or "").strip() or (labelled[0] if labelled else "")


def pinned() -> list[str]:
    """The packages of constraints.txt."""
    return [line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().split()]


def listing(rows: list[tuple[str, str, str, str]]) -> str:
    """The rows as a table in Markdown."""
    lines = ["| package | version | licence | page |", "|---|---|---|---|"]
    lines += ["| " + " | ".join((cell or "not stated").replace("|", "/") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def problems(rows: list[tuple[str, str, str, str]]) -> list[str]:
    """Packages without a licence, or with one that does not go with divulge's."""
    return [
        f"{name} {version}: {licence or 'states no licence'}"
        for name, version, licence, _ in rows
        if not licence or (REFUSED.search(licence) and " OR " not in licence and " or " not in licence)
    ]


def licences(out: Path | None) -> int:
    """Write or print the list of licences, and return the exit code."""
    rows = installed(pinned())
    if out is None:
        print(listing(rows))
    else:
        out.write_text(listing(rows))
        print(f"{len(rows)} of {len(pinned())} pinned packages are installed here; their licences are in {out}.")
    found = problems(rows)
    print("\n".join(["Look at these licences:", *found]) if found else "Every one states a licence that can be used.")
    return 1 if found else 0


def main(arguments: list[str]) -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("advisories").add_argument("--pip-audit", default="pip-audit", metavar="PATH")
    commands.add_parser("licences").add_argument("--out", type=Path)
    chosen = parser.parse_args(arguments)
    return advisories(chosen.pip_audit) if chosen.command == "advisories" else licences(chosen.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
