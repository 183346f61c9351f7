"""Every model, by name. A model is made when it is asked for, from a fixed seed."""

from __future__ import annotations

from collections.abc import Callable

from experiments.claims.subject import Subject
from experiments.claims.zoo import awkward, estimators, functions, networks

MODELS: dict[str, Callable[[], Subject]] = {
    **estimators.MODELS,
    **networks.MODELS,
    **functions.MODELS,
    **awkward.MODELS,
}
