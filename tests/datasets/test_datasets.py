"""Data comes in by name or by path, is checked at the door, and can be cut the way the papers cut it."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from divulge import datasets
from divulge.core.errors import InvalidInput, MissingData
from divulge.core.progress import listening
from divulge.datasets import image_sets
from divulge.datasets.download import CIFAR_ARCHIVE

# -- small sets in the published formats ------------------------------------------------------------------------------


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape) + values.tobytes()


def small_mnist() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    files = {}
    for prefix, n in (("train", 30), ("t10k", 10)):
        files[f"{prefix}-images-idx3-ubyte"] = idx(rng.integers(0, 256, (n, 28, 28), dtype=np.uint8))
        files[f"{prefix}-labels-idx1-ubyte"] = idx((np.arange(n) % 10).astype(np.uint8))
    return files


def small_cifar() -> dict[str, bytes]:
    rng = np.random.default_rng(1)
    files = {}
    for name in image_sets.SOURCES["cifar10"].files:
        records = rng.integers(0, 256, (10, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(10)
        files[name] = records.tobytes()
    return files


SMALL = {"mnist": small_mnist(), "fashion-mnist": small_mnist(), "cifar10": small_cifar()}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, and checksums of the small sets in place of the real ones."""
    for name, files in SMALL.items():
        sums = {file: hashlib.md5(content).hexdigest() for file, content in files.items()}
        source = image_sets.SOURCES[name]
        small = image_sets.Source(source.title, sums, source.folders, source.classes)
        monkeypatch.setitem(image_sets.SOURCES, name, small)
    monkeypatch.setenv("DIVULGE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def write(folder: Path, files: dict[str, bytes], *, packed: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)


# -- named sets -------------------------------------------------------------------------------------------------------


def test_digits_are_bundled_and_cut_the_same_way_every_time() -> None:
    data = datasets.load("digits")
    X, y = data.train
    assert X.shape == (1438, 64)
    assert data.test.X.shape == (359, 64)
    assert (X.dtype, y.dtype) == (torch.float32, torch.int64)
    assert (float(X.min()), float(X.max())) == (0.0, 1.0)
    assert data.shape == (1, 8, 8)
    assert data.classes == tuple("0123456789")
    assert torch.equal(datasets.load("digits").rows, data.rows)
    assert len(data.everything.y) == 1797
    from sklearn.datasets import load_digits

    assert torch.equal(X, torch.from_numpy(load_digits().data).float()[data.rows] / 16)
    assert "1438 training and 359 test rows" in repr(data)


@pytest.mark.parametrize(("name", "width", "classes"), [("breast-cancer", 30, 2), ("iris", 4, 3), ("diabetes", 10, 0)])
def test_bundled_tables_have_names_and_come_back_in_their_units(name: str, width: int, classes: int) -> None:
    data = datasets.load(name)
    assert data.shape == (width,)
    assert len(data.columns) == width
    assert len(data.classes) == classes
    everything = data.everything
    assert float(everything.X.min()) == 0.0
    assert float(everything.X.max()) == 1.0
    assert everything.y.is_floating_point() == (classes == 0)
    original = data.stored_train.X
    assert torch.allclose(data.restore(data.train.X.double()), original, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "."])
def test_idx_files_plain_or_packed(root: Path, packed: bool, folder: str) -> None:
    write(root / folder, SMALL["mnist"], packed=packed)
    data = datasets.load("mnist")
    assert data.shape == (1, 28, 28)
    assert data.train.X.shape == (30, 784)
    assert data.test.y.tolist() == list(range(10))
    pixels = np.frombuffer(SMALL["mnist"]["train-images-idx3-ubyte"], np.uint8, offset=16).reshape(30, 784)
    assert torch.equal(data.train.X, torch.from_numpy(pixels.astype(np.float32) / 255))


def test_cifar_batches(root: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "cifar10" / "cifar-10-batches-bin", SMALL["cifar10"])
    data = datasets.load("cifar10", tmp_path / "elsewhere")
    assert data.shape == (3, 32, 32)
    assert data.train.X.shape == (50, 3072)
    assert data.classes[3] == "cat"
    record = np.frombuffer(SMALL["cifar10"]["data_batch_2.bin"], np.uint8).reshape(10, 3073)[4]
    assert torch.equal(data.train.X[14], torch.from_numpy(record[1:].astype(np.float32) / 255))
    assert data.train.y[14] == 4


