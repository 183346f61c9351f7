"""Every example in a docstring runs, and prints what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
import torch

import divulge

ROOT = Path(divulge.__file__).parent
MODULES = sorted(
    ".".join(("divulge", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # an example that writes a file writes it there
    module = importlib.import_module(name)
    threads = torch.get_num_threads()
    try:
        found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    finally:
        torch.set_num_threads(threads)
    assert found.attempted > 0
    assert found.failed == 0
