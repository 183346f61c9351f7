"""Files are written whole or not at all, and digests tell contents apart."""

from __future__ import annotations

import hashlib
import json
import os
import stat

import numpy as np
import pytest
import torch

from divulge.core.storage import digest, replacing, write, write_arrays, write_json, write_tensors


def test_what_is_written_is_there_and_nothing_else_is(tmp_path):
    path = write(tmp_path / "new" / "folder" / "note.txt", "é\n")
    assert path.read_bytes() == "é\n".encode()
    assert os.listdir(path.parent) == ["note.txt"]


def test_a_block_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    path = write(tmp_path / "note.txt", "old")
    with pytest.raises(FileNotFoundError), replacing(path) as part:
        part.with_name("never there").read_text()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["note.txt"]


def test_readers_see_the_old_content_until_the_new_is_complete(tmp_path):
    path = write(tmp_path / "table.npz", b"old")
    with replacing(path) as part:
        part.write_bytes(b"new")
        assert path.read_bytes() == b"old"
        assert part.parent == path.parent
        assert part.suffix == ".npz"
    assert path.read_bytes() == b"new"


def test_a_file_is_as_readable_as_any_other(tmp_path):
    (tmp_path / "usual").write_text("")
    written = write(tmp_path / "ours", "")
    assert stat.S_IMODE(written.stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


def test_a_symbolic_link_is_followed(tmp_path):
    real = write(tmp_path / "real.txt", "old")
    (tmp_path / "link.txt").symlink_to(real)
    write(tmp_path / "link.txt", "new")
    assert real.read_text() == "new"
    assert (tmp_path / "link.txt").is_symlink()


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(OSError) as caught:
        write("/proc/note.txt", "no file can be made here")
    assert caught.value.filename == "/proc/note.txt"


def test_json_on_disk_is_strict(tmp_path):
    path = write_json(tmp_path / "facts.json", {"gap": float("inf"), "rank": np.int64(3)})
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {"gap": None, "rank": 3}


def test_tensors_and_arrays_come_back(tmp_path):
    from safetensors.torch import load_file

    weights = torch.arange(6.0).reshape(2, 3)
    kept = load_file(write_tensors(tmp_path / "a.safetensors", {"W": weights, "V": weights.T, "same": weights}))
    assert torch.equal(kept["W"], weights)
    assert torch.equal(kept["V"], weights.T)
    with np.load(write_arrays(tmp_path / "a.npz", {"W": weights.numpy()})) as arrays:
        assert np.array_equal(arrays["W"], weights.numpy())


def test_a_digest_is_sha256_of_the_parts_in_their_order():
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert digest("abc", rows, None) == hashlib.sha256(b"abc" + rows.tobytes() + b"none").hexdigest()
    assert digest(torch.from_numpy(rows)) == digest(rows)
    assert digest(rows.T) == digest(np.ascontiguousarray(rows.T)) != digest(rows)
    assert digest(torch.ones(2, dtype=torch.bfloat16)) != digest(torch.ones(2))
