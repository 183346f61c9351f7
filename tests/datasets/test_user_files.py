"""The user's own data: tables, arrays and folders of pictures; and which rows a model was trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from divulge import datasets
from divulge.core.errors import InvalidInput, NonFiniteInput
from divulge.datasets import provenance
from divulge.datasets.provenance import DataSelection

# -- the user's own ---------------------------------------------------------------------------------------------------

TABLE = "age,colour,income\n20,red,low\n40,blue,high\n30,red,low\n60,green,high\n50,blue,high\n"


def test_a_csv_table(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(TABLE)
    data = datasets.load(tmp_path / "people.csv", target="income")
    assert data.columns == ("age", "colour=blue", "colour=green", "colour=red")
    assert data.classes == ("high", "low")
    assert (len(data.train.y), len(data.test.y)) == (4, 1)
    assert sorted(data.restore(data.everything.X)[:, 0].round().tolist()) == [20, 30, 40, 50, 60]
    by_age = datasets.load(str(tmp_path / "people.csv"), target="age", test=0.0)
    assert by_age.classes == ("20", "30", "40", "50", "60")  # whole numbers with few values are classes
    assert len(by_age.test.y) == 0


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"age": [20, 40, 30], "colour": ["red", "blue", "red"], "y": [1.5, 2.25, 3.0]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    data = datasets.load(tmp_path / "t.parquet", test=0.0)  # a column called y is the target
    assert data.columns == ("age", "colour=blue", "colour=red")
    assert data.classes == ()
    assert data.train.y.tolist() == [1.5, 2.25, 3.0]
    assert data.train.X[:, 0].tolist() == [0.0, 1.0, 0.5]
    columns["colour"][1] = None
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    with pytest.raises(NonFiniteInput, match=r"'colour' of t\.parquet has 1 missing"):
        datasets.load(tmp_path / "t.parquet")
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InvalidInput, match="not a readable Parquet file"):
        datasets.load(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("content", "target", "told"),
    [
        ("", "y", "is empty"),
        ("\n\n", "y", "is empty"),
        ("a,y\n", "y", "a header but no rows"),
        ("a,b\n1,2\n", None, "Say which column is the target; t.csv has a, b"),
        ("a,b\n1,2\n", "c", "There is no column 'c'; t.csv has a, b"),
        ("a,y\n1,2\n,3\nnan,4\n", "y", "Column 'a' of t.csv has 2 missing or infinite values, the first in row 2"),
        ("a,y\ninf,2\n", "y", "Column 'a' of t.csv has 1 missing"),
        ("a,y\n1,2\n1,2,3\n", "y", "Row 2 of .* has 3 values where the header has 2"),
        ("a,a\n1,2\n", "a", "two columns called 'a'"),
        ("y\n1\n", "y", "no column besides the target"),
        ("a,y\n" + "".join(f"name{i},1\n" for i in range(30)), "y", "text with 30 different values"),
    ],
)
def test_tables_that_do_not_do_are_refused(tmp_path: Path, content: str, target: str | None, told: str) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(InvalidInput, match=told):
        datasets.load(tmp_path / "t.csv", target=target)


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a,y\n\xff\xfe,1\n")
    with pytest.raises(InvalidInput, match="not a readable CSV"):
        datasets.load(tmp_path / "t.csv")
    (tmp_path / "t.xls").write_bytes(b"x")
    with pytest.raises(InvalidInput, match=r"not a data file that divulge reads: \.csv, \.npz, \.parquet"):
        datasets.load(tmp_path / "t.xls")


def test_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (10, 6, 5, 3), dtype=np.uint8)
    np.savez(tmp_path / "p.npz", X=pixels, y=np.arange(10) % 2)
    data = datasets.load(tmp_path / "p.npz", test=0.0)
    assert data.shape == (3, 6, 5)
    expected = torch.from_numpy(pixels.transpose(0, 3, 1, 2).reshape(10, -1).astype(np.float32) / 255)
    assert torch.equal(data.train.X, expected)
    np.savez(tmp_path / "q.npz", x_train=rng.normal(size=(6, 4)), y_train=np.array(list("abcabc")),
             x_test=rng.normal(size=(2, 4)), y_test=np.array(["a", "b"]))  # fmt: skip
    named = datasets.load(tmp_path / "q.npz")
    assert named.classes == ("a", "b", "c")
    assert (len(named.train.y), named.test.y.tolist()) == (6, [0, 1])
    assert (float(named.everything.X.min()), float(named.everything.X.max())) == (0.0, 1.0)
    np.savez(tmp_path / "g.npz", X=rng.random((4, 3, 3)), y=rng.random(4))
    grey = datasets.load(tmp_path / "g.npz")
    assert grey.shape == (1, 3, 3)
    assert (grey.low, grey.high) == (0.0, 1.0)  # in [0, 1] already: left as it is


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"a": np.zeros(3)}, "must hold arrays X and y"),
        ({"X": np.zeros((3, 2)), "y": np.zeros(2)}, "as many rows"),
        ({"X": np.zeros((0, 2)), "y": np.zeros(0)}, "at least one"),
        ({"X": np.full((3, 2), np.nan), "y": np.zeros(3)}, "finite numbers only"),
        ({"X": np.array([[b"a"], [b"b"]]), "y": np.zeros(2)}, "finite numbers only"),
        ({"X": np.array([[{}], [{}]], dtype=object), "y": np.zeros(2)}, "not a readable NPZ file of plain arrays"),
    ],
)
def test_arrays_that_do_not_do_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], told: str) -> None:
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(InvalidInput, match=told):
        datasets.load(tmp_path / "t.npz")


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    values = {}
    for kind in ("cat", "dog"):
        (tmp_path / "pets" / kind).mkdir(parents=True)
        for number in range(3):
            pixels = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
            values[kind, number] = pixels
            Image.fromarray(pixels).save(tmp_path / "pets" / kind / f"{number}.png")
    (tmp_path / "pets" / "notes").mkdir()
    data = datasets.load(str(tmp_path / "pets") + "/", test=0.0)
    assert data.classes == ("cat", "dog")
    assert data.shape == (3, 4, 5)
    assert data.train.y.tolist() == [0, 0, 0, 1, 1, 1]
    expected = values["dog", 1].transpose(2, 0, 1).reshape(-1).astype(np.float32) / 255
    assert torch.equal(data.train.X[4], torch.from_numpy(expected))
    one = datasets.load(tmp_path / "pets" / "cat", size=(8, 6), test=0.0)
    assert (one.shape, one.classes) == ((3, 8, 6), ("cat",))
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(tmp_path / "pets" / "cat" / "grey.png")
    with pytest.raises(InvalidInput, match=r"grey\.png has shape \(1, 4, 5\) and 0\.png \(3, 4, 5\)|pass size="):
        datasets.load(tmp_path / "pets")
    (tmp_path / "pets" / "cat" / "grey.png").write_bytes(b"no picture")
    with pytest.raises(InvalidInput, match=r"grey\.png is not a readable picture"):
        datasets.load(tmp_path / "pets")
    with pytest.raises(InvalidInput, match="holds no pictures"):
        datasets.load(tmp_path / "pets" / "notes")


# -- which rows were used ---------------------------------------------------------------------------------------------


def test_recorded_rows_come_back_bit_for_bit(tmp_path: Path) -> None:
    choice = DataSelection(data="digits", binary=True, rows=20, per_class=True, subset_seed=2, centred=True)
    dataset = choice.dataset()
    train, _ = choice.parts(dataset)
    choice.save(tmp_path, dataset)
    again = datasets.training_rows(tmp_path)
    assert torch.equal(again.X, train.X)
    assert torch.equal(again.y, train.y)
    assert torch.allclose(train.X.mean(dim=0), torch.zeros(64), atol=1e-6)


def test_changed_data_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "people.csv").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    choice = DataSelection(data="people.csv", target="income")
    choice.save(tmp_path, choice.dataset())
    monkeypatch.chdir("/")  # the file is found again from anywhere
    datasets.training_rows(tmp_path)
    (tmp_path / "people.csv").write_text(TABLE.replace("20", "21"))
    with pytest.raises(InvalidInput, match="no longer what the model"):
        datasets.training_rows(tmp_path)
    (tmp_path / "data.json").write_text("{}")
    with pytest.raises(InvalidInput, match="does not say which rows"):
        datasets.training_rows(tmp_path)
    (tmp_path / "data.json").unlink()
    with pytest.raises(InvalidInput, match="is not there"):
        datasets.training_rows(tmp_path)


@pytest.mark.slow
def test_the_users_own_table_is_what_it_is_and_the_model_saw_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(TABLE)
    raw = provenance.data_of_model(tmp_path / "model.onnx", str(tmp_path / "people.csv"), target="age")
    assert raw is not None
    stored = datasets.load(tmp_path / "people.csv", target="age", test=0.0)
    assert len(raw.train.y) == len(stored.train.y)
    assert raw.unseen is None
    torch.testing.assert_close(raw.train.X.float(), stored.restore(stored.train.X))
    control = provenance.data_of_model(
        tmp_path, str(tmp_path / "people.csv"), target="age", unseen=str(tmp_path / "people.csv")
    )
    assert control is not None
    assert torch.equal(control.unseen, raw.train.X)
    assert provenance.data_of_model(tmp_path) is None
    named = provenance.data_of_model("anything", "iris")
    assert named is not None
    assert torch.equal(named.train.X, datasets.load("iris").train.X)
    assert torch.equal(named.unseen_labels, datasets.load("iris").test.y)


def test_a_model_of_divulge_is_known_by_its_record_whichever_way_its_data_is_named(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(TABLE)
    choice = DataSelection(data=str(tmp_path / "people.csv"), target="income", centred=True)
    choice.save(tmp_path / "model", choice.dataset())
    trained = datasets.training_rows(tmp_path / "model")
    ways = (("model", None), ("model", "people.csv"), ("other", "model"))
    for model, data in ways:
        told = provenance.data_of_model(tmp_path / model, data and str(tmp_path / data), target="income")
        assert told is not None
        assert torch.equal(told.train.X, trained.X)
        assert told.mean is not None
