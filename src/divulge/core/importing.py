"""Whether a signal arrived during an import, where an exception would leave half a module behind."""

from __future__ import annotations

from types import FrameType


def importing(frame: FrameType | None) -> bool:
    """Whether an import is under way in this frame or in one that called it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
