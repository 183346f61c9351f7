"""``divulge reconstruct``: training inputs out of a model's weights, as pictures, with the control beside them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from divulge.cli import reconstruct_from_start
from divulge.cli.common import Json, Quiet, Seed, Workers, jobs_of, seconds_of, session, show
from divulge.cli.target_options import DataDir, TargetColumn, TrustPickle, Unseen
from divulge.core.errors import DivulgeError, InvalidInput

if TYPE_CHECKING:
    from torch import Tensor, nn

    from divulge.reconstruction import Diagnosis, Match, PaperSettings, Reconstruction
    from divulge.reconstruction.from_weights import Method


def command(
    model: Annotated[str, typer.Argument(help="A saved-model folder, .safetensors, .onnx or module:function.")],
    start: Annotated[
        str | None,
        typer.Option(metavar="BASE", help="The model before training, or its recipe.json: attack the difference."),
    ] = None,
    update: Annotated[
        bool,
        typer.Option("--update", help="MODEL is a file of changes to BASE: a gradient, or a client's update."),
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="TRAIN", help="Training data, for scoring only; by default by the data.json beside the model."
        ),
    ] = None,
    data_dir: DataDir = None,
    target_column: TargetColumn = None,
    unseen: Unseen = None,
    n: Annotated[
        int | None, typer.Option(help="How many training inputs; by default estimated from the weights.")
    ] = None,
    mean: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The mean subtracted before training (.npy), if it is known.")
    ] = None,
    know_mean: Annotated[
        bool, typer.Option("--know-mean", help="Let the attacker know the mean of the training data.")
    ] = False,
    value_range: Annotated[
        str | None,
        typer.Option(
            "--range",
            metavar="LOW,HIGH",
            help="Range of the input values, or none; by default 0,1, and none for tables.",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="row-space (ours), paper (Haim et al. 2022 as printed) or kinks (two inputs).")
    ] = "row-space",
    search: Annotated[
        int | None,
        typer.Option(metavar="TRIALS", help="Search for the paper's hyper-parameters first (--method paper)."),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(help="Restarts run together; by default four, or eight where pictures are separated first."),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(help="Time for restarts, such as 90s or 5m; a fifth of it is for the control."),
    ] = None,
    control: Annotated[bool, typer.Option(help="Also attack weights reconnected at random: the control.")] = True,
    trust_pickle: TrustPickle = False,
    workers: Workers = None,
    seed: Seed = 0,
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FOLDER", help="Write results to this folder; an interrupted run continues from it."
        ),
    ] = Path("reconstructed"),
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rebuild training inputs from weights, or from the counts of a forest. Scores where the data is known."""
    with session(json=json, quiet=quiet):
        from divulge import reconstruction
        from divulge.reconstruction import baselines
        from divulge.reconstruction.forest.counts import is_forest

        if update and start is None:
            raise InvalidInput("--update needs --start, the model that the changes belong to.")
        base = None if start is None else reconstruct_from_start.base(start, trust_pickle=trust_pickle)
        loaded = reconstruct_from_start.released(model, base, update=update, trust_pickle=trust_pickle)
        truth = _truth(model, data, data_dir, target_column, unseen)
        if is_forest(loaded):
            from divulge.cli import reconstruct_forest

            limit = None if time is None else seconds_of(time)
            reconstruct_forest.rebuild(loaded, truth.get("train"), limit, seed=seed, out=out, json=json, quiet=quiet)
            return
        module = reconstruct_from_start.network(loaded)
        options: dict[str, Any] = {
            "n": n, "mean": _mean(mean, know_mean, truth), "value_range": _range(value_range, truth), "seed": seed,
            "shape": truth.get("shape"),
        }  # fmt: skip
        limit = None if time is None else seconds_of(time)
        beside = control and method == "row-space" and start is None
        if base is None:
            found = reconstruction.from_weights(
                module, method=cast("Method", method), restarts=restarts,
                settings=_searched(module, method, search, n, seed, out, jobs_of(workers)), workers=jobs_of(workers),
                seconds=limit and (0.8 if beside else 1.0) * limit,
                checkpoint=out / "batches", **options,
            )  # fmt: skip
        else:
            _check_alone(method, search, restarts)
            options["seconds"] = limit
            found = reconstruct_from_start.attack(module, base, update=update, options=options)
        by_chance = None
        if beside:
            broken = baselines.broken(module, seed=seed)
            by_chance = reconstruction.from_weights(
                broken, restarts=restarts, seconds=limit and 0.2 * limit, **{**options, "n": found.rank}
            )
        found.save(out)
        match = _judge(found, module, truth, out)
        diagnosis = _diagnosis(module, truth) if start is None else None
        result = {
            **found.as_dict(), "broken_weights": None if by_chance is None else _few(by_chance),
            "match": None if match is None else match.as_dict(),
            "diagnosis": None if diagnosis is None else diagnosis.as_dict(), "folder": str(out),
        }  # fmt: skip
        show(result, json_wanted=json, quiet=quiet, text=_text(found, by_chance, match, diagnosis, out))
    if not found.success:
        raise typer.Exit(3)


