"""Sentences about copies: exact extraction and learned copies."""

from __future__ import annotations

from typing import Literal

from divulge.auditing.target import Answers
from divulge.auditing.wording import count, percent, size
from divulge.report.findings import Outcome
from divulge.report.text import listed

Access = Literal["label", "value", "gradient"]
Judging = Literal["unseen", "training", "drawn"]
"""What the rows are that judge a copy."""


def likeness(share: float, quantity: bool) -> str:
    """How alike a copy is."""
    if quantity:
        return "none of its variance" if share <= 0 else f"{percent(share)} of its variance"
    return f"{percent(share)} of its decisions"


def off_by(error: float) -> str:
    """How far the answers of a copy are off, in units of their spread."""
    return f"to {size(error)} of its answers' spread"


def exact_title(outcome: Outcome, queries: str, how: str, access: Access) -> str:
    """The title of an exact extraction; ``how`` is "exactly", or how alike or how far off the copy is."""
    if outcome in ("succeeded", "partly"):
        return f"{queries} are enough to copy the model {how}"
    return f"Exact extraction from {access} queries did not succeed"


def exact_meaning(outcome: Outcome, answers: Answers, access: Access, reason: str, vetoed: bool) -> str:
    """What an exact extraction means."""
    if vetoed and outcome == "failed":
        return f"The attack claimed an exact copy. The copy decides otherwise than the model on the data, so {_none()}"
    if outcome == "failed":
        return f"The attack ran and did not rebuild the model: {reason or 'it gave no reason'}"
    what = f"its {answers}" if access == "value" else f"gradients of its {answers} (a saliency explanation)"
    return f"Whoever may ask for {what} can rebuild the model and stop asking you."


def _none() -> str:
    return "the claim was dropped and nothing was taken."


def exact_certainty(points: int, worst: float, exact: bool, reason: str, vetoed: bool, agreement: float) -> str:
    """What was checked of an exact copy."""
    checked = (
        f"The copy was compared with the model on {count(points, 'fresh input')}; the largest difference was "
        f"{size(worst)}."
    )
    if vetoed:
        return f"{checked} On the data it shares {percent(agreement)} of the decisions, so it is not called exact."
    return checked if exact or not reason else f"{checked} Not exact: {reason}"


def constant(rows: int, access: Access = "value") -> str:
    """Why a model that always answers the same has no copy worth the name."""
    if access == "label":
        return (
            f"The model made the same decision on {count(rows, 'input')}. Who sees decisions alone sees a constant on "
            "this data, which is copied with one query; there is nothing else to take."
        )
    return (
        f"The model gave the same answer to {count(rows, 'input')}: on this data it is constant. A constant is copied "
        "with one query, and there is nothing else to take."
    )


def constant_title(rows: int, access: Access = "value") -> str:
    """The title where the model answers all the rows alike by which a copy would be judged."""
    does = "decides" if access == "label" else "answers"
    return f"There is nothing to copy: the model {does} all {count(rows, 'row')} alike by which a copy is judged"


def student_title(
    outcome: Outcome,
    queries: int,
    access: Access,
    share: float,
    quantity: bool,
    low: float,
    high: float,
    draws: int,
    chance: float = 0.0,
) -> str:
    """The title of a learned copy; ``chance`` is what always answering the same would reproduce."""
    what = likeness(share, quantity)
    asked = count(queries, f"{access} query", f"{access} queries")
    if outcome == "failed":
        beside = f", and always answering the same {percent(chance)}" if chance and not quantity else ""
        return f"A student fitted to {asked} is no copy: it reproduces {what}{beside}"
    if outcome == "inconclusive":
        between = f"{percent(low)} to {percent(high)} (95% interval of {count(draws, 'draw')})"
        whole = "its variance" if quantity else "its decisions"
        return f"A student fitted to {asked} reproduces {between} of {whole}, too uncertain to call it a copy or none"
    spread = f" (mean of {draws} draws, 95% interval {percent(low)} to {percent(high)})" if draws > 1 else " (one draw)"
    return f"A student fitted to {asked} reproduces {what}{spread}"


def student_meaning(outcome: Outcome) -> str:
    """What a learned copy means."""
    return {
        "succeeded": "Whoever may ask this often has a model that does the same job.",
        "partly": "Whoever may ask this often has a model that does most of the same job.",
        "failed": "A student of this size, fitted to so few answers, does not replace the model.",
        "inconclusive": "Draws of such a student differ too much, or were too few, to say whether one replaces the "
        "model. More time gives more draws.",
    }[outcome]


