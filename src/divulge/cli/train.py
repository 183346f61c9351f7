"""``divulge train``: a model to attack, with the recipe and the rows that made it written beside its weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from divulge.cli.common import Json, Quiet, Seed, session, show
from divulge.cli.target_options import DataDir, TargetColumn
from divulge.core.errors import InvalidInput

if TYPE_CHECKING:
    from divulge.datasets import Dataset
    from divulge.datasets.dataset import Bounds
    from divulge.protection import Guarantee
    from divulge.training import Evaluation, Privacy, Recipe


def command(
    data: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="A data set by name, a CSV/Parquet/NPZ file, a folder of pictures.")
    ] = "digits",
    data_dir: DataDir = None,
    target: TargetColumn = None,
    binary: Annotated[
        bool, typer.Option("--binary", help="Two classes: odd digits, or animals, against the rest.")
    ] = False,
    positive: Annotated[
        str | None, typer.Option(metavar="A,B", help="Two classes: these against the rest. Implies --binary.")
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Train on this many rows only.")] = None,
    per_class: Annotated[bool, typer.Option("--per-class", help="--rows of each class.")] = False,
    centred: Annotated[bool, typer.Option("--centred", help="Subtract the training mean from every row.")] = False,
    model: Annotated[
        str | None, typer.Option(metavar="NAME|MODULE:FUNCTION", help="An architecture; --list shows them.")
    ] = None,
    widths: Annotated[str | None, typer.Option(metavar="64,32,10", help="An MLP by its widths.")] = None,
    activation: Annotated[str | None, typer.Option(help="relu (the default), elu, tanh, softplus or sigmoid.")] = None,
    bias: Annotated[
        str | None, typer.Option(help="all (the default), first (a homogeneous network) or none, with --widths.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of --model, such as width=0.25.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="logistic, cross-entropy or square; by default what fits the data.")
    ] = None,
    optimiser: Annotated[str, typer.Option(help="sgd, adam, adamw or rmsprop.")] = "sgd",
    learning_rate: Annotated[float, typer.Option(help="Step size.")] = 0.05,
    momentum: Annotated[float, typer.Option(help="Of sgd and rmsprop.")] = 0.9,
    weight_decay: Annotated[float, typer.Option(help="Added to the gradient, times the weights.")] = 0.0,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's momentum, with sgd.")] = False,
    schedule: Annotated[
        str, typer.Option(help="How the step size falls over training: constant, cosine or linear.")
    ] = "constant",
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 20,
    batch_size: Annotated[int, typer.Option(help="Rows a step; 0 is the full batch.")] = 64,
    initial_scale: Annotated[
        float | None, typer.Option(help="Standard deviation of the first layer's initial weights.")
    ] = None,
    precision: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Train with differential privacy: noise over clipping norm.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Train with differential privacy: the noise that spends this epsilon.")
    ] = None,
    delta: Annotated[float, typer.Option(help="delta of (epsilon, delta)-DP, for private training.")] = 1e-5,
    clip: Annotated[float, typer.Option(help="Clipping norm of private training.")] = 1.0,
    noise_seed: Annotated[
        int | None, typer.Option(help="Seed noise and samples of private training; no guarantee is claimed then.")
    ] = None,
    bounds: Annotated[
        str | None,
        typer.Option(
            metavar="LOW,HIGH|FILE", help="Scale a table by these bounds (a JSON file has them by column), not its own."
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...")] = None,
    list_models: Annotated[bool, typer.Option("--list", help="List architectures and data sets, and stop.")] = False,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the model is written.")] = Path("trained"),
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model and write model.safetensors, model.json, recipe.json and data.json to a folder."""
    with session(json=json, quiet=quiet):
        if list_models:
            _list(json=json, quiet=quiet)
            return
        from divulge.datasets.provenance import DataSelection
        from divulge.training import Recipe

        choice = DataSelection(
            data=data, target=target, binary=binary, positive=tuple(positive.split(",")) if positive else (),
            rows=rows, per_class=per_class, subset_seed=seed, centred=centred, bounds=_bounds(bounds),
        )  # fmt: skip
        dataset = choice.dataset(data_dir)
        given = {name: value for name, value in (("activation", activation), ("bias", bias)) if value is not None}
        chosen = {
            **_shape(dataset, model, widths, loss, {**_options(option), **given}),
            "optimiser": optimiser, "nesterov": nesterov, "schedule": schedule, "precision": precision,
        }  # fmt: skip
        recipe = Recipe(
            **chosen, learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay, epochs=epochs,
            batch_size=batch_size or None, initial_scale=initial_scale, seed=seed,
        )  # fmt: skip
        privacy = _privacy(
            recipe, len(choice.parts(dataset)[0].y), noise=noise_multiplier, epsilon=epsilon, delta=delta, clip=clip,
            noise_seed=noise_seed,
        )  # fmt: skip
        result, text = _train(replace(recipe, privacy=privacy), choice, dataset, out=out, device=device)
        show(result, json_wanted=json, quiet=quiet, text=text)


def _privacy(
    recipe: Recipe,
    records: int,
    *,
    noise: float | None,
    epsilon: float | None,
    delta: float,
    clip: float,
    noise_seed: int | None,
) -> Privacy | None:
    """The privacy that the options ask for."""
    from divulge.protection import privacy_for
    from divulge.training import Privacy

    if noise is not None and epsilon is not None:
        raise InvalidInput("Give --noise-multiplier or --epsilon, not both: one follows from the other.")
    if epsilon is not None:
        privacy = privacy_for(recipe, records, epsilon=epsilon, delta=delta, clip=clip)
    elif noise is not None:
        privacy = Privacy(noise_multiplier=noise, clip=clip, delta=delta)
    elif noise_seed is not None:
        raise InvalidInput("--noise-seed belongs to private training; give --epsilon or --noise-multiplier with it.")
    else:
        return None
    return replace(privacy, noise_seed=noise_seed)


