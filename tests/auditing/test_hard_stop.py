"""The alarm ends code that does not poll, and leaves no module half imported."""

from __future__ import annotations

import signal
import sys
import time
import weakref
from contextlib import suppress

import pytest
import torch

from divulge.auditing import TimeUp
from divulge.auditing.hard_stop import AGAIN, hard_stop


def _busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _import_and_go_on():
    import slow_to_import

    _busy(5)
    return slow_to_import


def test_the_alarm_ends_code_that_does_not_poll():
    started = time.perf_counter()
    with pytest.raises(TimeUp), hard_stop(0.05, given=0.05):
        _busy(5)
    assert time.perf_counter() - started < 2


def test_the_alarm_waits_for_the_end_of_an_import(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.3)\nwhole = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TimeUp), hard_stop(0.05, given=0.05):
        _import_and_go_on()
    assert sys.modules["slow_to_import"].whole


def _gradients_off():
    torch.set_grad_enabled(False)
    _busy(5)


def test_gradients_are_as_before_after_the_alarm():
    with pytest.raises(TimeUp), hard_stop(0.05, given=0.05):
        _gradients_off()
    assert torch.is_grad_enabled()


def test_an_alarm_before_the_block_has_begun_ends_the_block_and_nothing_after_it(monkeypatch):
    set_alarm = signal.setitimer

    def slowly(which, seconds, interval=0.0):
        set_alarm(which, seconds, interval)
        _busy(0.02 if seconds else 0)  # a busy machine: the alarm rings before the block is entered

    monkeypatch.setattr(signal, "setitimer", slowly)
    handler = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeUp), hard_stop(0.0, given=0.0):
        _busy(5)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is handler


def test_alarms_at_the_end_of_a_block_leave_nothing_behind():
    for place in range(200):
        with suppress(TimeUp), hard_stop(0.001, given=0.0):
            _busy(5e-6 * place)
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


class _Held:
    pass


class _SlowToDelete:
    def __del__(self):
        _busy(0.2)


def _drop_and_go_on(held):
    held.clear()  # the alarm rings while the object goes, where nothing can be raised
    _busy(0.9 * AGAIN)


def test_an_alarm_that_python_drops_in_a_destructor_rings_again():
    with pytest.raises(TimeUp), hard_stop(0.05, given=0.05):
        _drop_and_go_on([_SlowToDelete()])


def test_an_alarm_that_python_drops_in_the_callback_of_a_weak_reference_rings_again():
    held = [_Held()]
    reference = weakref.ref(held[0], lambda _: _busy(0.2))
    with pytest.raises(TimeUp), hard_stop(0.05, given=0.05):
        _drop_and_go_on(held)
    assert reference() is None


def _another_error():
    try:
        _busy(5)
    except TimeUp:
        raise TypeError("compiled code has errors of its own") from None


def test_an_error_that_the_alarm_was_turned_into_is_the_end_of_the_time():
    with pytest.raises(TimeUp), hard_stop(0.05, given=0.05):
        _another_error()
    with pytest.raises(TypeError), hard_stop(60, given=60):
        raise TypeError("no alarm rang")
