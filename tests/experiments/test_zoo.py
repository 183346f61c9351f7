"""The zoo of other people's models: forty of them, and a table that counts what it shows."""

from __future__ import annotations

from experiments.benchmarks.zoo import table
from experiments.zoo.files import FILES
from experiments.zoo.libraries import LIBRARIES


def test_forty_models_and_files_are_in_it():
    assert len(FILES) + len(LIBRARIES) == 40
    assert not set(FILES) & set(LIBRARIES)
    assert all("==" in shipped.wheel for shipped in FILES.values())  # a version is pinned


def test_the_table_counts_answers_false_claims_and_tracebacks():
    row = {"happened": "answered", "finding": "a | b", "seconds": 3.2, "claims": 5, "wrong": 1, "faults": []}
    shown = table({"one": row, "two": {"happened": "refused", "sentence": "No."}, "three": {"happened": "traceback"}})
    assert "| one | answered | a / b | 3 | 5 | 1 |" in shown
    assert shown.splitlines()[-1] == "1 of 3 have an answer; 1 of 5 claims checked are false; 1 tracebacks."
