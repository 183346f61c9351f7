"""``divulge informed``: rebuild the one training record that is not known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from divulge.cli.common import Json, Out, Quiet, Seed, Workers, jobs_of, session, show
from divulge.errors import AttackFailed, InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

    from divulge.informed import Record, Yardsticks


def command(
    model: Annotated[str, typer.Argument(help="The released model: a folder or file, or a pickled estimator.")],
    known: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="All training records but one, in order; with --leave-out, all."),
    ] = None,
    leave_out: Annotated[
        int | None,
        typer.Option(metavar="ROW", help="Rehearse: leave out this row of --known, or of data.json beside the model."),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where named picture sets lie.")] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="What is predicted, of your own table.")] = None,
    recipe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="recipe.json; taken from beside the model if there.")
    ] = None,
    attack: Annotated[
        str | None, typer.Option(help="glm (estimators), direct, ridge or reconn; by default what fits.")
    ] = None,
    shadows: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Records to train shadow models with (ridge, reconn).")
    ] = None,
    shadow_models: Annotated[int, typer.Option(help="How many shadow models.")] = 1000,
    access: Annotated[
        str, typer.Option(help="What the adversary sees of a network: weights, or logits on probe rows.")
    ] = "weights",
    probes: Annotated[int, typer.Option(help="How many rows are asked with --access logits.")] = 200,
    runs: Annotated[float, typer.Option(help="Training runs the direct attack may spend.")] = 90,
    trust_pickle: Annotated[bool, typer.Option("--trust-pickle", help="Load pickled models; they run code.")] = False,
    workers: Workers = None,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rebuild the one record that is not known, from the released model and all the others.

    With --out the record is written as NPZ and JSON and, beside the nearest record that is known anyway, as a picture
    or as a table; shadow models are kept there too, and a run that died goes on from them.
    """
    with session(json=json, quiet=quiet):
        from torch import nn

        from divulge import informed
        from divulge.oracles import load_model

        released = load_model(model, trust_pickle=trust_pickle)
        rest = _known(Path(model), known, leave_out, data_dir, target)
        name = attack or ("direct" if isinstance(released, nn.Module) else "glm")
        record: Record = _attack(
            name, released, rest, model=Path(model), recipe=recipe, shadows=shadows, count=shadow_models,
            data_dir=data_dir, target=target, runs=runs, position=leave_out, seed=seed, access=access, probes=probes,
            folder=None if out is None else out / "shadows", workers=jobs_of(workers),
        )  # fmt: skip
        judged, label = (record.x, record.y) if rest.truth is None else (rest.truth, rest.label)
        beside = informed.yardsticks(judged.reshape(1, -1), [label], rest.X, rest.y)
        result = {
            **record.as_dict(), "nearest": float(beside.nearest[0]), "nearest_row": int(beside.neighbour[0]),
            "class_mean": float(beside.class_mean[0]),
        }  # fmt: skip
        if rest.truth is not None:
            result["error"] = record.error(rest.truth)
        if out is not None:
            _write(out, record, rest, beside, result)
        show(result, json_wanted=json, quiet=quiet, text=_text(name, record, rest, result, out))
        if not record.trusted:
            raise AttackFailed(record.reason or "The attack ran and does not trust its own result.")


@dataclass(frozen=True)
class _Rest:
    """What the adversary knows, how a record looks, and the record left out where this is a rehearsal."""

    X: Tensor
    y: Tensor
    shape: tuple[int, ...]
    columns: tuple[str, ...]
    mean: Tensor | float
    """What was subtracted from pictures before training."""
    truth: Tensor | None = None
    label: Any = None


def _known(folder: Path, known: str | None, leave_out: int | None, data_dir: Path | None, target: str | None) -> _Rest:
    import torch

    from divulge.datasets import record

    if known is None and leave_out is None:
        raise InvalidInput("Give the known records with --known, or rehearse with --leave-out ROW.")
    told = record.known(folder, known, data_dir, target=target)
    if told is None:
        raise InvalidInput(f"{folder / 'data.json'} is not there; say with --known which rows were trained on.")
    X, y = told.train
    mean: Tensor | float = 0.0 if told.mean is None else told.mean
    if leave_out is None:
        return _Rest(X, y, told.shape, told.columns, mean)
    if not 0 <= leave_out < len(X):
        raise InvalidInput(f"There are {len(X)} training rows; --leave-out takes a number below that, got {leave_out}.")
    keep = torch.arange(len(X)) != leave_out
    return _Rest(X[keep], y[keep], told.shape, told.columns, mean, X[leave_out], y[leave_out].item())