def test_a_missing_set_says_which_file_where_and_how_to_get_it(root: Path) -> None:
    with pytest.raises(MissingData) as refused:
        datasets.load("fashion-mnist")
    told = str(refused.value)
    assert "train-images-idx3-ubyte (or train-images-idx3-ubyte.gz)" in told
    assert str(root / "fashion-mnist") in told
    assert "divulge data fashion-mnist --download" in told


def test_damaged_files_are_refused(root: Path) -> None:
    files = dict(SMALL["mnist"])
    write(root / "mnist", files)
    path = root / "mnist" / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(InvalidInput, match="is damaged: its content has MD5"):
        datasets.load("mnist")
    assert len(datasets.load("mnist", verify=False).train.y) == 30
    for content, told in [
        (files["train-labels-idx1-ubyte"][:-3], "it was cut short"),
        (b"GIF89a", "is not an IDX file"),
        (idx(np.zeros(7, np.uint8)), "30 pictures but train-labels 7 labels"),
    ]:
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match=told):
            datasets.load("mnist", verify=False)
    path.unlink()
    (root / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"1234")[:-4])
    with pytest.raises(InvalidInput, match="not a whole gzip file"):
        datasets.load("mnist")


@pytest.mark.parametrize(("content", "told"), [(b"123", "not whole records"), (b"\x63" * 3073, "has a label 99")])
def test_files_that_are_no_cifar_batch_are_refused(root: Path, content: bytes, told: str) -> None:
    write(root / "cifar10", {**SMALL["cifar10"], "data_batch_1.bin": content})
    with pytest.raises(InvalidInput, match=told):
        datasets.load("cifar10", verify=False)


@pytest.mark.real_data
@pytest.mark.parametrize(("name", "n", "d"), [("mnist", 60_000, 784), ("fashion-mnist", 60_000, 784)])
def test_the_real_sets_pass_their_checksums(name: str, n: int, d: int) -> None:
    try:
        data = datasets.load(name)
    except MissingData as missing:
        pytest.skip(str(missing))
    assert data.stored_train.X.shape == (n, d)
    assert sorted(set(data.stored_test.y.tolist())) == list(range(10))


# -- download ---------------------------------------------------------------------------------------------------------


