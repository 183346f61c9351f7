"""Small targets on real digits, and one thread for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ..margin_targets import target

__all__ = ["target"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """These networks are too small for threads to help."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
