"""``divulge informed`` for a pipeline that takes a table of mixed columns: the missing row, column by column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from divulge.core.errors import InvalidInput
from divulge.core.storage import replacing, write_json


def takes_mixed_columns(released: Any) -> bool:
    """Whether this is a pipeline that begins with a ColumnTransformer."""
    return hasattr(released, "steps") and hasattr(released[0], "transformers_")


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
    result = record.as_dict() | {"row": {name: _plain(value) for name, value in record.row.items()}}
    if truth is not None:
        result["left_out"] = {name: _plain(value) for name, value in truth.items()}
    if out is not None:
        write_json(out / "record.json", result)
        _write_csv(out / "record.csv", result)
    return record, result, _text(record, result, out)


def _plain(value: Any) -> Any:
    """A value of a table as JSON has it; None for one that is missing or was not rebuilt."""
    value = value.item() if hasattr(value, "item") else value
    return None if value is None or value != value else value  # NaN alone differs from itself


def _lines(result: dict[str, Any]) -> list[tuple[str, ...]]:
    sides = [result["row"], *([result["left_out"]] if "left_out" in result else [])]
    return [(name, *(_cell(side[name]) for side in sides)) for name in result["row"]]


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _write_csv(path: Path, result: dict[str, Any]) -> None:
    import csv

    with replacing(path) as part, part.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["column", "rebuilt", *(["left out"] if "left_out" in result else [])])
        lines.writerows(_lines(result))


def _text(record: Any, result: dict[str, Any], out: Path | None) -> str:
    head = ("column", "rebuilt", *(("left out",) if "left_out" in result else ()))
    rows = [head, *_lines(result)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append(f"label: {record.y}; expected mean squared error of its features {record.predicted_error:.3g}")
    lines += [record.reason] if record.reason else []
    lines += record.notes
    return "\n".join([*lines, *([f"Wrote the record to {out}."] if out is not None else [])])
