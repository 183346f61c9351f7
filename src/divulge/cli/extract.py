"""``divulge extract``: copy a model from its answers, with the error of the copy and its cost in queries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from divulge.cli.common import Json, Out, Quiet, Seed, Workers, deliver_copy, session
from divulge.cli.target_options import Budget, Connection, Journal, Target, TargetColumn, opened, with_connection
from divulge.core.errors import DivulgeError, InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

    from divulge.extraction import Extraction
    from divulge.oracles import Oracle

METHODS = {
    "gradient": ("default", "deep", "paper", "softmax", "training", "training-paper"),
    "value": ("default", "paper", "worst-case", "last-layer", "trees", "training", "training-paper"),
    "label": ("default",),
}
TAKES_DATA = ("default", "trees")
"""Exact attacks that may ask around given rows."""
NOT_COPIED = 3


@with_connection
def command(
    target: Target,
    access: Annotated[str, typer.Option(help="What the attacker may see: gradient, value or label.")] = "gradient",
    budget: Budget = None,
    width: Annotated[int | None, typer.Option(help="Hidden neurons, if known; only --method paper needs it.")] = None,
    method: Annotated[
        str,
        typer.Option(
            help="default, deep (the same), paper or softmax with gradients; default, paper, worst-case, "
            "last-layer or trees with values; training or training-paper with either; default with labels."
        ),
    ] = "default",
    precision: Annotated[str, typer.Option(help="native, or double to ask a float64 copy of the model.")] = "native",
    output: Annotated[
        str | None, typer.Option(help="What the model shows: logits or probabilities; or an ONNX output's name.")
    ] = None,
    checks: Annotated[
        int | None, typer.Option(help="Fresh rows to verify the copy on; training: test rows whose labels are asked.")
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help="label: standard deviation of the inputs among which the boundary is searched.")
    ] = None,
    bounds: Annotated[
        str | None, typer.Option(metavar="0,1", help="label: the smallest and the largest input that may be asked.")
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write the copy as model.onnx too.")] = False,
    journal: Journal = None,
    connection: Connection = Connection(),
    student: Annotated[
        str | None, typer.Option(metavar="NAME", help="training: what to fit, such as one-hidden or two-conv.")
    ] = None,
    queries: Annotated[str, typer.Option(metavar="10,100", help="training: one copy for each number.")] = "100",
    data: Annotated[
        str, typer.Option(help="Inputs like the model's own, to ask around: a data set, a path, or gaussian.")
    ] = "gaussian",
    target_column: TargetColumn = None,
    choose: Annotated[str, typer.Option(help="training: which inputs to ask: random, k-means or active.")] = "random",
    ensemble: Annotated[int, typer.Option(help="training: students whose logits are averaged.")] = 1,
    unlabelled: Annotated[
        str | None, typer.Option(metavar="DATA", help="training: more inputs that the students label and learn from.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="training: steps of each fit; by default by the number of queries.")
    ] = None,
    guard: Annotated[
        str, typer.Option(help="Defences in front of the model, such as round:6, smoothgrad:0.3 or saliency.")
    ] = "",
    workers: Workers = None,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Copy a model from its gradients, values or labels. Exits 3 if no copy was found, 4 without budget."""
    with session(json=json, quiet=quiet):
        _check(access, method)
        oracle = opened(
            target, connection, access=access, budget=budget, precision=precision, output=output, journal=journal
        )  # fmt: skip
        if method.startswith("training"):
            from divulge.cli.extract_by_training import Asked, learn

            asked = Asked(
                student, queries, data, target_column, unlabelled, choose, ensemble, steps, guard, access, method,
                checks or 0, seed, workers,
            )  # fmt: skip
            learn(oracle, asked, out=out, json=json, quiet=quiet)
            return
        _for_training(student=student, queries=queries != "100", choose=choose != "random",
                      ensemble=ensemble != 1, unlabelled=unlabelled, steps=steps, workers=workers)  # fmt: skip
        inputs = _inputs(target, data, target_column, method)
        oracle = _guarded(oracle, guard)
        if access == "label":
            from divulge.cli.extract_from_labels import Asked as FromLabels
            from divulge.cli.extract_from_labels import rebuild

            asked_labels = FromLabels(inputs=inputs, scale=scale, bounds=bounds, checks=checks, seed=seed)
            rebuild(oracle, asked_labels, out=out, onnx=onnx, json=json, quiet=quiet)
            return
        if method == "last-layer":
            from divulge.cli import extract_last_layer

            extract_last_layer.find(oracle, seed=seed, out=out, json=json, quiet=quiet)
            return
        if method == "trees":
            from divulge.cli import extract_trees

            extract_trees.rebuild(oracle, inputs, checks=checks, seed=seed, out=out, json=json, quiet=quiet)
            return
        if scale is not None or bounds is not None:
            raise InvalidInput("Only --access label takes --scale and --bounds.")
        options: dict[str, Any] = {"seed": seed, **({"width": width} if width is not None else {})}
        options |= {"inputs": inputs} if inputs is not None else {}
        try:
            stolen = _attack(oracle, access, method, checks, options)
        except DivulgeError as error:
            from divulge.extraction import Extraction

            if isinstance(error.partial, Extraction):
                deliver_copy(error.partial, out, _text(error.partial, out), onnx=onnx, json_wanted=json, quiet=quiet)
            raise
        deliver_copy(stolen, out, _text(stolen, out), onnx=onnx, json_wanted=json, quiet=quiet)
        if not stolen.close:
            raise typer.Exit(NOT_COPIED)


