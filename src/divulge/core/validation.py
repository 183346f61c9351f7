"""What callers hand in, checked before anything runs. Every refusal has one form:

    epochs is a whole number from 0 on; got -1.
    method is one of default, paper; got 'papr'.
    The training inputs have 5 columns; 64 are expected.

A hint may follow, in a sentence of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeVar

from divulge.core.errors import EmptyBatch, InvalidInput, NonFiniteInput, WrongShape

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Choice = TypeVar("Choice", bound=str)


def is_whole(value: object) -> bool:
    """Whether this is a whole number, in whatever type it comes.

    Examples
    --------
    >>> is_whole(3), is_whole(3.0), is_whole(3.5), is_whole(True)
    (True, True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool) and float(value).is_integer()


def checked_seed(seed: object) -> int:
    """A seed as an int.

    Raises
    ------
    InvalidInput
        If it is not a whole number from zero.
    """
    if not is_whole(seed) or seed < 0:  # type: ignore[operator]
        raise InvalidInput(f"A seed is a whole number from zero; got {seed!r}.")
    return int(seed)  # type: ignore[call-overload, no-any-return]


def checked_number(
    name: str,
    value: object,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    hint: str = "",
) -> float:
    """A finite number inside its limits.

    Parameters
    ----------
    name : str
        What the caller calls it.
    value : object
        What was handed in.
    at_least, above, at_most, below : float, optional
        The limits: closed, open, closed and open.
    hint : str, optional
        A sentence that follows the refusal and says what to do.

    Returns
    -------
    float

    Raises
    ------
    InvalidInput
        If it is not a finite number, or outside the limits.

    Examples
    --------
    >>> checked_number("epsilon", 0.5, above=0, below=1)
    0.5
    >>> checked_number("epsilon", 2, above=0, below=1)
    Traceback (most recent call last):
    ...
    divulge.core.errors.InvalidInput: epsilon is a number strictly between 0 and 1; got 2.
    """
    fits = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or not _inside(float(value), at_least, above, at_most, below):  # type: ignore[arg-type]
        raise _refused(name, "a number", value, _limits(at_least, above, at_most, below), hint)
    return float(value)  # type: ignore[arg-type]


def checked_whole(
    name: str, value: object, *, at_least: int | None = None, at_most: int | None = None, hint: str = ""
) -> int:
    """A whole number inside its limits, which are both allowed; 3.0 is one, and True is none.

    Parameters
    ----------
    name : str
        What the caller calls it.
    value : object
        What was handed in.
    at_least, at_most : int, optional
        The smallest and the largest that is allowed.
    hint : str, optional
        A sentence that follows the refusal and says what to do.

    Returns
    -------
    int

    Raises
    ------
    InvalidInput
        If it is not a whole number, or outside the limits.

    Examples
    --------
    >>> checked_whole("rank", 4.0, at_least=1)
    4
    >>> checked_whole("rank", 0, at_least=1, at_most=8)
    Traceback (most recent call last):
    ...
    divulge.core.errors.InvalidInput: rank is a whole number from 1 to 8; got 0.
    """
    if not is_whole(value) or not _inside(float(value), at_least, None, at_most, None):  # type: ignore[arg-type]
        start = "" if at_least is None else f" from {at_least}"
        end = f" to {at_most}" if at_most is not None else " on" if at_least is not None else ""
        raise _refused(name, "a whole number", value, start + end, hint)
    return int(value)  # type: ignore[call-overload, no-any-return]


def checked_choice(name: str, value: object, choices: Collection[Choice], *, hint: str = "") -> Choice:
    """One of a few words.

    Raises
    ------
    InvalidInput
        If it is none of them.

    Examples
    --------
    >>> checked_choice("method", "paper", ("default", "paper"))
    'paper'
    >>> checked_choice("method", "papr", ("default", "paper"))
    Traceback (most recent call last):
    ...
    divulge.core.errors.InvalidInput: method is one of default, paper; got 'papr'.
    """
    for choice in choices:
        if isinstance(value, str) and value == choice:
            return choice
    raise InvalidInput(f"{name} is one of {', '.join(choices)}; got {value!r}." + (f" {hint}" if hint else ""))


def checked_rows(X: object, *, what: str = "rows", width: int | None = None) -> Tensor:
    """Rows of numbers as a float64 tensor [n, d] on the CPU; inputs of more dimensions are flattened.

    Parameters
    ----------
    X : Tensor, array, data frame or nested sequence of numbers
        The rows [n, ...]; as many numbers as ``width`` are one row.
    what : str, default "rows"
        The plural that an error calls them by.
    width : int, optional
        How many columns they must have.

    Returns
    -------
    Tensor

    Raises
    ------
    EmptyBatch
        If there is no row.
    WrongShape
        If they have another number of columns.
    NonFiniteInput
        If one holds NaN or infinity.
    InvalidInput
        If they are not numbers.

    Examples
    --------
    >>> checked_rows([[1, 2], [3, 4]]).shape
    torch.Size([2, 2])
    """
    import numpy as np
    import torch

    try:
        rows = X if isinstance(X, torch.Tensor) else torch.as_tensor(_writable(np.asarray(X, dtype=np.float64)))
        rows = rows.detach().cpu().to(torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"The {what} must be rows of numbers [n, d], all of the same length.") from error
    if rows.numel() == 0:
        raise EmptyBatch(f"There are no {what}; give at least one row.")
    rows = rows.reshape(1, -1) if rows.numel() == width or rows.ndim == 0 else rows.reshape(len(rows), -1)
    if width is not None and rows.shape[1] != width:
        raise WrongShape(f"The {what} have {rows.shape[1]} columns; {width} are expected.")
    if not bool(torch.isfinite(rows.sum())) and not bool(torch.isfinite(rows).all()):  # a sum is quick, but overflows
        raise NonFiniteInput(f"The {what} hold NaN or infinity; every entry must be finite.")
    return rows


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    """The array itself, or a copy of one that must not be written to: torch takes no such array."""
    return array if array.flags.writeable else array.copy()


def checked_interval(name: str, bounds: object) -> tuple[float, float]:
    """Two numbers (low, high), low below high.

    Raises
    ------
    InvalidInput
        If they are anything else.
    """
    try:
        low, high = (checked_number(name, bound) for bound in bounds)  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} is (low, high) with low below high; got {bounds!r}.") from error
    if not low < high:
        raise InvalidInput(f"{name} is (low, high) with low below high; got {bounds!r}.")
    return low, high


def _inside(
    value: float, at_least: float | None, above: float | None, at_most: float | None, below: float | None
) -> bool:
    return (
        (at_least is None or value >= at_least)
        and (above is None or value > above)
        and (at_most is None or value <= at_most)
        and (below is None or value < below)
    )


def _limits(at_least: float | None, above: float | None, at_most: float | None, below: float | None) -> str:
    if above is not None and below is not None:
        return f" strictly between {above:g} and {below:g}"
    low = f"at least {at_least:g}" if at_least is not None else f"above {above:g}" if above is not None else ""
    high = f"at most {at_most:g}" if at_most is not None else f"below {below:g}" if below is not None else ""
    return "".join([f" {low}" if low else "", " and" if low and high else "", f" {high}" if high else ""])


def _refused(name: str, kind: str, value: object, limits: str, hint: str) -> InvalidInput:
    return InvalidInput(f"{name} is {kind}{limits}; got {value!r}." + (f" {hint}" if hint else ""))
