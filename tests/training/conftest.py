"""The target of the margin tests."""

from ..margin_targets import target

__all__ = ["target"]
