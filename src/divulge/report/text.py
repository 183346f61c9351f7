"""Numbers and costs for a person to read."""

from __future__ import annotations

import math
import re
from typing import Any

from divulge.core.text import clean
from divulge.core.text import number as number
from divulge.oracles.ledger import Spent

SHARES = ("same_decision", "balanced_", "variance", "by_", "right_answers", "control", "blind_guess", "accepted_chance",
          "accuracy", "fidelity", "sampling_rate", "chance_at_most")  # fmt: skip
"""How the names of measures start that are shares of one."""


def measure(value: Any, name: str) -> str:
    """A measure of a finding for a person; shares in percent."""
    share = name.startswith(SHARES) and isinstance(value, float) and 0 <= value <= 1
    return f"{100 * value:.4g}%" if share else number(value)


def queries(spent: Spent) -> str:
    """What was asked, by kind."""
    kinds = {"values": spent.value, "gradients": spent.gradient, "labels": spent.label}
    return ", ".join(f"{rows:,} {kind}" for kind, rows in kinds.items() if rows) or "none"


def asked(spent: Spent, *, shown: str = "") -> str:
    """What was asked, as a client of the endpoint would call it; ``shown`` says what a prediction shows."""
    kinds = {"explanation": spent.gradient, "prediction": spent.value, "decision": spent.label}
    parts = [f"{rows:,} {kind}" + ("s" if rows > 1 else "") for kind, rows in kinds.items() if rows]
    detail = f" ({shown})" if shown and spent.value + spent.gradient else ""
    return (" and ".join(parts) or "No queries") + detail


def duration(seconds: float) -> str:
    """A length of time for a person."""
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 1:
        return "under a second"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def listed(names: list[str]) -> str:
    """Names in a sentence: a, b and c."""
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else "".join(names)


def either(names: list[str]) -> str:
    """Names to choose from in a sentence: a, b or c."""
    return ", ".join(names[:-1]) + " or " + names[-1] if len(names) > 1 else "".join(names)


def markdown(text: str) -> str:
    """Text that cannot break out of a Markdown table or turn into markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", clean(text))


def markdown_code(text: str) -> str:
    """A command in Markdown, as code where nothing in it can end the code."""
    return markdown(text) if re.search(r"[`<>\n\r]", text) else f"`{clean(text)}`"
