"""``divulge informed`` for a pipeline that takes a table of mixed columns: the missing row, column by column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from divulge.core.errors import InvalidInput
from divulge.core.storage import replacing, write_json


def takes_mixed_columns(released: Any) -> bool:
    """Whether this is a pipeline that begins with a ColumnTransformer, or a search that found one."""
    found = getattr(released, "best_estimator_", released)
    return hasattr(found, "steps") and hasattr(found[0], "transformers_")


def rebuild(
    released: Any, known: str | None, leave_out: int | None, target: str | None, seed: int, out: Path | None
) -> tuple[Any, dict[str, Any], str]:
    """The record, the result for programs and the text for the terminal."""
    import numpy as np

    from divulge import informed
    from divulge.datasets import user_files

    if known is None:
        raise InvalidInput("This pipeline takes a table of mixed columns; give the known rows with --known FILE.")
    table, y = user_files.frame(Path(known), target)
    truth = None
    if leave_out is not None:
        if not 0 <= leave_out < len(table):
            raise InvalidInput(f"There are {len(table)} rows; --leave-out takes a number below that, got {leave_out}.")
        keep = np.arange(len(table)) != leave_out
        truth, table, y = {str(name): table.iloc[leave_out][name] for name in table.columns}, table[keep], y[keep]
    record = informed.glm(released, table, y, seed=seed)
    assert record.row is not None  # as the pipeline begins with a ColumnTransformer
    result = record.as_dict() | {
        "row": {name: _plain(value) for name, value in record.row.items()},
        "not_rebuilt": [name for name, value in record.row.items() if value is None],
    }
    if truth is not None:
        result["left_out"] = {name: _plain(value) for name, value in truth.items()}
    sides = {"rebuilt": record.row} | ({} if truth is None else {"left out": truth})
    if out is not None:
        write_json(out / "record.json", result)
        _write_csv(out / "record.csv", sides)
    return record, result, _text(record, sides, out)


def _plain(value: Any) -> Any:
    """A value of a table as JSON has it; None for one that is missing or was not rebuilt."""
    value = value.item() if hasattr(value, "item") else value
    return None if value is None or value != value else value  # NaN alone differs from itself


def _lines(sides: dict[str, Any], cell: Callable[[Any], str]) -> list[tuple[str, ...]]:
    """The columns' names, and their values on each side."""
    return [("column", *sides), *((name, *(cell(side[name]) for side in sides.values())) for name in sides["rebuilt"])]


def _exactly(value: Any) -> str:
    return "-" if value is None else "missing" if _plain(value) is None else str(_plain(value))


def _shown(value: Any) -> str:
    value = _plain(value) if isinstance(_plain(value), float) else _exactly(value)
    return f"{value:.6g}" if isinstance(value, float) else "\\n".join(value.splitlines())


def _write_csv(path: Path, sides: dict[str, Any]) -> None:
    import csv

    with replacing(path) as part, part.open("w", newline="") as file:
        csv.writer(file).writerows(_lines(sides, _exactly))


def _text(record: Any, sides: dict[str, Any], out: Path | None) -> str:
    rows = _lines(sides, _shown)
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append(f"label: {record.y}; expected mean squared error of its features {record.predicted_error:.3g}")
    lines += [record.reason] if record.reason else []
    lines += record.notes
    return "\n".join([*lines, *([f"Wrote the record to {out}."] if out is not None else [])])
