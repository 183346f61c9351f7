"""Sentences about who was in the training set, and about hidden columns of training records."""

from __future__ import annotations

import math

from divulge.auditing.wording import count, percent, size
from divulge.report.findings import Outcome


def membership_title(outcome: Outcome, auc: float, exposed: tuple[str, float] | None = None) -> str:
    """The title of a membership attack; ``exposed`` is the only class that is, with its own area."""
    if outcome == "failed":
        return f"The membership attack does not tell training records from others (AUC {size(auc)})"
    much = (
        "can be told from others" if outcome == "succeeded" else "can be told from others a little better than chance"
    )
    if exposed is not None:
        name, own = exposed
        return f"Training records of class {name} {much} (AUC {size(own)} in that class, {size(auc)} in all)"
    return f"Training records {much} (AUC {size(auc)})"


def membership_meaning(outcome: Outcome, *, rows_differ: bool) -> str:
    """What a membership attack means; ``rows_differ`` where its scores separate what the rows alone separate too."""
    if outcome == "failed" and rows_differ:
        return (
            "The scores separate members from non-members no better than the rows alone do, without the model: the two "
            "sets differ, so this says nothing about who was in the training set."
        )
    if outcome == "failed":
        return "The attack ran, and its scores do not separate members from non-members beyond chance."
    return "Who asks the model about a person's record learns whether that person's record was used to train it."


def membership_certainty(members: int, others: int, control: float, distribution: float) -> str:
    """What was checked of a membership attack."""
    return (
        f"{count(members, 'member')} were scored against {count(others, 'non-member')}. Halves of the non-members "
        f"against each other have an AUC of {size(control)}, and a classifier on the rows without the model one of "
        f"{size(distribution)}."
    )


def claimed(epsilon: float, measured: float) -> str:
    """The epsilon that was claimed beside the one that was measured."""
    beyond = "which contradicts the claim" if measured > epsilon else "which does not contradict it"
    return f"Training claims an epsilon of {size(epsilon)}; the scores show at least {size(measured)}, {beyond}."


def by_canaries(said: str, canaries: int) -> str:
    """The limit on epsilon by canaries, as the audit of it says it."""
    return f"With {canaries:,} canaries in one more training run, {said}"


def informed_adversary(certain: int, tried: int) -> str:
    """The upper end of membership inference."""
    return (
        f"The informed adversary, who knows all other records, the recipe and its seed, is certain of {certain} of "
        f"{count(tried, 'member')}. It knows more than any other membership attack."
    )


def cheaper(method: str) -> str:
    """That reference models did not fit into the time."""
    return f"The time did not allow reference models; {method} ran alone. With more time the attack is stronger."


def regularise() -> str:
    """What may lower membership exposure."""
    return "Stop training earlier, regularise more, or show fewer digits of confident answers; then measure again."


def copy_title(outcome: Outcome, how: str, copied: float, endpoint: float) -> str:
    """The title of a membership attack on a copy."""
    beside = f"AUC {size(copied)}, and {size(endpoint)} at the endpoint"
    if outcome == "failed":
        return f"The attack on a copy does not tell training records from others ({how} copy: {beside})"
    return f"A copy tells training records from others too ({how} copy: {beside})"


def copy_meaning(outcome: Outcome) -> str:
    """What a membership attack on a copy means."""
    if outcome == "failed":
        return "The same attack on a copy ran, and its scores do not separate members from non-members beyond chance."
    return (
        "Whoever copied the model through its answers asks the copy about a person's record, as often as wanted and "
        "without being seen, and learns whether it was used for training."
    )


def copy_certainty(members: int, others: int, difference: tuple[float, float, float]) -> str:
    """What was checked of a membership attack on a copy."""
    return (
        f"{count(members, 'member')} and {count(others, 'non-member')}, which the copy did not ask about, were scored "
        f"by the same attack on both. {_less(difference)}"
    )


def _less(difference: tuple[float, float, float]) -> str:
    """How the areas of a copy and of the endpoint differ."""
    if not all(map(math.isfinite, difference)):
        return "How their areas differ is not known."
    return f"The copy's AUC less the endpoint's is {difference[0]:+.3f} ({difference[1]:+.3f} to {difference[2]:+.3f})."


def attributes_title(outcome: Outcome, column: str, advantage: float) -> str:
    """The title of an attribute attack."""
    if outcome == "failed":
        return "Nothing certain was learned from the model about hidden columns, beyond what other records say"
    return f"The model gives away column {column} in {percent(advantage)} more records than imputation does"


def attributes_meaning(outcome: Outcome) -> str:
    """What an attribute attack means."""
    if outcome == "failed":
        return "The attack ran on the columns below, and guessed no more of them right than imputation beyond chance."
    return (
        "Who knows the rest of a training record learns a hidden column from the model's answers, beyond what other "
        "people's records say."
    )


def attributes_certainty(records: int, columns: int) -> str:
    """What was checked of an attribute attack."""
    return (
        f"{count(columns, 'column')} of {records:,} training records were hidden in turn. The baseline is an "
        "imputation with the same knowledge and without the model; limits of the advantage are corrected for the "
        "number of columns."
    )


def columns_left(names: list[str]) -> str:
    """The columns that the time did not allow."""
    return f"The time did not allow these columns: {', '.join(names) or 'none'}."
