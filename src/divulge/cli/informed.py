"""``divulge informed``: rebuild the one training record that is not known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from divulge.cli.common import Json, Out, Quiet, Seed, Workers, jobs_of, session, show
from divulge.cli.informed_table import rebuild, takes_mixed_columns
from divulge.cli.target_options import DataDir, RecipeFile, TargetColumn, TrustPickle
from divulge.core.errors import AttackFailed, InvalidInput
from divulge.core.storage import replacing, write_arrays, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from divulge.datasets.provenance import ModelData
    from divulge.informed import BaselineErrors, Record


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
    data_dir: DataDir = None,
    target: TargetColumn = None,
    recipe: RecipeFile = None,
    attack: Annotated[
        str | None,
        typer.Option(help="glm (estimators), direct, ridge, network or paper; by default the one that fits."),
    ] = None,
    shadows: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Records to train shadow models with (ridge, network, paper)."),
    ] = None,
    shadow_models: Annotated[int, typer.Option(help="How many shadow models.")] = 1000,
    access: Annotated[
        str, typer.Option(help="What the adversary sees of a network: weights, or logits on probe rows.")
    ] = "weights",
    probes: Annotated[int, typer.Option(help="How many rows are asked with --access logits.")] = 200,
    runs: Annotated[float, typer.Option(help="Training runs that the direct attack may take.")] = 90,
    trust_pickle: TrustPickle = False,
    workers: Workers = None,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rebuild the one unknown training record, from the released model and all other records.

    With --out the record is written as NPZ and JSON, and as a picture or table beside the nearest known record. Shadow
    models are kept there too, and an interrupted run continues from them. Exits 3 if the record is not trusted.
    """
    with session(json=json, quiet=quiet):
        from torch import nn

        from divulge import informed
        from divulge.oracles import load_model

        released = load_model(model, trust_pickle=trust_pickle)
        if takes_mixed_columns(released):
            if attack not in (None, "glm"):
                raise InvalidInput(f"A pipeline for tables of mixed columns is attacked by glm, not by {attack}.")
            record, result, text = rebuild(released, known, leave_out, target, seed, out)
            show(result, json_wanted=json, quiet=quiet, text=text)
            if not record.trusted:
                raise AttackFailed(record.reason)
            return
        rest = _known(Path(model), released, known, leave_out, data_dir, target)
        name = attack or ("direct" if isinstance(released, nn.Module) else "glm")
        record = _attack(
            name, released, rest, model=Path(model), recipe=recipe, shadows=shadows, count=shadow_models,
            data_dir=data_dir, target=target, runs=runs, position=leave_out, seed=seed, access=access, probes=probes,
            folder=None if out is None else out / "shadows", workers=jobs_of(workers),
        )  # fmt: skip
        judged, label = (record.x, record.y) if rest.truth is None else (rest.truth, rest.label)
        scale = 1.0 if record.scale is None else record.scale
        beside = informed.baseline_errors(judged.reshape(1, -1) / scale, [label], rest.X.flatten(1) / scale, rest.y)
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
    """What the adversary knows, the shape of a record, and in a rehearsal the record left out."""

    X: Tensor
    y: Tensor
    shape: tuple[int, ...]
    columns: tuple[str, ...]
    mean: Tensor | float
    """What was subtracted from pictures before training."""
    truth: Tensor | None = None
    label: Any = None


def _known(
    folder: Path, released: Any, known: str | None, leave_out: int | None, data_dir: Path | None, target: str | None
) -> _Rest:
    import torch

    from divulge.datasets import provenance

    if known is None and leave_out is None:
        raise InvalidInput("Give the known records with --known, or rehearse with --leave-out ROW.")
    data = provenance.data_of_model(folder, known, data_dir, target=target)
    if data is None:
        raise InvalidInput(f"{folder / 'data.json'} is not there; say with --known which rows were trained on.")
    X, y = _as_fitted(data, released)
    mean: Tensor | float = 0.0 if data.mean is None else data.mean
    if leave_out is None:
        return _Rest(X, y, data.shape, data.columns, mean)
    if not 0 <= leave_out < len(X):
        raise InvalidInput(f"There are {len(X)} training rows; --leave-out takes a number below that, got {leave_out}.")
    keep = torch.arange(len(X)) != leave_out
    return _Rest(X[keep], y[keep], data.shape, data.columns, mean, X[leave_out], y[leave_out].item())


def _as_fitted(data: ModelData, released: Any) -> tuple[Tensor, Tensor]:
    """The training rows with labels as the released model was fitted with them."""
    import numpy as np
    import torch

    import divulge

    if not data.classes:  # numbered as the model was trained
        return data.train.X, data.train.y
    view = divulge.oracle(released, access="value")
    X, y = data.numbered_for(view.output_dim, view.class_names).train
    classes = np.asarray(getattr(released, "classes_", ()))
    known = {*data.classes} <= {*view.class_names} and classes.dtype.kind in "fiub"
    return X, torch.from_numpy(classes)[y] if known else y


def _attack(
    name: Any, released: Any, rest: _Rest, *, model: Path, recipe: Path | None, shadows: str | None, count: int,
    data_dir: Path | None, target: str | None, runs: float, position: int | None, seed: int, access: str, probes: int,
    folder: Path | None, workers: int | str | None,
) -> Any:  # fmt: skip
    from divulge import informed

    if name == "glm":
        return informed.glm(released, rest.X.double().numpy(), rest.y.numpy())
    if name not in ("direct", "ridge", "network", "paper"):
        raise InvalidInput(f"There is no attack {name!r}; choose glm, direct, ridge, network or paper.")
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
        how, rest.X, rest.y, rows[:count], labels[:count], method=name, folder=folder, workers=workers, **options
    )
    return attack(released)


def _write(out: Path, record: Record, rest: _Rest, beside: BaselineErrors, result: dict[str, Any]) -> None:
    """The record for programs (NPZ, JSON) and for eyes: a picture, or a table with a line for each column."""
    import csv

    import numpy as np

    from divulge import informed

    write_arrays(out / "record.npz", {"x": record.x.numpy(), "y": np.asarray(record.y)})
    write_json(out / "record.json", result)
    if len(rest.shape) == 3:
        targets = None if rest.truth is None else (rest.truth + rest.mean)[None]
        seen = replace(record, x=record.x + rest.mean)
        informed.picture([seen], targets, rest.X + rest.mean, beside.neighbour, out / "record.png", shape=rest.shape)
        return
    table = {"rebuilt": record.x, "nearest known": rest.X[beside.neighbour[0]]}
    if rest.truth is not None:
        table["left out"] = rest.truth
    names = rest.columns or tuple(str(number) for number in range(record.x.numel()))
    with replacing(out / "record.csv") as part, part.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["column", *table])
        lines.writerows(zip(names, *(values.flatten().tolist() for values in table.values()), strict=True))


def _text(name: str, record: Record, rest: _Rest, result: dict[str, Any], out: Path | None) -> str:
    units = "" if record.scale is None else " (errors are in units of each column's spread)"
    lines = [f"{name}: expected mean squared error {record.predicted_error:.3g}, {record.seconds:.1f} s{units}"]
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
