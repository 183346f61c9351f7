"""What a fitted estimator, pipeline or search holds of its training records: a walk through everything inside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from divulge.contents.attributes import PRECOMPUTED, Attribute, attributes_of
from divulge.contents.comparison import TrainingRows, found_by_comparing
from divulge.contents.result import Holding
from divulge.contents.steps import Step, input_columns, undone
from divulge.oracles.local.sklearn_estimator import is_estimator

_DEEPEST = 12
_ENSEMBLE = 3
"""Members of an ensemble that are looked through for arrays of unknown meaning; known attributes are read in all."""


@dataclass(frozen=True)
class Part:
    """A fitted part of a model: where it is, and the steps that its rows went through."""

    where: str
    estimator: Any
    before: tuple[Step, ...] = ()


def holdings(estimator: object, known: TrainingRows | None) -> list[Holding]:
    """Everything that the parts of an estimator hold."""
    parts = list(_parts(Part("model", estimator), set(), 0))
    found = [
        held for part in parts for attribute in attributes_of(part.estimator) for held in _held(part, attribute, known)
    ]
    found += _clusters_of_one(parts) + _leaves(parts)
    if known is not None:
        named = {holding.where for holding in found}
        found += [holding for part in parts for holding in _unknown_arrays(part, known) if holding.where not in named]
    return _once(found)


def _parts(part: Part, seen: set[int], depth: int) -> Iterator[Part]:
    """The estimator and every fitted estimator inside it, each with the steps before it."""
    estimator = part.estimator
    if id(estimator) in seen or depth > _DEEPEST:
        return
    seen.add(id(estimator))
    yield part
    for inner in _inside(part):
        yield from _parts(inner, seen, depth + 1)


def _inside(part: Part) -> Iterator[Part]:
    estimator = part.estimator
    if isinstance(getattr(estimator, "steps", None), list):  # a Pipeline
        before = part.before
        for name, step in estimator.steps:
            yield Part(f'{part.where}["{name}"]', step, before)
            before = (*before, Step(step))
        return
    if hasattr(estimator, "transformers_"):  # a ColumnTransformer
        for name, step, columns in estimator.transformers_:
            chosen = (*part.before, Step(estimator, columns=columns))
            yield Part(f'{part.where}.named_transformers_["{name}"]', step, chosen)
        return
    if isinstance(getattr(estimator, "transformer_list", None), list):  # a FeatureUnion
        for name, step in estimator.transformer_list:
            yield Part(f'{part.where}.named_transformers["{name}"]', step, part.before)
        return
    parameters = _parameters(estimator)
    for name, value in _attributes(estimator).items():
        if name not in parameters:
            on_targets = name == "transformer_"  # of a TransformedTargetRegressor
            before = (*part.before, Step(None)) if on_targets else part.before
            yield from _estimators_in(f"{part.where}.{name}", value, before)


def _estimators_in(where: str, value: object, before: tuple[Step, ...]) -> Iterator[Part]:
    if is_estimator(value) or _holds_rows(value):
        yield Part(where, value, before)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _estimators_in(f"{where}[{key!r}]", inner, before)
    elif isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        for place, inner in enumerate(np.ravel(value) if isinstance(value, np.ndarray) else value):
            if is_estimator(inner) or _holds_rows(inner):
                yield Part(f"{where}[{place}]", inner, before)


def _holds_rows(value: object) -> bool:
    """Whether this is a part of scikit-learn that is no estimator itself, such as a calibrated pair of a search."""
    return type(value).__name__ in ("_CalibratedClassifier", "_BinMapper")


def _parameters(estimator: object) -> set[str]:
    """Names of constructor parameters: what they hold is not fitted."""
    return set(estimator.get_params(deep=False)) if is_estimator(estimator) else set()


def _attributes(estimator: object) -> dict[str, Any]:
    return dict(vars(estimator)) if hasattr(estimator, "__dict__") else {}


# -- one attribute ----------------------------------------------------------------------------------------------------


def _held(part: Part, attribute: Attribute, known: TrainingRows | None) -> list[Holding]:
    value = getattr(part.estimator, attribute.name)
    where = f"{part.where}.{attribute.name}"
    if attribute.kind == "records":
        return _records(part, where, attribute, value)
    columns = value if isinstance(value, list | tuple) else [list(value) if isinstance(value, dict) else value]
    count = sum(np.size(np.asarray(column, dtype=object)) for column in columns)
    detail = attribute.detail + _over(part.estimator, attribute)
    if known is not None and attribute.kind in ("categories", "values"):
        detail += _of_one_record(part, attribute, value, known)
    return [Holding(where, attribute.kind, int(count), detail)] if count else []


def _over(estimator: object, attribute: Attribute) -> str:
    """Over how many records a mean was taken: with that number an insider computes the missing record."""
    seen = getattr(estimator, "n_samples_seen_", getattr(estimator, "n_samples_", None))
    if attribute.name != "mean_" or seen is None or np.ndim(seen) > 0:
        return ""
    return f" Over {int(seen):,} records: that many times the mean, less the sum of the others, is the missing record."


def _of_one_record(part: Part, attribute: Attribute, value: object, known: TrainingRows) -> str:
    """How many of the values or categories occur in exactly one training record."""
    places = input_columns(part.before, known.width)
    columns = value if isinstance(value, list) else None if isinstance(value, dict) else np.asarray(value)
    if columns is None or places is None or len(columns) != len(places) or attribute.name in ("max_abs_", "quantiles_"):
        return ""
    held = [np.atleast_1d(column) for column in columns]
    alone = sum(known.holders(place, one) == 1 for place, column in zip(places, held, strict=True) for one in column)
    noun = "category" if attribute.kind == "categories" else "value"
    return (
        f" {alone:,} of them occur in exactly one record." if alone != 1 else f" One {noun} occurs in one record only."
    )


def _records(part: Part, where: str, attribute: Attribute, value: object) -> list[Holding]:
    if any(getattr(part.estimator, name, None) == "precomputed" for name in PRECOMPUTED):
        return []
    rows = dense(np.asarray(value.data) if attribute.name == "tree_" else value)  # type: ignore[attr-defined]
    if rows is None or rows.ndim != 2 or len(rows) == 0:
        return []
    back = undone(rows, part.before)
    detail = attribute.detail
    if back.obstacle:
        detail += f" As features: {back.obstacle}."
    return [Holding(where, "records", len(rows), detail, back.rows, verbatim=not back.obstacle)]


def dense(value: object) -> NDArray[Any] | None:
    """Rows as an array; a sparse matrix is filled in."""
    if hasattr(value, "toarray"):
        value = value.toarray()
    return np.asarray(value) if isinstance(value, np.ndarray) or hasattr(value, "to_numpy") else None


def _clusters_of_one(parts: list[Part]) -> list[Holding]:
    """Centres of clusters with a single record, which are that record."""
    found = []
    for part in parts:
        centres, labels = (getattr(part.estimator, name, None) for name in ("cluster_centers_", "labels_"))
        if type(part.estimator).__name__ not in ("KMeans", "BisectingKMeans") or centres is None or labels is None:
            continue
        alone = np.bincount(labels, minlength=len(centres)) == 1
        if alone.any():
            back = undone(np.asarray(centres)[alone], part.before)
            where, count = f"{part.where}.cluster_centers_", int(alone.sum())
            detail = "Centres of clusters with one record, which are that record."
            found.append(Holding(where, "records", count, detail, back.rows, verbatim=not back.obstacle))
    return found


def _leaves(parts: list[Part]) -> list[Holding]:
    """How many leaves of trees hold a single record."""
    alone, total = 0, 0
    for part in parts:
        tree: Any = getattr(part.estimator, "tree_", None)
        if hasattr(tree, "n_node_samples"):
            leaf = tree.children_left < 0
            alone += int((tree.n_node_samples[leaf] == 1).sum())
            total += int(leaf.sum())
    detail = f"The number of records in each of {total:,} leaves; {alone:,} leaves hold one record."
    return [Holding("tree_.n_node_samples", "counts", total, detail)] if total else []


def _unknown_arrays(part: Part, known: TrainingRows) -> Iterator[Holding]:
    """Arrays of any attribute whose rows are training rows, in their own units or before the steps."""
    number = part.where.rpartition("[")[2].rstrip("]")
    if number.isdigit() and int(number) >= _ENSEMBLE:
        return
    for name, value in _attributes(part.estimator).items():
        rows = dense(value)
        if rows is None or rows.ndim != 2 or rows.dtype == object or len(rows) == 0:
            continue
        where = f"{part.where}.{name}"
        back = undone(rows, part.before)
        for candidate in (rows, back.rows):
            held = found_by_comparing(where, candidate, known) if candidate.dtype != object else None
            if held is not None:
                yield held
                break


def _once(found: list[Holding]) -> list[Holding]:
    """One line for what every member of an ensemble holds alike."""
    grouped: dict[tuple[str, str], list[Holding]] = {}
    for holding in found:
        pattern = "".join(_unnumbered(holding.where))
        grouped.setdefault((pattern, holding.kind), []).append(holding)
    once = []
    for (pattern, _), members in grouped.items():
        first = max(members, key=lambda holding: holding.count)
        if len(members) == 1:
            once.append(first)
            continue
        detail = f"{first.detail} In {len(members):,} parts; the largest holds {first.count:,}."
        once.append(Holding(pattern, first.kind, first.count, detail, first.rows, first.verbatim,
                            first.in_training_data))  # fmt: skip
    return once


def _unnumbered(where: str) -> Iterator[str]:
    """The place without the numbers of members: ``estimators_[3]`` as ``estimators_[...]``."""
    for piece in where.split("["):
        number, closed, rest = piece.partition("]")
        yield f"[...]{rest}" if closed and number.isdigit() else (f"[{piece}" if closed else piece)
