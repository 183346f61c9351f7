"""Sentences about span recovery."""

from __future__ import annotations

from typing import Literal

from divulge.auditing.wording import count, size
from divulge.report.findings import Outcome

Access = Literal["label", "value", "gradient"]


def title(outcome: Outcome, rank: int, inputs: int, access: Access, linear: bool) -> str:
    """The title of a span recovery."""
    if linear:
        return f"The model depends on {count(rank, 'input direction')}, as every linear model of its size does"
    if outcome == "failed" and rank < inputs:
        return f"Span recovery from {access}s did not succeed"
    mostly = "mostly " if outcome == "partly" else ""
    return f"The model depends {mostly}on {rank:,} of {count(inputs, 'input direction')}"


def meaning(outcome: Outcome, seen: int, hidden: int, linear: bool, *, quantity: bool = False) -> str:
    """What a span recovery means."""
    if linear:
        return (
            "The answers of a linear model depend on one direction for each output; the exact copy says more. This is "
            "no finding of its own."
        )
    if outcome == "partly":
        changed = "changed its answers little" if quantity else "changed no decision that was tried"
        return (
            f"Most of what the model depends on lies in {count(seen, 'direction')} of its input: noise in the other "
            f"{hidden:,} {changed}, though some of them may matter."
        )
    if outcome == "succeeded":
        return (
            f"The model ignores {count(hidden, 'direction')} of its input: anyone can hide content there that a person "
            "sees and the model does not, or the other way round."
        )
    if hidden == 0:
        return "The model depends on its whole input; there is nothing it ignores."
    return "The attack found directions that matter, but not all: it cannot say what the model ignores."


def certainty(gap: float, complete: bool) -> str:
    """What decided the rank."""
    decided = f"The rank was decided by a gap of a factor {size(gap)} between what was kept and what was dropped"
    return f"{decided}." if complete else f"{decided}; directions may be missing."


def moved(share: float) -> str:
    """That noise in the ignored directions changed the answers."""
    return f"Answers moved by up to {size(share)} of their spread under the noise: a direction was missed."


def curve_words(rank: int, samples: int) -> str:
    """A curve of rank against samples, in words."""
    return f"The rank found grows to {rank:,} over {count(samples, 'sample')} and stays there"


def check_inputs() -> str:
    """What the owner can do about ignored directions."""
    return "Check inputs for content outside the span before answering: the basis is known to you as to the attacker."


def cannot_hide() -> str:
    """What a guard cannot do about the span."""
    return "Nothing at the endpoint hides the span from a client who may ask often; it follows from the answers."