class Quiet(SimpleHTTPRequestHandler):
    asked: list[str]  # set on the class a test makes

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def home(tmp_path: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """A local web server, the folder it serves, and what it was asked for."""
    folder = tmp_path / "home"
    folder.mkdir()
    handler = type("Handler", (Quiet,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}", handler.asked
    server.shutdown()
    server.server_close()


def test_download_fetches_checks_and_keeps(root: Path, home: tuple[Path, str, list[str]]) -> None:
    folder, url, asked = home
    write(folder, SMALL["mnist"], packed=True)
    steps = []
    with listening(steps.append):
        assert datasets.download("mnist", home=url) == root / "mnist"
    assert any(step.stage.startswith("downloading train-images") and step.done == step.total for step in steps)
    assert len(datasets.load("mnist").train.y) == 30
    assert len(asked) == 4
    (root / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"half")
    datasets.download("mnist", home=url)  # fetches only what is not whole
    assert asked[4:] == ["/t10k-labels-idx1-ubyte.gz"]
    assert not list((root / "mnist").glob(".*"))


def test_download_of_the_cifar_archive_writes_the_wanted_files_only(
    root: Path, tmp_path: Path, home: tuple[Path, str, list[str]]
) -> None:
    folder, url, _ = home
    with tarfile.open(folder / CIFAR_ARCHIVE, "w:gz") as tar:
        for name, content in {"../../evil.txt": b"x", **{f"a/b/{k}": v for k, v in SMALL["cifar10"].items()}}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    datasets.download("cifar10", home=url)
    assert len(datasets.load("cifar10").train.y) == 50
    assert not list(tmp_path.rglob("evil.txt"))


def test_downloads_that_fail_say_why(root: Path, home: tuple[Path, str, list[str]]) -> None:
    folder, url, asked = home
    with pytest.raises(datasets.DownloadFailed, match="answered 404"):
        datasets.download("mnist", home=url, tries=2)
    assert len(asked) == 2
    with pytest.raises(datasets.DownloadFailed, match="could not be fetched"):
        datasets.download("mnist", home="http://127.0.0.1:9", tries=1)
    write(folder, {name: content + b"!" for name, content in SMALL["mnist"].items()}, packed=True)
    with pytest.raises(datasets.DownloadFailed, match="arrived damaged or is another version"):
        datasets.download("mnist", home=url)
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"<html>")
    with pytest.raises(datasets.DownloadFailed, match="arrived damaged"):
        datasets.download("mnist", home=url)
    (folder / CIFAR_ARCHIVE).write_bytes(b"<html>")
    with pytest.raises(datasets.DownloadFailed, match="arrived damaged"):
        datasets.download("cifar10", home=url)
    tarfile.open(folder / CIFAR_ARCHIVE, "w:gz").close()
    with pytest.raises(datasets.DownloadFailed, match=r"does not hold data_batch_1\.bin"):
        datasets.download("cifar10", home=url)
    with pytest.raises(InvalidInput, match="nothing to download for 'digits'"):
        datasets.download("digits")
    assert not list(root.rglob("*ubyte"))


# -- cutting ----------------------------------------------------------------------------------------------------------


def test_subsets_are_seeded_ordered_and_say_their_rows() -> None:
    data = datasets.load("digits")
    small = data.subset(50, seed=3)
    assert len(small.train.y) == 50
    assert torch.equal(small.rows, data.subset(50, seed=3).rows)
    assert not torch.equal(small.rows, data.subset(50, seed=4).rows)
    place = {int(row): index for index, row in enumerate(data.rows)}
    assert torch.equal(small.train.X, data.train.X[[place[int(row)] for row in small.rows]])
    assert small.rows.tolist() == sorted(small.rows.tolist())
    balanced = data.subset(7, per_class=True)
    assert torch.bincount(balanced.train.y).tolist() == [7] * 10
    assert set(balanced.subset(20).rows.tolist()) <= set(balanced.rows.tolist())


def test_splits_are_disjoint() -> None:
    X = torch.arange(100.0)[:, None]
    parts = datasets.split((X, torch.arange(100)), 50, 30, 20, seed=1)
    assert [len(part.y) for part in parts] == [50, 30, 20]
    assert sorted(torch.cat([part.y for part in parts]).tolist()) == list(range(100))
    assert all(torch.equal(part.X[:, 0].long(), part.y) for part in parts)


def test_two_classes(root: Path) -> None:
    data = datasets.load("digits")
    odd = datasets.binary(data)
    assert torch.equal(odd.train.y, data.train.y % 2)
    assert odd.classes == ("0/2/4/6/8", "1/3/5/7/9")
    zero = data.binary(["0"])
    assert torch.equal(zero.train.y, (data.train.y == 0).long())
    assert torch.equal(data.binary([0]).test.y, zero.test.y)
    write(root / "cifar10", SMALL["cifar10"])
    animals = datasets.load("cifar10").binary()
    assert animals.test.y.tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 0, 0]
    assert torch.equal(datasets.load("breast-cancer").binary().train.y, datasets.load("breast-cancer").train.y)


@pytest.mark.parametrize(
    ("do", "told"),
    [
        (lambda data: data.subset(0), "at least one row"),
        (lambda data: data.subset(10_000), "there are 120"),
        (lambda data: data.subset(60, per_class=True), "60 rows of each class"),
        (lambda data: data.binary(), "Say which classes of iris are positive"),
        (lambda data: data.binary(["rose"]), "has no class 'rose'"),
        (lambda data: data.binary([]), "Some classes must be positive"),
        (lambda data: datasets.split(data.train, 100, 50), "cannot be cut from 120 rows"),
        (lambda _: datasets.load("diabetes").binary(), "a quantity, not a class"),
        (lambda _: datasets.load("diabetes").subset(3, per_class=True), "no classes to choose rows from"),
        (lambda _: datasets.load("imagenet"), "no data set 'imagenet'; choose one of digits"),
        (lambda _: datasets.load("digits.csv"), "no file or folder .*digits.csv"),
        (lambda _: datasets.load("x.csv", test=1.0), "share of rows held out"),
    ],
)
def test_cuts_that_make_no_sense_are_refused(do, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        do(datasets.load("iris"))
