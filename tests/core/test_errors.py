"""Errors are sentences."""

from __future__ import annotations

import pickle

import pytest

from divulge.core.errors import BudgetExhausted, DivulgeError, InvalidInput


@pytest.mark.parametrize(
    ("said", "read"), [("It is broken: no footer..", "It is broken: no footer."), ("And so on...", "And so on...")]
)
def test_a_sentence_that_quotes_one_ends_in_one_full_stop(said, read):
    assert str(InvalidInput(said)) == read


def test_what_was_paid_for_survives_a_worker():
    error = pickle.loads(pickle.dumps(BudgetExhausted("The budget ended.", partial=[1, 2])))
    assert isinstance(error, DivulgeError)
    assert (str(error), error.partial) == ("The budget ended.", [1, 2])


def test_what_it_quotes_cannot_steer_a_terminal():
    said = str(InvalidInput("No column 'a\x1b[31mb\u202ec\x9bd\r'."))
    assert said == "No column 'a\ufffd[31mb\ufffdc\ufffdd '."
