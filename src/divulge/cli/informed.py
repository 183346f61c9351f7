"""``divulge informed``: rebuild the one training record that is not known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from divulge.cli.common import Json, Out, Quiet, Seed, session, show
from divulge.errors import AttackFailed, InvalidInput


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
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rebuild the one record that is not known, from the released model and all the others."""
    with session(json=json, quiet=quiet):
        from torch import nn

        from divulge.oracles import load_model

        released = load_model(model, trust_pickle=trust_pickle)
        X, y, truth = _known(Path(model), known, leave_out, data_dir, target)
        name = attack or ("direct" if isinstance(released, nn.Module) else "glm")
        record = _attack(
            name, released, X, y, truth, model=Path(model), recipe=recipe, shadows=shadows, count=shadow_models,
            data_dir=data_dir, target=target, runs=runs, position=leave_out, seed=seed, access=access, probes=probes,
        )  # fmt: skip
        result = record.as_dict()
        lines = [f"{name}: expected mean squared error {record.predicted_error:.3g}, {record.seconds:.1f} s"]
        if truth is not None:
            result["error"] = record.error(truth)
            lines.append(f"The record left out: mean squared error {result['error']:.3g}")
        if record.reason:
            lines.append(record.reason)
        if out is not None:
            import numpy as np

            out.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(out / "record.npz", x=record.x.numpy(), y=np.asarray(record.y))
            lines.append(f"Wrote {out / 'record.npz'}")
        show(result, json_wanted=json, quiet=quiet, text="\n".join(lines))
        if not record.trusted:
            raise AttackFailed(record.reason or "The attack ran and does not trust its own result.")


def _known(
    folder: Path, known: str | None, leave_out: int | None, data_dir: Path | None, target: str | None
) -> tuple[Any, Any, Any]:
    """The known rows, their labels, and the record left out where this is a rehearsal."""
    import torch

    from divulge import datasets

    if known is None and leave_out is None:
        raise InvalidInput("Give the known records with --known, or rehearse with --leave-out ROW.")
    if known is not None:  # what is to be left out is counted in the training part, as an audit counts
        held_out = 0.0 if leave_out is None else 0.2
        X, y = datasets.load(known, data_dir, target=target, test=held_out).train
    else:
        X, y = datasets.recorded(folder, data_dir)
    if leave_out is None:
        return X, y, None
    if not 0 <= leave_out < len(X):
        raise InvalidInput(f"There are {len(X)} training rows; --leave-out takes a number below that, got {leave_out}.")
    keep = torch.arange(len(X)) != leave_out
    return X[keep], y[keep], X[leave_out]


def _attack(
    name: str, released: Any, X: Any, y: Any, truth: Any, *, model: Path, recipe: Path | None, shadows: str | None,
    count: int, data_dir: Path | None, target: str | None, runs: float, position: int | None, seed: int, access: str,
    probes: int,
) -> Any:  # fmt: skip
    from divulge import informed

    if name == "glm":
        return informed.glm(released, X.double().numpy(), y.numpy())
    if name not in ("direct", "ridge", "reconn"):
        raise InvalidInput(f"There is no attack {name!r}; choose glm, direct, ridge or reconn.")
    from divulge.training import Recipe

    how = Recipe.load(recipe or model)
    options: Any = {
        "bounds": (float(X.min()), float(X.max())), "position": position, "seed": seed, "access": access,
        "probes": probes,
    }  # fmt: skip
    if name == "direct":
        return informed.direct(how, released, X, y, runs=runs, **options)
    if shadows is None:
        raise InvalidInput("Shadow models need records of their own; name them with --shadows.")
    from divulge import datasets

    rows, labels = datasets.load(shadows, data_dir, target=target).train
    if truth is not None and rows.shape[1:] == truth.shape:  # a rehearsal does not look at the answer
        other = (rows != truth).flatten(1).any(dim=1)
        rows, labels = rows[other], labels[other]
    method: Any = "ridge" if name == "ridge" else "network"
    attack = informed.reconstructor(how, X, y, rows[:count], labels[:count], method=method, **options)
    return attack(released)
