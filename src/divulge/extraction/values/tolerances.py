"""How precise a copy from values must be, and what the parts of the attack agree on."""

from __future__ import annotations

EXACT, PRECISE = 1e-8, 2e-9
"""A copy whose worst error is at most the first share of the output's standard deviation is exact; beyond the second
share it is measured again, unless its line does not allow for better."""
FAINT = 1e-2
"""Neurons that change answers by less than this share of what counts as exact are errors of the fit."""
NEARLY = 1e3
"""Errors up to so many times what counts as exact are imprecision: another line is worth its queries."""
HOPELESS = 0.5
"""A copy that is off by this share of the output's standard deviation is no better on another line."""
LARGEST_POLISH, QUICK_POLISH = 5_000, 1_500
"""Most parameters that are fitted at once, and most that are fitted many times over."""
DEEPER = (
    "The hyperplanes found along one line do not explain another: the model has more than one hidden layer, or is not "
    "a ReLU network."
)


def unclear(precision: str) -> str:
    """The reason where hyperplanes do not explain one another and answers are rounded or noisy; ``precision`` says so.

    Kinks of rounded or noisy answers are no hyperplanes, so nothing is said about the depth.
    """
    return f"The kinks found along one line do not explain another, and {precision}: the model's depth is not known."
