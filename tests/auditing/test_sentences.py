"""Every sentence of a report reads well for every number, also for zero, one, infinity and no number at all."""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
import pkgutil
import random
import re
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from divulge.auditing import sentences, wording
from divulge.auditing.probes.probe import too_short
from divulge.core.roc import Estimate
from divulge.protection import Limits, PriceCurve, PricePoint, Recommendation
from divulge.report import text as report_text

FLOATS = [0.0, 1.0, -0.272, 0.5, math.nan, math.inf, -math.inf, 1e-300, 1e12, 0.99999]
INTEGERS = [0, 1, 2, 10**12]
MAY_BE_EMPTY = ("reason", "price", "others", "through")
WRONG = {
    "no number": r"\bnan\b|\binf\b|\bNone\b",
    "negative share": r"-\d[\d.,]*\s?%",
    "share above one": r"\b[1-9]\d{3,}[\d.,]*\s?%",
    "one of many": r"\b1 (?:seconds|minutes|records|rows|queries|inputs|attacks|directions|samples|draws|guards|units"
    r"|explanations|predictions|decisions|repeats)\b",
    "many of one": r"\b(?:0|2|1,000,000,000,000) (?:second|record|row|query|attack|direction|sample|draw|guard)\b",
    "raw float": r"e[+]\d|\d\.\d{7,}",
    "double space or stop": r"  |\.\.|\s\.|,\.",
}


def templates() -> list[Callable[..., str]]:
    modules = [
        importlib.import_module(f"{sentences.__name__}.{m.name}") for m in pkgutil.iter_modules(sentences.__path__)
    ]
    found = [
        function
        for module in modules
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    ]
    return [*found, too_short, wording.seconds, wording.percent, wording.size, report_text.duration]


def price_point(share: float) -> PricePoint:
    rates = Estimate(share, share, share)
    measured = dict.fromkeys(("accuracy", "balanced_accuracy", "auc", "spread", "membership_auc"), share)
    proven = dict.fromkeys(("membership_bound", "candidates_bound", "rebuilt_bound", "rebuilt_error"), share)
    found = dict.fromkeys(("membership", "candidates", "rebuilt"), rates)
    return PricePoint(epsilon=abs(share), noise_multiplier=share, attribute=None, **measured, **proven, **found)


def price_curve(number: float) -> PriceCurve:
    chosen = Recommendation(abs(number), number, 2 * abs(number), number > 0.5, (), ("membership",))
    return PriceCurve((price_point(number),), Limits((0.05, 0.01)), chosen, 1e-5, 0.01, "full batches")


def values_of(annotation: Any) -> list[Any]:
    """Extreme values of a parameter, by its type."""
    kind = typing.get_origin(annotation)
    if kind is typing.Literal:
        return list(typing.get_args(annotation))
    if kind in (typing.Union, types.UnionType):
        return [value for part in typing.get_args(annotation) for value in values_of(part)]
    known: dict[Any, list[Any]] = {
        float: FLOATS, int: INTEGERS, bool: [False, True], str: ["some text"], type(None): [None],
        list[str]: [[], ["one"], ["one", "two", "three"]], list[int]: [[0], [1, 2, 10**12]],
        list[float]: [[0.5], [1e-300, math.inf]],
        tuple[str, float]: [("some text", number) for number in FLOATS],
        tuple[float, float, float]: [(0.0, 0.0, 0.0), (-0.272, -1.0, 0.5)],
        PricePoint: [price_point(share) for share in FLOATS], PriceCurve: [price_curve(number) for number in FLOATS],
    }  # fmt: skip
    return known[annotation]


def renderings(function: Callable[..., str]) -> Iterator[tuple[dict[str, Any], str]]:
    hints = typing.get_type_hints(function)
    choices = {name: values_of(hints[name]) for name in inspect.signature(function).parameters}
    choices |= {name: ["", *choices[name]] for name in choices if name in MAY_BE_EMPTY and hints[name] is str}
    every = list(itertools.islice(itertools.product(*choices.values()), 200_000))
    for chosen in random.Random(0).sample(every, min(400, len(every))):
        given = dict(zip(choices, chosen, strict=True))
        said = function(**given)
        yield from ((given, sentence) for sentence in ([said] if isinstance(said, str) else said))


@pytest.mark.parametrize("function", templates(), ids=lambda function: f"{function.__module__}.{function.__name__}")
def test_a_sentence_reads_well_with_extreme_numbers(function: Callable[..., str]) -> None:
    for given, sentence in renderings(function):
        for fault, pattern in WRONG.items():
            assert not re.search(pattern, sentence.strip()), (fault, given, sentence)


def test_all_kinds_of_sentences_are_looked_at() -> None:
    names = {function.__module__.rpartition(".")[2] for function in templates()}
    assert {"copies", "spans", "records", "protections"} <= names
    assert len(templates()) > 35
