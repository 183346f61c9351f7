"""The zoo of other people's models: forty of them, and a table that counts what it shows."""

from __future__ import annotations

import numpy as np
from experiments.benchmarks.zoo import table
from experiments.claims.recording import _given
from experiments.claims.subject import Rows, Table
from experiments.zoo.files import FILES
from experiments.zoo.libraries import LIBRARIES


def test_forty_models_and_files_are_in_it():
    assert len(FILES) + len(LIBRARIES) == 40
    assert not set(FILES) & set(LIBRARIES)
    assert all("==" in shipped.wheel for shipped in FILES.values())  # a version is pinned


def test_the_table_counts_answers_false_claims_and_tracebacks():
    row = {"happened": "answered", "finding": "a | b", "seconds": 3.2, "claims": 5, "wrong": 1, "faults": [],
           "verdict": "high"}  # fmt: skip
    shown = table({"one": row, "two": {"happened": "refused", "sentence": "No."}, "three": {"happened": "traceback"}})
    assert "| one | answered | high | a / b | 3 | 5 | 1 |" in shown
    assert shown.splitlines()[-1] == "1 of 3 have an answer; 1 of 5 claims checked are false; 1 tracebacks."


def test_files_of_others_are_given_inputs_without_labels_and_no_training_data():
    rows = Rows(np.zeros((4, 2)), np.zeros(4))
    assert list(_given(Table(None, rows, rows))) == ["unseen"]
    assert _given(Table(None, rows, rows))["unseen"] is rows.X
    assert list(_given(Table(rows, rows, rows))) == ["training_data", "unseen"]
