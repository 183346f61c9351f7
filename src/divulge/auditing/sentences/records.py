"""Sentences about training records: reconstructions from weights and from answers, and the informed insider."""

from __future__ import annotations

import math
from typing import Literal

from divulge.auditing.wording import count, percent, size
from divulge.report.findings import Outcome

Source = Literal["out of the weights", "out of the weights and their start", "through predictions alone"]
_WHO: dict[Source, str] = {
    "out of the weights": "Whoever holds the weights",
    "out of the weights and their start": "Whoever holds the weights and the start",
    "through predictions alone": "A client of the prediction endpoint",
}


def title(outcome: Outcome, matched: int, total: int, source: Source) -> str:
    """The title of a reconstruction."""
    if outcome == "failed":
        chance = ", beyond what chance explains" if matched else ""
        return f"No training records came back {source}{chance}"
    return f"{matched:,} of {count(total, 'training record')} came back {source}"


def meaning(outcome: Outcome, source: Source) -> str:
    """What a reconstruction means."""
    if outcome == "failed":
        return "The attack ran and returned nothing that can be distinguished from inputs the model never saw."
    return f"{_WHO[source]} can compute inputs that the model was trained on."


def picture_threshold(correlation: float) -> str:
    """When a picture counts as matched."""
    return f"A record counts as matched above a correlation of {size(correlation)}"


def table_threshold(error: float) -> str:
    """When a row of a table counts as matched: columns this far off, in units of their spread."""
    if not math.isfinite(error) or error >= 1:
        return (
            "No record counts as matched: inputs that the model never saw come as close as the threshold, which is "
            "wider than the spread of the columns"
        )
    return f"A record counts as matched when its columns are off by less than {size(error)} times their spread"


def certainty(threshold: str, control: float | None) -> str:
    """What was checked of a reconstruction; ``control`` is the share of unseen inputs that count as matched."""
    if control is None:
        return f"{threshold}. No unseen inputs were given as a control, so likeness by chance is not ruled out."
    return f"{threshold}; {percent(control)} of the inputs that the model never saw reach that."


def forest_title(outcome: Outcome, error: float, random: float) -> str:
    """The title of a table from the counts of a forest."""
    if outcome == "failed":
        return "The counts of the forest do not give its training table away"
    return f"The training table came back out of the forest: {percent(error)} wrong cells, {percent(random)} by chance"


def forest_meaning(outcome: Outcome) -> str:
    """What a table from the counts of a forest means."""
    if outcome == "failed":
        return "A table that meets every count of the forest is hardly nearer to the true one than chance."
    return "Whoever holds the file of the forest can compute the rows that it was trained on, without a query."


def forest_certainty(shuffled: float, exact: int, rows: int) -> str:
    """What was checked of a table from the counts of a forest."""
    return (
        f"{exact:,} of {count(rows, 'row')} came back in every cell, after the best matching of rows. With its columns "
        f"shuffled, which keeps every sum, the rebuilt table has {percent(shuffled)} wrong cells. Other tables may "
        "meet the same counts."
    )


def fewer_trees() -> str:
    """What may keep a table out of a forest."""
    return "Publish fewer or shallower trees, or train them with differential privacy, and attack the result again."


def train_longer_on_more() -> str:
    """What may keep records out of the weights."""
    return "Train on more records, or stop earlier: the attack needs a network that fits its data perfectly."


def number_told(reason: str) -> str:
    """The attack was told the number of records, because the difference does not show it."""
    return f"The attack was told the number of records, which an attacker has to know or to guess: {reason}"


def hide_the_start() -> str:
    """What may keep records out of the difference of two checkpoints."""
    return (
        "Train with differential privacy, with many steps of Adam (one step of it hides nothing), or on more records "
        "than the first dense layer has inputs, and attack the result again, also with the number of records given: "
        "the difference of the layer to its start must have no gap in its singular values."
    )


def true_weights(matched: int) -> str:
    """The same attack on the true weights, beside the attack on a copy."""
    return f"The same from the true weights: {count(matched, 'record')} matched."


def informed_title(better: int, tried: int, unfinished: int) -> str:
    """The title of an informed reconstruction."""
    rest = f" ({count(unfinished, 'further record')} ran out of time)" if unfinished else ""
    return f"{better:,} of {count(tried, 'record')} rebuilt by someone who knows the others{rest}"


def informed_meaning(outcome: Outcome, through: str, *, numbers_only: bool) -> str:
    """What an informed reconstruction means; ``through`` names the preprocessing step that leaks, if one does."""
    if outcome == "inconclusive":
        return "Too little ran to its end to say whether the missing record can be computed."
    if outcome == "failed":
        return "The attack did not come closer to the missing record than the nearest other record is."
    if through:
        what = "gives its numbers away" if numbers_only else "gives it away"
        return (
            f"Whoever holds the model and all records but one can compute the missing one. The fitted {through} alone "
            f"{what}: the number of records times its mean, less the sum of the known records."
            + (" What came back of other columns comes from the coefficients." if numbers_only else "")
        )
    return "Whoever holds the weights and all records but one can compute the missing one."


def informed_certainty(tried: int, cost: str) -> str:
    """What was checked of an informed reconstruction."""
    each = "One record was left out" if tried == 1 else f"Each of {tried:,} records was left out in turn"
    return f"{each} and compared with what was rebuilt; it cost {cost}."


def training_cost(runs: float) -> str:
    """What an attack through training costs."""
    return count(runs, "repeat of the training a record", "repeats of the training a record")


def refit_preprocessing(step: str, *, numbers_only: bool) -> str:
    """What to do about a preprocessing step that leaks."""
    what = "the numbers of a record come" if numbers_only else "the record comes"
    return (
        f"Fit the {step} on public data, or with differential privacy, and train with it fixed. Private training of "
        f"the model, or fewer digits of its coefficients, does not help: {what} out of the {step}."
    )


def exposed_first(rows: list[int]) -> str:
    """Which of the records were chosen because membership exposes them."""
    if len(rows) == 1:
        return f"Record {rows[0]} came first because membership exposes it most; the others were drawn at random."
    named = ", ".join(str(row) for row in rows)
    return f"Records {named} came first because membership exposes them most; the others were drawn at random."


def fewer_digits() -> str:
    """What rounding of the weights may do."""
    return "Release fewer digits of the weights: the error of the rebuilt record grows with their rounding."


def chain_copy(exact: bool, reason: str) -> str:
    """What the chain started from."""
    return "The copy was exact." if exact else f"The copy was not exact: {reason or 'no reason was given'}"


def mean_was_given() -> str:
    """What the attacker was given."""
    return "The attacker was given the mean that was subtracted from the training inputs."


def worst_rebuilt(row: int, error: float, nearest: float) -> str:
    """The record that an insider rebuilt best."""
    return (
        f"Record {row:,} came back with an error of {size(error)}; the nearest other record is {size(nearest)} away "
        "(mean squared, in units of each column's spread)."
    )


def worst_matched(row: int, score: float) -> str:
    """The record that a reconstruction matches best."""
    return f"Record {row:,} was matched best, with a score of {size(score)}; 1 is a perfect match."