def _check_alone(method: str, search: int | None, restarts: int | None) -> None:
    if method != "row-space" or search is not None or restarts is not None:
        raise InvalidInput("--start has no restarts to set: leave out --method, --search and --restarts.")


def _truth(
    model: str, data: str | None, data_dir: Path | None, column: str | None, unseen: str | None
) -> dict[str, Any]:
    """Training inputs and unseen ones as the model takes them, the mean between them and pictures, and their shape."""
    from divulge.datasets import provenance

    known = provenance.data_of_model(model, data, data_dir, target=column, unseen=unseen)
    if known is None:
        return {}
    return {
        "train": known.train.X, "labels": known.train.y, "unseen": known.unseen,
        "mean": known.mean, "shape": _pictures(known.shape),
    }  # fmt: skip


def _searched(
    module: nn.Module, method: str, trials: int | None, n: int | None, seed: int, out: Path, workers: int | str | None
) -> PaperSettings | None:
    """The best settings of a search by short runs, kept in the results' folder so that it may go on another time."""
    if trials is None:
        return None
    if method != "paper" or n is None:
        raise InvalidInput("--search is for --method paper, and needs --n, the number of training inputs.")
    from dataclasses import replace

    from divulge import reconstruction

    out.mkdir(parents=True, exist_ok=True)
    usual = reconstruction.PaperSettings()
    best = reconstruction.search(
        module, n=n, trials=trials, settings=replace(usual, iterations=500), storage=out / "search.db", seed=seed,
        workers=workers,
    )  # fmt: skip
    return replace(best.settings, iterations=usual.iterations)


def _pictures(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    return tuple(shape) if len(shape) == 3 else None


def _mean(path: Path | None, known: bool, truth: dict[str, Any]) -> Tensor | None:
    import numpy as np
    import torch

    if path is not None and known:
        raise InvalidInput("Give --mean or --know-mean, not both.")
    if path is not None:
        try:
            return torch.as_tensor(np.load(path, allow_pickle=False)).double().reshape(-1)
        except (OSError, ValueError, TypeError) as error:
            raise InvalidInput(f"{path} does not hold an array of numbers as numpy.save writes it: {error}.") from error
    if known:
        if not truth:
            raise InvalidInput("--know-mean needs the training data: give --data, or data.json beside the model.")
        mean = truth["mean"]
        return torch.zeros(truth["train"][0].numel(), dtype=torch.float64) if mean is None else mean.double()
    return None


def _range(text: str | None, truth: dict[str, Any]) -> tuple[float, float] | None:
    if text is None:
        return None if truth and truth["shape"] is None else (0.0, 1.0)
    if text.strip().lower() == "none":
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidInput(f"--range takes two numbers with a comma between, such as 0,1, or none; got {text!r}.") \
            from error  # fmt: skip
    return low, high


def _judge(found: Reconstruction, module: nn.Module, truth: dict[str, Any], out: Path) -> Match | None:
    """Scores and figures, where training data is there to score by."""
    if not truth:
        return None
    import torch

    match = found.match(truth["train"], truth["unseen"], mean=truth["mean"])
    if match.shape is not None and len(found.samples):
        match.picture(out / "pairs.png")
    with torch.no_grad():
        outputs = module(truth["train"].to(next(module.parameters())))
    match.margin_plot(out / "margins.png", outputs)
    return match


def _diagnosis(module: nn.Module, truth: dict[str, Any]) -> Diagnosis | None:
    """How near the model is to where its weights tell its data, if data is there that it can be asked of."""
    from divulge import reconstruction

    try:
        return reconstruction.diagnose(module, truth["train"], truth["labels"]) if truth else None
    except DivulgeError:
        return None


def _few(found: Reconstruction) -> dict[str, Any]:
    top = float(found.confidence.max()) if len(found.samples) else 0.0
    return {"found": len(found.samples), "highest_confidence": top, "residual": found.residual}


def _text(
    found: Reconstruction, by_chance: Reconstruction | None, match: Match | None, diagnosis: Diagnosis | None, out: Path
) -> str:
    lines = [
        f"{len(found.samples)} samples agreed on by {found.restarts} restarts in {found.seconds:.0f} s "
        f"(the first layer shows {found.rank} training inputs)."
    ]
    if found.method == "paper":
        lines = [f"{len(found.samples)} samples by the printed method in {found.seconds:.0f} s; it does not rank them."]
    if found.method == "known-start":
        lines = [
            f"{len(found.samples)} inputs out of the difference to the start in {found.seconds:.0f} s "
            f"(its rank is {found.rank})."
        ]
    if found.reason:
        lines.append(found.reason)
    lines += found.notes
    if by_chance is not None:
        lines.append(f"Control: the same attack on broken weights agrees on {len(by_chance.samples)}.")
    if match is not None:
        scored = (
            f"{match.found()} of {len(match.correlation)} training inputs found at correlation {match.threshold:.2f}"
        )
        if match.control is not None:
            scored += (
                f", which {match.false_positive_rate:.1%} of {len(match.control.correlation)} unseen inputs pass"
                f" (p = {match.p_value:.2g})"
            )
        lines.append(scored + ".")
    if diagnosis is not None:
        lines.append(diagnosis.sentence())
    lines.append(f"Wrote the samples to {out}.")
    return "\n".join(lines)