def student_certainty(rows: int, judging: Judging, draws: int, student: str) -> str:
    """What was checked of a learned copy."""
    which = {
        "unseen": "inputs that the model never saw",
        "training": "training inputs (no unseen inputs were given)",
        "drawn": "random tokens, which are no texts (no data was given)",
    }[judging]
    times = (
        "One draw of queries and of the student's weights" if draws == 1 else f"{draws} draws of queries and weights"
    )
    return (
        f"Measured on {count(rows, 'row')}, {which}, none of which the student was fitted to. {times}. The student "
        f"is {student}; one that fits the task better may need fewer queries."
    )


def curve_ended(by: Literal["time", "budget"]) -> str:
    """Why a learning curve is shorter than planned."""
    return f"The curve ends there, because the {by} did."


def labels_slow_down(labels: int = 0, values: int = 0) -> str:
    """What answering decisions only does, and what it does not, with what was measured on this model."""
    limit = "Only a limit on the queries of a client below that number stops it."
    if labels and values:
        times = f", {labels / values:.0f} times as many" if labels >= 2 * values else ""
        return (
            f"Answering decisions only does not stop a copy: from values it took {count(values, 'row')}, from labels "
            f"{count(labels, 'row')}{times}. {limit}"
        )
    if labels:
        return f"Answering decisions only does not stop a copy: here it took {count(labels, 'label')}. {limit}"
    return (
        "Answering decisions only slows extraction down and does not stop it: linear models and ReLU networks with one "
        "hidden layer are copied from labels alone. For the networks it takes about 60 times as many queries as from "
        f"values. {limit}"
    )


def label_meaning(outcome: Outcome, reason: str) -> str:
    """What a copy from labels means."""
    if outcome in ("succeeded", "partly"):
        return (
            "A client who sees decisions and no scores has a model that decides alike. What decisions cannot show is "
            "the scale of the scores."
        )
    return f"Decisions alone did not give a copy here: {reason}" if reason else "Decisions alone did not give a copy."


def label_certainty(rows: int, agreement: float, equivalent: bool) -> str:
    """What was checked of a copy from labels."""
    if not rows:
        return "The copy was not verified, because the attack ended before."
    near = " and on both sides of its boundary" if equivalent else ""
    return f"Checked on {count(rows, 'fresh row')}{near}: the decisions agree in {percent(agreement)}."


def no_gradients() -> str:
    """What serving gradients gives away."""
    return (
        "Not serving gradients makes a copy dearer and not impossible: one gradient says as much as many predictions."
    )


def curve_words(first_share: float, first: int, last_share: float, last: int) -> str:
    """A learning curve in words."""
    return (
        f"Fidelity goes from {percent(first_share)} at {count(first, 'query', 'queries')} to {percent(last_share)} at "
        f"{count(last, 'query', 'queries')}"
    )


TOKENS = "it takes the numbers of tokens, and between two of them there is nothing to ask."
"""Why attacks that move an input by a little do not fit."""


def no_copy_fits(description: str, reach: str) -> str:
    """Why exact extraction does not fit."""
    return f"it is {description}; {reach}"


def still_taken(names: list[str]) -> str:
    """Which attacks a guard does not stop."""
    return f"It does not stop the {listed(names)}." if names else ""


def last_layer_title(outcome: Outcome, queries: int, width: int, outputs: int) -> str:
    """The title of an attack on the last layer."""
    if outcome == "failed":
        return "The answers do not show the last layer"
    shown = f"its {outputs:,} outputs are a linear function of {count(width, 'number')}"
    return f"{count(queries, 'value')} show the last layer: {shown}"


def last_layer_meaning(outcome: Outcome, reason: str, width: int, outputs: int) -> str:
    """What an attack on the last layer means."""
    if outcome == "failed":
        why = reason or f"the {outputs:,} outputs fill {width:,} dimensions, so hardly one depends on others."
        return f"The attack ran and found no layer that is narrower than the outputs: {why}"
    return (
        f"Whoever may ask for the answers knows how wide the model is before its last layer ({width:,}), and the "
        f"{width * outputs:,} weights of that layer up to an invertible {width:,} x {width:,} matrix: a part of the "
        "model that was never shown."
    )


def last_layer_certainty(checks: int, error: float, missed: float | None) -> str:
    """What was checked of a last layer."""
    said = (
        f"{checks} fresh answers lie in the space found but for {size(error)} of their spread. Numbers that no query "
        "moved are not counted."
    )
    return (
        said
        if missed is None
        else f"{said} Of the model's own last layer it misses {percent(missed**2)} of the squared weights."
    )
