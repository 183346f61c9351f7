"""The part of ``divulge extract`` that learns a copy: ``--method training``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from divulge.cli.common import show
from divulge.errors import DivulgeError, InvalidInput

if TYPE_CHECKING:
    from divulge.datasets import Dataset
    from divulge.extraction import Extraction
    from divulge.oracles import Oracle


def learn(
    oracle: Oracle,
    *,
    student: str | None,
    queries: str,
    data: str,
    choose: str,
    access: str,
    seed: int,
    out: Path | None,
    json: bool,
    quiet: bool,
) -> None:
    """One copy for each number of queries, the last of them kept; shows how well each agrees with the target."""
    import divulge

    if student is None:
        raise InvalidInput("--method training needs --student: softmax, one-hidden, two-conv, vgg11 or resnet18.")
    counts = _counts(queries)
    loaded = None if data == "gaussian" else divulge.datasets.load(data)
    inputs: Any = "gaussian" if loaded is None else loaded.train.X
    match: Any = "values" if access == "value" else "both"
    points: list[dict[str, Any]] = []
    for count in counts:
        stopped: DivulgeError | None = None
        try:
            copy = divulge.extraction.by_training(
                oracle, student, inputs, queries=count, match=match, choose=choose, seed=seed  # type: ignore[arg-type]
            )  # fmt: skip
        except DivulgeError as error:
            if not isinstance(error.partial, divulge.extraction.Extraction):
                raise
            copy, stopped = error.partial, error
        points.append({"queries": copy.queries, **_judged(copy, loaded, oracle.threshold), **copy.as_dict()["facts"]})  # type: ignore[dict-item]
        if stopped is not None or count == counts[-1]:
            _deliver(copy, points, out, json=json, quiet=quiet)
        if stopped is not None:
            raise stopped


def _counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidInput(f"--queries takes numbers such as 10,100,1000; got {text!r}.") from error
    if min(counts) < 1:
        raise InvalidInput(f"--queries takes numbers of at least 1; got {text!r}.")
    return sorted(set(counts))


def _judged(copy: Extraction, data: Dataset | None, threshold: float) -> dict[str, float]:
    """How many of the data set's own test labels the copy gets right; it is judged by them and never learned from."""
    if data is None or not data.classes:
        return {}
    import torch

    from divulge.extraction.students import logits_of
    from divulge.oracles.base import decide

    X, y = data.test
    X = X.to(next(copy.model.parameters()).dtype)
    with torch.no_grad():
        got = torch.cat([decide(logits_of(copy.model)(part), threshold) for part in torch.split(X, 500)])
    return {"accuracy": float((got == y).double().mean())}


def _deliver(copy: Extraction, points: list[dict[str, Any]], out: Path | None, *, json: bool, quiet: bool) -> None:
    from json import dumps

    result = {**copy.as_dict(), "points": points}
    if out is not None:
        copy.save(out)
        (out / "extraction.json").write_text(dumps(result, indent=2, default=str) + "\n")
        result["out"] = str(out)
    show(result, json_wanted=json, quiet=quiet, text="\n".join([*map(_line, points), *_rest(copy, out)]))


def _line(point: dict[str, Any]) -> str:
    held = point.get("agreement_on_held_out_queries")
    said = [f"{100 * point['accuracy']:.1f} % of the test labels right"] if "accuracy" in point else []
    said += (
        [f"{100 * held:.1f} % agreement on {point['held_out_queries']} held-out queries"] if held is not None else []
    )
    return f"{point['queries']:,} queries: {', '.join(said) or 'learned; no data to judge it by'}"


def _rest(copy: Extraction, out: Path | None) -> list[str]:
    notes = [f"note: {note}" for note in copy.notes]
    return [*notes, *([f"the last copy is written to {out}"] if out is not None else [])]
