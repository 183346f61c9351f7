"""What makes no sense is refused in one clear sentence; what does is handed on in one type."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from divulge.core.errors import EmptyBatch, InvalidInput, NonFiniteInput, WrongShape
from divulge.core.validation import (
    checked_choice,
    checked_interval,
    checked_number,
    checked_rows,
    checked_seed,
    checked_whole,
)


@pytest.mark.parametrize("number", [1, 1.0, np.float32(1), np.int64(1)])
def test_numbers_of_every_type_become_one(number):
    assert type(checked_number("rate", number)) is float
    assert type(checked_whole("count", number)) is int
    assert type(checked_seed(number)) is int


@pytest.mark.parametrize("value", [None, True, "1", math.nan, math.inf, [1], 1j])
def test_what_is_no_number_is_refused(value):
    for check in (checked_number, checked_whole):
        with pytest.raises(InvalidInput, match=r"^size is a (whole )?number; got "):
            check("size", value)
    with pytest.raises(InvalidInput, match="seed"):
        checked_seed(value)


@pytest.mark.parametrize(
    ("limits", "inside", "outside", "words"),
    [
        ({"at_least": 0}, (0, 5), (-1,), "at least 0"),
        ({"above": 0}, (1e-300,), (0,), "above 0"),
        ({"at_most": 1}, (1, -5), (1.1,), "at most 1"),
        ({"below": 1}, (0,), (1,), "below 1"),
        ({"above": 0, "below": 1}, (0.5,), (0, 1), "strictly between 0 and 1"),
        ({"above": 0, "at_most": 1}, (0.5, 1), (0, 2), "above 0 and at most 1"),
    ],
)
def test_limits_are_kept_and_named(limits, inside, outside, words):
    assert [checked_number("share", value, **limits) for value in inside] == list(inside)
    for value in outside:
        with pytest.raises(InvalidInput) as caught:
            checked_number("share", value, **limits)
        assert str(caught.value) == f"share is a number {words}; got {value!r}."


@pytest.mark.parametrize(
    ("limits", "words"),
    [({"at_least": 1}, " from 1 on"), ({"at_least": 1, "at_most": 8}, " from 1 to 8"), ({"at_most": 8}, " to 8")],
)
def test_whole_numbers_have_their_own_words(limits, words):
    assert checked_whole("rank", 8, **limits) == 8
    with pytest.raises(InvalidInput) as caught:
        checked_whole("rank", 2.5, **limits)
    assert str(caught.value) == f"rank is a whole number{words}; got 2.5."


def test_a_hint_is_a_sentence_of_its_own():
    with pytest.raises(InvalidInput, match=r"got 0\. Leave it out if unknown\.$"):
        checked_whole("width", 0, at_least=1, hint="Leave it out if unknown.")
    with pytest.raises(InvalidInput, match=r"^by is one of flow, noise, auto; got 3\. Try flow\.$"):
        checked_choice("by", 3, ("flow", "noise", "auto"), hint="Try flow.")


def test_rows_come_as_one_kind_of_tensor():
    picture = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    assert torch.equal(checked_rows(picture, width=4), torch.arange(12, dtype=torch.float64).reshape(3, 4))
    assert checked_rows(picture, width=12).shape == (1, 12)  # one input
    assert not checked_rows(torch.ones(2, 2, requires_grad=True)).requires_grad


@pytest.mark.parametrize(
    ("X", "error"),
    [
        ([[1, math.nan]], NonFiniteInput), (np.zeros((0, 3)), EmptyBatch), ([["a"]], InvalidInput),
        ([[1], [1, 2]], InvalidInput), (np.zeros((2, 3)), WrongShape),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_used_are_refused_by_name(X, error):
    with pytest.raises(error, match="unseen inputs"):
        checked_rows(X, what="unseen inputs", width=2)


@pytest.mark.parametrize("bounds", [(1, 1), (2, 1), (0, math.inf), 3, (1, 2, 3), ("a", "b")])
def test_an_interval_has_a_low_and_a_high_end(bounds):
    assert checked_interval("bounds", [0, 1]) == (0.0, 1.0)
    with pytest.raises(InvalidInput, match=r"^bounds is \(low, high\)"):
        checked_interval("bounds", bounds)
