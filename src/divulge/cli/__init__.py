"""``divulge`` on the command line: a thin shell over the library, one file a command.

Nothing is imported here that takes time: ``main`` loads the commands once it answers Ctrl-C.
"""

from __future__ import annotations

from typing import Any

from divulge.cli.interrupts import interruptible


def main() -> None:
    """The console entry point."""
    with interruptible():
        from divulge.cli.application import app

        app()


def __getattr__(name: str) -> Any:
    if name == "app":
        from divulge.cli.application import app

        return app
    raise AttributeError(f"module 'divulge.cli' has no attribute {name!r}")
