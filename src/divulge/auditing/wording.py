"""Numbers inside sentences: counts with their noun, shares in percent, sizes without powers of ten."""

from __future__ import annotations

import math


def count(number: float, noun: str, plural: str = "") -> str:
    """A count with its noun.

    Examples
    --------
    >>> count(1, "second"), count(1200, "query", "queries")
    ('1 second', '1,200 queries')
    """
    if not math.isfinite(number):
        return f"an unknown number of {plural or noun + 's'}"
    whole = round(number)
    return f"{whole:,} {noun if whole == 1 else plural or noun + 's'}"


def percent(share: float) -> str:
    """A share of one in percent.

    Examples
    --------
    >>> percent(0.927), percent(1.0), percent(0.99999), percent(-0.3), percent(float("nan"))
    ('92.7%', '100%', 'over 99.9%', '0%', 'an unknown share')
    """
    if not math.isfinite(share):
        return "an unknown share"
    share = min(1.0, max(0.0, share))
    if share in (0.0, 1.0):
        return f"{share:.0%}"
    if share > 0.999:
        return "over 99.9%"
    return "under 0.1%" if share < 0.001 else f"{share:.1%}"


def size(number: float) -> str:
    """A size in three digits; very small and very large sizes as powers of ten.

    Examples
    --------
    >>> size(1234.5), size(0.02), size(3e-12), size(float("inf"))
    ('1,230', '0.02', '3e-12', 'an unknown amount')
    """
    if not math.isfinite(number):
        return "an unknown amount"
    if number == 0 or 1e-3 <= abs(number) < 1e6:
        return f"{float(f'{number:.3g}'):,.10g}"
    mantissa, exponent = f"{number:.2g}".split("e") if "e" in f"{number:.2g}" else (f"{number:.1e}".split("e"))
    return f"{float(mantissa):g}e{int(exponent)}"


def seconds(number: float) -> str:
    """A length of time.

    Examples
    --------
    >>> seconds(1.2), seconds(0.01), seconds(7200)
    ('1 second', 'less than a second', '120 minutes')
    """
    if not math.isfinite(number):
        return "an unknown time"
    if number < 1:
        return "less than a second"
    return count(number, "second") if number < 600 else count(number / 60, "minute")
