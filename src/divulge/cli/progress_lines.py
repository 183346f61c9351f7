"""Where a command stands, in lines of at most 80 columns: what is done, what runs, and until when.

A stage that has ended is replaced by the next one, and a stage whose work is done shows no moving spinner.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from divulge.core.progress import WHOLE, Step, listening
from divulge.core.text import clean

WIDTH = 80
BAR = 16
SPINNER = "|/-\\"
ROUNDS = 4.0
"""Turns of the spinner a second."""


@dataclass
class Lines:
    """The steps that were reported last: that of the whole run, and that of the stage which runs now."""

    whole: Step | None = None
    stage: Step | None = None
    begun: float = field(default_factory=time.monotonic)

    def hear(self, step: Step) -> None:
        """Take note of a step. A step of the whole run ends the stage before it."""
        if step.stage == WHOLE:
            self.whole, self.stage = step, None
            return
        if self.stage is None or self.stage.stage != step.stage:
            self.begun = time.monotonic()
        self.stage = step

    def shown(self, width: int = WIDTH) -> list[str]:
        """The lines, none of them longer than ``width`` columns."""
        width = min(width, WIDTH)
        turn = SPINNER[int(time.monotonic() * ROUNDS) % len(SPINNER)]
        lines = []
        if self.whole is not None:
            facts = self.whole.facts
            lines.append(
                f"{turn} {self.whole.done:g} of {self.whole.total:g} attacks done, until {facts.get('until', '?')}"
            )
            lines.append(f"  now: {facts.get('now', '')}")
        if self.stage is not None:
            ended = self.stage.total is not None and (self.stage.done or 0) >= self.stage.total
            lines.append(f"{' ' if ended else turn} {_stage(self.stage, time.monotonic() - self.begun)}")
        return [_cut(clean(line), width) for line in lines]


def _stage(step: Step, seconds: float) -> str:
    facts = "  ".join(f"{name} {value}" for name, value in step.facts.items())
    if step.total is None or step.done is None:
        return f"{step.stage}  {facts}  {seconds:.0f} s"
    share = min(1.0, max(0.0, step.done / step.total if step.total else 1.0))
    full = round(BAR * share)
    bar = "#" * full + "." * (BAR - full)
    return f"{step.stage}  [{bar}] {step.done:g}/{step.total:g}  {facts}  {seconds:.0f} s"


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 3] + "..."


@contextmanager
def progress_lines() -> Iterator[None]:
    """Show where the computation inside the block stands, on the terminal of standard error."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    lines = Lines()

    def page() -> Text:
        return Text("\n".join(lines.shown(console.width - 1)), no_wrap=True, overflow="crop")

    with Live(get_renderable=page, console=console, transient=True, refresh_per_second=ROUNDS), listening(lines.hear):
        yield
