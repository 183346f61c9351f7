"""The list of the papers' figures, tables and theorems: whole, and the same on the page and in the command."""

from __future__ import annotations

import re
from pathlib import Path

from experiments.catalogue import BENCHMARKS, PAPERS
from experiments.papers.contents import ITEMS, PAGES, summary, table, write_pages

ROOT = Path(__file__).parents[2]
HIGHEST = {
    "Milli 2019": {"Figure": 7, "Theorem": 4},
    "Chen 2021": {"Algorithm": 4},
    "Jayaram 2020": {"Figure": 3, "Algorithm": 2},
    "Haim 2022": {"Figure": 21, "Table": 2},
    "Balle 2022": {"Figure": 24, "Algorithm": 2},
}
ROMAN = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"]


def numbers(paper: str, kind: str) -> set[int]:
    """The numbers of a kind that the items of a paper name, ranges and lists included."""
    found: set[int] = set()
    plural = {"Corollary": "Corollar(?:y|ies)"}.get(kind, f"{kind}s?")
    for one in (item for item in ITEMS if item.paper == paper):
        for match in re.finditer(rf"(?i)\b{plural} ([0-9 ,toand]+)", one.item):
            for first, last in re.findall(r"(\d+)(?: to (\d+))?", match.group(1)):
                found |= set(range(int(first), int(last or first) + 1))
    return found


def test_no_figure_table_or_theorem_is_absent():
    for paper, kinds in HIGHEST.items():
        for kind, highest in kinds.items():
            assert numbers(paper, kind) >= set(range(1, highest + 1)), (paper, kind)
    joint = ("Theorem", "Corollary", "Proposition")  # numbered together
    assert set().union(*(numbers("Balle 2022", kind) for kind in joint)) >= set(range(1, 9))
    balle = " ".join(item.item for item in ITEMS if item.paper == "Balle 2022")
    named = set(re.findall(r"\b[IVX]+\b", balle)) | set(ROMAN[4:8] if "Tables V to VIII" in balle else [])
    assert named >= set(ROMAN) - {"I"}  # Table I is the notation


def test_the_pages_are_the_list(tmp_path):
    results = ROOT / "docs" / "results"
    assert (results / "papers.md").read_text().endswith(table())
    for paper, name in PAGES.items():
        assert f"\n\n{summary(paper)}" in (results / name).read_text(), f"python -m experiments.papers.contents: {name}"
    for name in ("papers.md", *PAGES.values()):
        (tmp_path / name).write_text((results / name).read_text())
    write_pages(tmp_path)  # writing again changes nothing
    assert all((tmp_path / name).read_text() == (results / name).read_text() for name in PAGES.values())


def test_commands_name_experiments_that_exist():
    known = {one.name for one in (*PAPERS, *BENCHMARKS)}
    for item in ITEMS:
        match = re.match(r"(?:divulge reproduce|python -m experiments) ([a-z_-]+)", item.command)
        assert match is None or match.group(1) in known, item.command
        assert item.state != "not run" or not item.over, item
