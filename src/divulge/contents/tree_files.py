"""What the files of boosted trees hold of the training table beside their trees.

LightGBM writes the smallest and largest value of every column (``feature_infos``), the categories of pandas columns
(``pandas_categorical``), and the number of records in every leaf. XGBoost writes its starting value (``base_score``),
which by default is fitted to the targets, and the weight of the records in every leaf. CatBoost writes that weight too.
"""

from __future__ import annotations

import json
from typing import Any

from divulge.contents.result import Holding

_LISTED = "["


def holdings(model: Any) -> list[Holding]:
    """What an XGBoost, LightGBM or CatBoost model holds."""
    if type(model).__module__.startswith("catboost"):
        return _catboost(model)
    if type(model).__module__.startswith("xgboost"):
        return _xgboost(model.get_booster() if hasattr(model, "get_booster") else model)
    return _lightgbm(getattr(model, "booster_", model))


def _lightgbm(booster: Any) -> list[Holding]:
    text = booster.model_to_string()
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("["))
    infos = lines.get("feature_infos", "").split()
    ranges = [info for info in infos if info.startswith(_LISTED)]
    found = []
    if ranges:
        detail = "The smallest and the largest value of every column that it uses."
        found.append(Holding("feature_infos", "values", 2 * len(ranges), detail))
    categories = [info for info in infos if info != "none" and not info.startswith(_LISTED)]
    if categories:
        count = sum(len(info.split(":")) for info in categories)
        found.append(Holding("feature_infos", "categories", count, "The codes of every category in the records."))
    found += _pandas_categories(text)
    leaves = [int(count) for line in text.splitlines() if line.startswith("leaf_count=")
              for count in line.partition("=")[2].split()]  # fmt: skip
    if leaves:
        detail = f"The number of records in each of {len(leaves):,} leaves; the smallest holds {min(leaves):,}."
        found.append(Holding("leaf_count", "counts", len(leaves), detail))
    return found


def _catboost(model: Any) -> list[Holding]:
    leaves = [float(weight) for weight in model.get_leaf_weights()]
    if not leaves:
        return []
    detail = f"The weight of the records in each of {len(leaves):,} leaves; the smallest holds {min(leaves):g}."
    return [Holding("leaf_weights", "counts", len(leaves), detail)]


def _pandas_categories(text: str) -> list[Holding]:
    line = next((line for line in reversed(text.splitlines()) if line.startswith("pandas_categorical:")), "")
    listed = json.loads(line.partition(":")[2] or "null") if line else None
    count = sum(len(column) for column in listed or [])
    detail = "The categories of the columns of the training table, in words."
    return [Holding("pandas_categorical", "categories", count, detail)] if count else []


def _xgboost(booster: Any) -> list[Holding]:
    config = json.loads(booster.save_config())["learner"]["learner_model_param"]
    found = []
    if config.get("boost_from_average", "1") == "1":
        detail = f"The starting value {config['base_score'].strip('[]')}; fitted to the targets unless it was set."
        found.append(Holding("base_score", "counts", 1, detail))
    return found