def _bounds(text: str | None) -> Bounds | None:
    """LOW,HIGH for every column, or a JSON file with a pair for each column."""
    import json

    if text is None:
        return None
    try:
        if Path(text).is_file():
            table: dict[str, tuple[float, float]] = {
                str(name): (float(low), float(high)) for name, (low, high) in json.loads(Path(text).read_text()).items()
            }
            return table
        low, high = (float(part) for part in text.split(","))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f'--bounds takes LOW,HIGH or a JSON file such as {{"age": [0, 120]}}; got {text!r}.'
        ) from error
    return low, high


def _options(option: list[str] | None) -> dict[str, Any]:
    """NAME=VALUE pairs, each value as JSON where it is JSON and as text otherwise."""
    import json

    options: dict[str, Any] = {}
    for pair in option or []:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidInput(f"--option takes NAME=VALUE, such as width=0.25; got {pair!r}.")
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    return options


def _shape(
    dataset: Dataset, model: str | None, widths: str | None, loss: str | None, options: dict[str, Any]
) -> dict[str, Any]:
    """The architecture and the loss that fit the data, where the user left them open."""
    if model is not None and widths is not None:
        raise InvalidInput("Give --model or --widths, not both.")
    if widths is not None:
        try:
            numbers = [int(width) for width in widths.split(",")]
        except ValueError as error:
            raise InvalidInput(f"--widths takes whole numbers with commas between, such as 64,32,10; got {widths!r}.") \
                from error  # fmt: skip
        if unknown := set(options) - {"activation", "bias"}:
            raise InvalidInput(f"An MLP by its widths has no option {', '.join(sorted(unknown))}.")
        return {"widths": numbers, "loss": loss or _fitting_loss(dataset, outputs=numbers[-1]), **options}
    loss = loss or _fitting_loss(dataset, outputs=1 if len(dataset.classes) in (0, 2) else len(dataset.classes))
    outputs = 1 if loss == "logistic" or not dataset.classes else len(dataset.classes)
    spec = {"architecture": model or "one-hidden", **options}
    if (
        model is None or ":" not in model
    ):  # divulge's own take their shape from the data; the user's gets its options as given
        spec = {"shape": list(dataset.shape), "outputs": outputs, **spec}
    return {"architecture": spec, "loss": loss}


def _fitting_loss(dataset: Dataset, *, outputs: int) -> str:
    if not dataset.classes:
        return "square"
    return "logistic" if outputs == 1 else "cross-entropy"


def _train(
    recipe: Recipe, choice: Any, dataset: Dataset, *, out: Path, device: str | None
) -> tuple[dict[str, Any], str]:
    import time

    from divulge import models
    from divulge.protection import guarantee_of
    from divulge.training import evaluate

    train, test = choice.parts(dataset)
    started = time.perf_counter()
    model = recipe.train(train.X, train.y, device=device)
    seconds = time.perf_counter() - started
    on_train = evaluate(model, *train, loss=recipe.loss)
    on_test = evaluate(model, *test, loss=recipe.loss) if len(test.y) else None
    models.save(model, out)
    recipe.save(out)
    choice.save(out, dataset)
    result = {
        "folder": str(out), "train": on_train.__dict__, "test": on_test.__dict__ if on_test else None,
        "seconds": seconds, "seed": recipe.seed, "recipe": recipe.as_dict(), "data": choice.data,
    }  # fmt: skip
    text = (
        f"Trained on {on_train.rows} rows of {choice.data} in {seconds:.1f} s.\n"
        + (f"  held out: {_described(on_test)}\n" if on_test else "")
        + f"  training: {_described(on_train)}\n"
        f"Wrote model.safetensors, model.json, recipe.json and data.json to {out}."
    )
    guarantee = guarantee_of(out) if recipe.privacy is not None else None
    if guarantee is not None:
        result["guarantee"] = guarantee.as_dict()
        if guarantee.holds:
            spent = ("epsilon", "delta", "noise_multiplier")
            result["privacy_spent"] = {name: result["guarantee"][name] for name in spent}
        text += f"\nPrivate training, noise multiplier {guarantee.noise_multiplier:.4g}: {_guaranteed(guarantee)}."
    return result, text


def _guaranteed(guarantee: Guarantee) -> str:
    if guarantee.holds or guarantee.noise_multiplier == 0:
        return str(guarantee)
    return f"{guarantee} (unseeded, this noise would spend epsilon {guarantee.accounted_epsilon:.4g})"


def _described(evaluation: Evaluation) -> str:
    if evaluation.accuracy is None:
        return f"mean loss {evaluation.loss:.4g}"
    parts = [f"accuracy {evaluation.accuracy:.1%}"]
    if evaluation.balanced_accuracy is not None:
        parts.append(f"balanced accuracy {evaluation.balanced_accuracy:.1%}")
    if evaluation.auc is not None:
        parts.append(f"AUC {evaluation.auc:.3f}")
    return f"{', '.join(parts)} (loss {evaluation.loss:.3g})"


def _list(*, json: bool, quiet: bool) -> None:
    from divulge import datasets, models

    known = models.names()
    wide = max(map(len, known))
    lines = ["Architectures:", *(f"  {name:<{wide}}  {text}" for name, text in known.items())]
    lines += ["Data sets:", f"  {', '.join(datasets.names())}"]
    show({"models": known, "data": datasets.names()}, json_wanted=json, quiet=quiet, text="\n".join(lines))