def _attack(
    name: str, released: Any, rest: _Rest, *, model: Path, recipe: Path | None, shadows: str | None, count: int,
    data_dir: Path | None, target: str | None, runs: float, position: int | None, seed: int, access: str, probes: int,
    folder: Path | None, workers: int | str | None,
) -> Any:  # fmt: skip
    from divulge import informed

    if name == "glm":
        return informed.glm(released, rest.X.double().numpy(), rest.y.numpy())
    if name not in ("direct", "ridge", "reconn"):
        raise InvalidInput(f"There is no attack {name!r}; choose glm, direct, ridge or reconn.")
    from divulge.training import Recipe

    how = Recipe.load(recipe or (model if model.is_dir() else model.parent))
    options: Any = {
        "bounds": (float(rest.X.min()), float(rest.X.max())), "position": position, "seed": seed, "access": access,
        "probes": probes,
    }  # fmt: skip
    if name == "direct":
        return informed.direct(how, released, rest.X, rest.y, runs=runs, **options)
    if shadows is None:
        raise InvalidInput("Shadow models need records of their own; name them with --shadows.")
    from divulge import datasets

    rows, labels = datasets.load(shadows, data_dir, target=target).train
    if rest.truth is not None and rows.shape[1:] == rest.truth.shape:  # a rehearsal does not look at the answer
        other = (rows != rest.truth).flatten(1).any(dim=1)
        rows, labels = rows[other], labels[other]
    attack = informed.reconstructor(
        how, rest.X, rest.y, rows[:count], labels[:count], method="ridge" if name == "ridge" else "network",
        folder=folder, workers=workers, **options,
    )  # fmt: skip
    return attack(released)


def _write(out: Path, record: Record, rest: _Rest, beside: Yardsticks, result: dict[str, Any]) -> None:
    """The record for programs (NPZ, JSON) and for eyes: a picture, or a table with a line for each column."""
    import csv
    import json

    import numpy as np

    from divulge import informed

    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / "record.npz", x=record.x.numpy(), y=np.asarray(record.y))
    (out / "record.json").write_text(json.dumps(result, indent=1) + "\n")
    if len(rest.shape) == 3:
        targets = None if rest.truth is None else (rest.truth + rest.mean)[None]
        seen = replace(record, x=record.x + rest.mean)
        informed.picture([seen], targets, rest.X + rest.mean, beside.neighbour, out / "record.png", shape=rest.shape)
        return
    table = {"rebuilt": record.x, "nearest known": rest.X[beside.neighbour[0]]}
    if rest.truth is not None:
        table["left out"] = rest.truth
    names = rest.columns or tuple(str(number) for number in range(record.x.numel()))
    with (out / "record.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["column", *table])
        lines.writerows(zip(names, *(values.flatten().tolist() for values in table.values()), strict=True))


def _text(name: str, record: Record, rest: _Rest, result: dict[str, Any], out: Path | None) -> str:
    lines = [f"{name}: expected mean squared error {record.predicted_error:.3g}, {record.seconds:.1f} s"]
    mean = "mean of all" if rest.y.is_floating_point() else "mean of its class"
    near = f"the nearest known record is at {result['nearest']:.3g}, the {mean} at {result['class_mean']:.3g}"
    if rest.truth is None:
        lines.append(f"Seen from the rebuilt record, {near}.")
    else:
        lines.append(f"The record left out: mean squared error {result['error']:.3g}; without any attack, {near}.")
    if record.reason:
        lines.append(record.reason)
    lines += record.notes
    if out is not None:
        lines.append(f"Wrote the record to {out}.")
    return "\n".join(lines)
