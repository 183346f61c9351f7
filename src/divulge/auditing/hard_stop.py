"""A stop for code that does not poll: an alarm of the operating system, which raises between two Python instructions.

Attacks poll a deadline at every query and progress report. Computations of other libraries do not, and some steps of
our own are long. The alarm needs the main thread and a system that has it; elsewhere the polls are all there is. It
cannot interrupt a single call into compiled code, and is raised when that call returns. It waits for the end of an
import: a module that is imported in part stays broken for the rest of the process. Python drops what is raised in the
callback of a weak reference or in a destructor; the alarm is then set again at once. Where it interrupts the end of a
``torch.no_grad`` block, gradients would stay off; they are set back. An alarm that rings before the block has begun, or
after its end, raises nothing: outside the block nobody would catch it. Compiled code may turn what the alarm raises
into an error of its own (NumPy's comparison of structured arrays does); whatever is raised after an alarm is its work.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Literal

import torch

from divulge.auditing.probes.probe import TimeUp, too_short
from divulge.core.importing import importing

AGAIN = 3.0
"""Seconds until the next alarm, if an attack catches the first and goes on."""
SOON = 0.05
"""Seconds until the next alarm, if a module is being imported or Python dropped the first."""


@contextmanager
def hard_stop(seconds: float, *, given: float) -> Iterator[None]:
    """Raise :class:`TimeUp` inside the block after these seconds; the sentence names the time that was ``given``."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    if signal.getitimer(signal.ITIMER_REAL)[0] > 0:  # somebody else's alarm is running
        yield
        return

    stage: Literal["starting", "inside", "over"] = "starting"
    raised = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal raised
        if stage == "inside" and not importing(frame):
            raised = True
            raise TimeUp(too_short(given))
        if stage != "over":
            signal.setitimer(signal.ITIMER_REAL, SOON, AGAIN)

    hook = sys.unraisablehook

    def dropped(lost: sys.UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, TimeUp):
            signal.setitimer(signal.ITIMER_REAL, SOON, AGAIN)
        else:
            hook(lost)

    gradients = torch.is_grad_enabled()
    before = signal.signal(signal.SIGALRM, stop)
    sys.unraisablehook = dropped
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), AGAIN)
        try:
            stage = "inside"
            yield
        except Exception as error:
            if raised and not isinstance(error, TimeUp):
                raise TimeUp(too_short(given)) from error
            raise
        finally:  # an alarm here raises nothing more, and the outer block removes it
            stage = "over"
    finally:
        stage = "over"
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        sys.unraisablehook = hook
        signal.signal(signal.SIGALRM, before)
        torch.set_grad_enabled(gradients)
