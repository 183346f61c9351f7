"""``divulge extract``: copy a model from its answers alone, and say how exact the copy is and what it cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from divulge.cli.common import Json, Out, Quiet, Seed, Workers, session, show
from divulge.cli.target import Budget, InputShape, Journal, RateLimit, Target, TokenEnv, TrustPickle, opened
from divulge.errors import DivulgeError, InvalidInput

if TYPE_CHECKING:
    from divulge.extraction import Extraction
    from divulge.oracles import Oracle

METHODS = {
    "gradient": ("default", "deep", "paper", "softmax", "training", "training-paper"),
    "value": ("default", "paper", "worst-case", "training", "training-paper"),
    "label": (),
}
NOT_COPIED = 3


def command(
    target: Target,
    access: Annotated[str, typer.Option(help="What the attacker may see: gradient or value.")] = "gradient",
    budget: Budget = None,
    width: Annotated[int | None, typer.Option(help="Hidden neurons, if known; only --method paper needs it.")] = None,
    method: Annotated[
        str,
        typer.Option(
            help="default, deep (two hidden layers), paper or softmax with gradients; default, paper or worst-case "
            "with values; training or training-paper with either."
        ),
    ] = "default",
    precision: Annotated[str, typer.Option(help="native, or double to ask a float64 copy of the model.")] = "native",
    output: Annotated[
        str | None, typer.Option(help="What the model shows: logits or probabilities; or an ONNX output's name.")
    ] = None,
    input_shape: InputShape = None,
    checks: Annotated[
        int | None, typer.Option(help="Fresh rows to verify the copy on; training: test rows whose labels are asked.")
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write the copy as model.onnx too.")] = False,
    journal: Journal = None,
    token_env: TokenEnv = None,
    rate_limit: RateLimit = None,
    trust_pickle: TrustPickle = False,
    student: Annotated[
        str | None, typer.Option(metavar="NAME", help="training: what to fit, such as one-hidden or two-conv.")
    ] = None,
    queries: Annotated[str, typer.Option(metavar="10,100", help="training: one copy for each number.")] = "100",
    data: Annotated[str, typer.Option(help="training: data set or path to query with, or gaussian.")] = "gaussian",
    choose: Annotated[str, typer.Option(help="training: which inputs to ask: random, k-means or active.")] = "random",
    ensemble: Annotated[int, typer.Option(help="training: students whose logits are averaged.")] = 1,
    unlabelled: Annotated[
        str | None, typer.Option(metavar="DATA", help="training: data set or path to learn from again, unlabelled.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="training: steps of each fit; as the queries need by default.")
    ] = None,
    guard: Annotated[
        str, typer.Option(help="What stands before the model, such as round:6, smoothgrad:0.3 or saliency.")
    ] = "",
    workers: Workers = None,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Copy a model from its gradients or values. Exits 3 if no copy as good as exact was found, 4 without budget."""
    with session(json=json, quiet=quiet):
        _check(access, method)
        oracle = opened(
            target, access=access, budget=budget, precision=precision, output=output, input_shape=input_shape,
            trust_pickle=trust_pickle, journal=journal, token_env=token_env, rate_limit=rate_limit,
        )  # fmt: skip
        if method.startswith("training"):
            from divulge.cli.learning import Asked, learn

            asked = Asked(
                student, queries, data, unlabelled, choose, ensemble, steps, guard, access, method, checks or 0, seed,
                workers,
            )  # fmt: skip
            learn(oracle, asked, out=out, json=json, quiet=quiet)
            return
        _for_training(student=student, queries=queries != "100", data=data != "gaussian", choose=choose != "random",
                      ensemble=ensemble != 1, unlabelled=unlabelled, steps=steps, workers=workers)  # fmt: skip
        if guard:
            from divulge.oracles import guards

            oracle = guards.guard(guard)(oracle)
        options = {"seed": seed, **({"width": width} if width is not None else {})}
        try:
            stolen = _attack(oracle, access, method, checks, options)
        except DivulgeError as error:
            from divulge.extraction import Extraction

            if isinstance(error.partial, Extraction):
                _deliver(error.partial, out, onnx=onnx, json=json, quiet=quiet)
            raise
        _deliver(stolen, out, onnx=onnx, json=json, quiet=quiet)
        if not stolen.close:
            raise typer.Exit(NOT_COPIED)


def _check(access: str, method: str) -> None:
    if access not in METHODS:
        raise InvalidInput(f"--access takes gradient or value for an exact copy; got {access!r}.")
    if not METHODS[access]:
        raise InvalidInput("Labels alone do not give an exact copy; use --access value, or divulge span for labels.")
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


def _deliver(stolen: Extraction, out: Path | None, *, onnx: bool, json: bool, quiet: bool) -> None:
    """Write the copy and its figures, then show them."""
    from json import dumps

    result = stolen.as_dict()
    if out is not None:
        stolen.save(out)
        if onnx:
            stolen.to_onnx(out / "model.onnx")
        (out / "extraction.json").write_text(dumps(result, indent=2, default=str) + "\n")
        result["out"] = str(out)
    show(result, json_wanted=json, quiet=quiet, text=_text(stolen, out))


def _text(stolen: Extraction, out: Path | None) -> str:
    spent = stolen.ledger
    relative = stolen.worst_error / stolen.scale if stolen.scale else stolen.worst_error
    verdict = "exact" if stolen.exact else "as good as exact" if stolen.close else "not exact"
    lines = [
        f"{verdict}: {stolen.width} hidden neurons, worst error {stolen.worst_error:.2g} "
        f"({relative:.1g} of the outputs' standard deviation) on {stolen.verified_points:,} fresh points",
        f"asked {spent.total:,} rows ({spent.gradient:,} gradients, {spent.value:,} values) in {stolen.seconds:.1f} s",
    ]
    if stolen.reason:
        lines.append(f"why: {stolen.reason}")
    if stolen.exact and stolen.smallest_gap:
        lines.append(f"neurons that cancel outside a slab narrower than {stolen.smallest_gap:.2g} may have been missed")
    lines += [f"note: {note}" for note in stolen.notes]
    if out is not None:
        lines.append(f"written to {out}")
    return "\n".join(lines)
