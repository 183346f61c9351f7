"""Rows of a second file get the columns, units and class numbers of the first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from divulge.core.errors import InvalidInput
from divulge.datasets import load, provenance
from divulge.datasets.alignment import labels_of_model


def table(path: Path, header: str, *rows: str) -> str:
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


@pytest.fixture
def seen(tmp_path: Path) -> str:
    return table(tmp_path / "seen.csv", "age,colour,y", "30,red,low", "41,blue,high", "52,red,middle", "63,green,high")


def test_classes_that_the_second_file_lacks_do_not_shift_the_others(tmp_path: Path, seen: str) -> None:
    other = table(tmp_path / "other.csv", "age,colour,y", "35,red,middle", "46,blue,low", "57,green,low")
    known = provenance.data_of_model("", seen, unseen=other)
    assert known is not None
    assert known.unseen_labels is not None
    names = load(seen, test=0.0).classes
    assert [names[number] for number in known.unseen_labels.tolist()] == ["middle", "low", "low"]


def test_values_of_text_columns_find_their_own_column(tmp_path: Path, seen: str) -> None:
    other = table(tmp_path / "other.csv", "colour,age,y", "green,35,low", "violet,46,high")
    known = provenance.data_of_model("", seen, unseen=other)
    assert known is not None
    assert known.unseen is not None
    assert known.columns == ("age", "colour=blue", "colour=green", "colour=red")
    assert known.unseen.tolist() == [[35, 0, 1, 0], [46, 0, 0, 0]]


def test_a_column_that_is_missing_is_named(tmp_path: Path, seen: str) -> None:
    other = table(tmp_path / "other.csv", "colour,y", "green,low", "red,high")
    with pytest.raises(InvalidInput, match=r"other\.csv has no column 'age'"):
        provenance.data_of_model("", seen, unseen=other)


def test_a_text_column_that_is_missing_is_not_taken_for_absent_values(tmp_path: Path, seen: str) -> None:
    other = table(tmp_path / "other.csv", "age,y", "35,low", "46,high")
    with pytest.raises(InvalidInput, match=r"other\.csv has no column 'colour' of text"):
        provenance.data_of_model("", seen, unseen=other)
    more = table(tmp_path / "more.csv", "age,colour,height,y", "35,red,2,low", "46,blue,1,high")
    with pytest.raises(InvalidInput, match=r"more\.csv has a column 'height' of its own"):
        provenance.data_of_model("", seen, unseen=more)


def test_other_classes_leave_the_rows_without_labels(tmp_path: Path, seen: str) -> None:
    other = table(tmp_path / "other.csv", "age,colour,y", "35,red,unheard", "46,blue,low")
    known = provenance.data_of_model("", seen, unseen=other)
    assert known is not None
    assert known.unseen is not None
    assert known.unseen_labels is None


def test_few_whole_numbers_of_a_quantity_stay_quantities(tmp_path: Path) -> None:
    seen = table(tmp_path / "seen.csv", "x,y", *(f"{k},{10 * k}" for k in range(30)))
    other = table(tmp_path / "other.csv", "x,y", "1,20", "2,50", "3,70")
    known = provenance.data_of_model("", seen, unseen=other)
    assert known is not None
    assert known.unseen_labels is not None
    assert known.unseen_labels.tolist() == [20.0, 50.0, 70.0]


def test_whole_numbers_of_arrays_are_matched_by_value(tmp_path: Path) -> None:
    np.savez(tmp_path / "seen.npz", X=np.eye(4), y=np.array([0, 1, 2, 7]))
    np.savez(tmp_path / "other.npz", X=np.ones((2, 4)), y=np.array([7, 2]))
    known = provenance.data_of_model("", str(tmp_path / "seen.npz"), unseen=str(tmp_path / "other.npz"))
    assert known is not None
    assert known.unseen_labels is not None
    assert known.unseen_labels.tolist() == [3, 2]


def test_unseen_rows_get_the_units_of_a_model_that_was_trained_here(tmp_path: Path) -> None:
    source = table(tmp_path / "seen.csv", "x,y", "0,0", "10,1", "20,0", "40,1", "30,0", "5,1")
    selection = provenance.DataSelection(source, centred=True)
    selection.save(tmp_path, selection.dataset())
    mean = selection.dataset().train.X.mean(dim=0)
    low, high = selection.dataset().low, selection.dataset().high
    other = table(tmp_path / "other.csv", "x,y", "20,1", "80,0")
    known = provenance.data_of_model(tmp_path, unseen=other)
    assert known is not None
    assert known.unseen is not None
    expected = (torch.tensor([[20.0], [80.0]]) - low) / (torch.as_tensor(high) - torch.as_tensor(low)) - mean
    assert torch.allclose(known.unseen.float(), expected.float())


@pytest.mark.parametrize(
    ("names", "outputs", "named", "expected"),
    [
        (("1", "3", "8"), 10, (), [1, 3, 8]),  # a file in which some digits do not occur
        (("1", "2", "3"), 3, (), None),  # counted from one: the file's own order is the best guess
        (("1", "2"), 1, (), None),
        (("0", "1"), 1, (), [0, 1]),
        (("-1", "1"), 1, (), None),
        (("3", "5", "8"), 1, (), [3.0, 5.0, 8.0]),  # one output, three numbers: a quantity
        (("2", "3"), 3, ("1", "2", "3"), [1, 2]),
        (("cat", "dog"), 3, ("ant", "cat", "dog"), [1, 2]),
        (("cat", "dog"), 3, (), None),
        ((), 3, (), None),
    ],
)
def test_labels_of_a_file_are_those_of_the_model(
    names: tuple[str, ...], outputs: int, named: tuple[str, ...], expected: list[float] | None
) -> None:
    found = labels_of_model(names, outputs, named)
    assert (None if found is None else found.tolist()) == expected