def _inputs(target: str, data: str, column: str | None, method: str) -> Tensor | None:
    """The rows around which an exact attack asks, in the model's own units; None for Gaussian ones."""
    if data == "gaussian":
        return None
    if method not in TAKES_DATA:
        raise InvalidInput(f"--method {method} takes no --data, because it chooses its own inputs; leave it out.")
    from divulge.datasets import provenance

    known = provenance.data_of_model(target, data, target=column)
    return None if known is None else known.train.X


def _guarded(oracle: Oracle, guard: str) -> Oracle:
    from divulge.oracles import guards

    return guards.guard(guard)(oracle) if guard else oracle


def _check(access: str, method: str) -> None:
    if access not in METHODS:
        raise InvalidInput(f"--access takes gradient, value or label; got {access!r}.")
    if method not in METHODS[access]:
        raise InvalidInput(f"With {access} access --method is one of {', '.join(METHODS[access])}; got {method!r}.")


def _for_training(**given: object) -> None:
    """Refuse options that an exact attack would ignore."""
    names = [f"--{name}" for name, value in given.items() if value]
    if names:
        raise InvalidInput(f"Only --method training takes {', '.join(names)}; an exact attack chooses its own queries.")


def _attack(oracle: Oracle, access: str, method: str, checks: int | None, options: dict[str, Any]) -> Extraction:
    from divulge import extraction

    attacks: Any = extraction
    verify = {"checks": checks} if checks is not None else {}
    printed = {"method": method} if method != "default" else {}
    stolen: Extraction
    if method == "softmax":
        stolen = attacks.softmax_regression(oracle, seed=options["seed"], **verify)
    elif method == "deep":
        stolen = attacks.deep_from_gradients(oracle, seed=options["seed"], **verify)
    elif method == "worst-case":
        stolen = attacks.worst_case(oracle, seed=options["seed"], **verify)
    elif access == "gradient":
        stolen = attacks.from_gradients(oracle, **printed, **verify, **options)
    else:
        stolen = attacks.from_values(oracle, **printed, **verify, **options)
    return stolen


def _claim(stolen: Extraction) -> str:
    """What ``exact`` claims."""
    verification = stolen.facts.get("verification")
    return str(verification.get("claim", "")) if isinstance(verification, dict) and stolen.exact else ""


def _text(stolen: Extraction, out: Path | None) -> str:
    spent, verifying = stolen.cost, stolen.verification.total
    relative = stolen.worst_error / stolen.scale if stolen.scale else stolen.worst_error
    verdict = "exact" if stolen.exact else "as good as exact" if stolen.close else "not exact"
    lines = [
        f"{verdict}: {stolen.width} hidden neurons, worst error {stolen.worst_error:.2g} "
        f"({relative:.1g} of the outputs' standard deviation) on {stolen.verified_points:,} fresh points",
        f"asked {spent.total:,} rows ({spent.gradient:,} gradients, {spent.value:,} values) in {stolen.seconds:.1f} s"
        + (f", and {verifying:,} more to verify the copy" if verifying else ""),
    ]
    claim = _claim(stolen)
    lines += [claim] if claim else []
    if stolen.reason:
        lines.append(f"why: {stolen.reason}")
    if stolen.exact and stolen.smallest_gap:
        lines.append(f"neurons that cancel outside a slab narrower than {stolen.smallest_gap:.2g} may have been missed")
    lines += [f"note: {note}" for note in stolen.notes]
    if out is not None:
        lines.append(f"written to {out}")
    return "\n".join(lines)
