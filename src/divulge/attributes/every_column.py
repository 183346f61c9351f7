"""``attributes.attack_columns``: every sensitive column that is named, or all of them, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from divulge.attributes.attack import attack
from divulge.attributes.result import Attribute
from divulge.core.errors import InvalidInput
from divulge.core.validation import checked_rows


def attack_columns(
    model: object, X: object, y: object, *, columns: Sequence[int | str] | str = "all", **options: Any
) -> dict[str, Attribute]:
    """Infer several hidden columns, each in turn while all others are known.

    Parameters
    ----------
    model : object
        An oracle, or anything that :func:`divulge.oracle` takes.
    X : array [n, d]
        Training records.
    y : array [n]
        Their labels or targets.
    columns : sequence of int or str, or "all", default "all"
        The hidden columns. Of all columns those are left out that do not vary.
    **options
        Further options of :func:`divulge.attributes.attack`, such as ``names``, ``non_members`` and ``groups``.

    Returns
    -------
    dict of str to Attribute
        The result of each column, by its name or number, in the order of the columns.

    Raises
    ------
    InvalidInput
        If a column is not there, or none of all varies.

    Examples
    --------
    >>> import numpy as np, divulge
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = np.column_stack([rng.integers(0, 2, (100, 2)), np.ones(100)]).astype(float)
    >>> y = rng.integers(0, 2, 100)
    >>> tree = DecisionTreeClassifier(random_state=0).fit(X, y)
    >>> list(divulge.attributes.attack_columns(tree, X, y))
    ['0', '1']
    """
    names = tuple(options.get("names", ())) or tuple(map(str, getattr(X, "columns", ())))
    if isinstance(columns, str) and columns == "all":
        rows = checked_rows(X, what="records")
        varied = np.flatnonzero((rows != rows[:1]).any(dim=0).numpy()).tolist()
        if not varied:
            raise InvalidInput("No column varies; there is nothing to infer.")
        chosen: list[int | str] = [names[place] if names else place for place in varied]
    else:
        chosen = [columns] if isinstance(columns, str) else list(columns)
    return {str(column): attack(model, X, y, column=column, **options) for column in chosen}
