"""Values as strict JSON holds them: numbers, text, lists and dictionaries, without NaN and infinity."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any


def plain(value: object) -> Any:
    """A value in the types of JSON.

    Parameters
    ----------
    value : object
        Dictionaries, lists, tuples and sets are converted entry by entry (keys become text); tensors, arrays and
        NumPy numbers become lists and numbers; a result becomes what its ``as_dict`` gives; any other dataclass
        becomes a dictionary of its fields. NaN and infinity become None, which is null in JSON. Anything else becomes
        its text.

    Returns
    -------
    None, bool, int, float, str, list or dict
        What ``json.dumps(..., allow_nan=False)`` takes.

    Examples
    --------
    >>> import numpy as np
    >>> plain({"rate": np.float32(0.5), "sizes": (1, 2), "gap": float("inf")})
    {'rate': 0.5, 'sizes': [1, 2], 'gap': None}
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    for convert in ("as_dict", "tolist"):
        method = getattr(value, convert, None)
        if callable(method) and not isinstance(value, type):
            return plain(method())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return str(value)


def dumps(value: object, *, indent: int | None = None) -> str:
    """A value as the text of strict JSON, by way of ``plain``.

    Examples
    --------
    >>> dumps({"rank": 3, "gap": float("nan")})
    '{"rank": 3, "gap": null}'
    """
    return json.dumps(plain(value), indent=indent, allow_nan=False)
