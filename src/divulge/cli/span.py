"""``divulge span``: the part of the input that a model depends on, and noise that it ignores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from divulge.cli.common import Json, Out, Quiet, Seed, session, show
from divulge.cli.target_options import (
    Budget,
    Connection,
    DataDir,
    Journal,
    Target,
    TargetColumn,
    opened,
    with_connection,
)
from divulge.core.errors import DivulgeError, InvalidInput
from divulge.core.storage import replacing

if TYPE_CHECKING:
    from torch import Tensor

    from divulge.oracles import Oracle
    from divulge.span import Span


class _RecoverByDefault(TyperGroup):
    """``divulge span TARGET`` is ``divulge span recover TARGET``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["recover", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RecoverByDefault,
    no_args_is_help=True,
    help="Recover the input subspace that a model depends on, or add noise that it ignores. 'divulge span TARGET' is "
    "short for 'divulge span recover TARGET'.",
)

Access = Annotated[str, typer.Option(help="What the attacker sees: gradient, value or label.")]
Precision = Annotated[
    str,
    typer.Option(
        help="native; double, which asks a float64 copy; or extended, Algorithm 2 as printed in long numbers."
    ),
]


@app.command("recover")
@with_connection
def recover(
    target: Target,
    access: Access = "gradient",
    rank: Annotated[int | None, typer.Option(help="Stop at this rank; by default the attack finds it.")] = None,
    method: Annotated[str, typer.Option(help="default, or paper for the algorithms as printed.")] = "default",
    samples: Annotated[int | None, typer.Option(help="Gradients to take; at most so many when adaptive.")] = None,
    outputs: Annotated[str, typer.Option(metavar="all|N", help="The gradients of all outputs, or of one.")] = "all",
    non_adaptive: Annotated[
        bool, typer.Option("--non-adaptive", help="Choose every query point before the first answer.")
    ] = False,
    points: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npy", help="Write all query points there before the first answer (non-adaptive)."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Rows like the model's inputs, which say where to ask: a named set, a table, a .npy file, or a folder "
            "with the data.json of divulge train. By default that of the model, else N(0, 1).",
        ),
    ] = None,
    data_dir: DataDir = None,
    target_column: TargetColumn = None,
    scale: Annotated[float, typer.Option(help="Spread of the query points, in units of the data.")] = 1.0,
    risk: Annotated[
        float,
        typer.Option(help="Share of moves in the null space that may change an answer unnoticed, at 95 % confidence."),
    ] = 0.05,
    budget: Budget = None,
    precision: Precision = "native",
    bits: Annotated[int, typer.Option(help="Length of the numbers with --precision extended.")] = 256,
    reference: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER|FILE.npy", help="A saved span, or rows, to measure the largest angle to."),
    ] = None,
    journal: Journal = None,
    connection: Connection = Connection(),
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Recover the input subspace that TARGET depends on."""
    with session(json=json, quiet=quiet):
        _check_choices(access, method, precision)
        oracle = opened(
            target, connection, access="weights" if precision == "extended" else access, budget=budget,
            precision="double" if precision == "double" else "native", journal=journal,
        )  # fmt: skip
        compared = _reference(reference) if reference is not None else None
        printed = method == "paper" or precision == "extended"
        rows = None if printed else _data(target, data, data_dir, target_column, oracle.input_dim)
        try:
            if access == "label":
                from divulge.span import from_labels

                found = from_labels(
                    oracle, rank, method="paper" if method == "paper" else "default", seed=seed, scale=scale, bits=bits,
                    precision="extended" if precision == "extended" else "double", inputs=rows, risk=risk,
                )  # fmt: skip
            else:
                found = _from_gradients(oracle, access, rank, method, samples, outputs, non_adaptive, points, scale,
                                        risk, rows, seed)  # fmt: skip
        except DivulgeError as error:
            if out is not None and error.partial is not None:
                error.partial.save(out)
            raise
        result = found.as_dict()
        if compared is not None:
            result["angle"] = found.angle_to(compared)
        if out is not None:
            from divulge.span import figures

            found.save(out)
            figures.evidence(found, out / "evidence.png")
        show(result, json_wanted=json, quiet=quiet, text=_text(found, result, out))
        if rank is not None and found.rank < rank:
            raise typer.Exit(3)


@app.command("obfuscate")
@with_connection
def obfuscate(
    target: Target,
    inputs: Annotated[
        str, typer.Option("--input", metavar="FILE|NAME", help="Rows (.npy), a picture, or a data set's test part.")
    ],
    span: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A saved span; by default it is recovered first.")
    ] = None,
    rows: Annotated[int, typer.Option(help="How many of the inputs to take.")] = 8,
    scale: Annotated[float, typer.Option(help="Norm of the noise, in units of the input's norm.")] = 10.0,
    bounds: Annotated[
        str | None, typer.Option(metavar="LOW,HIGH", help="Keep every entry in this range, such as 0,1.")
    ] = None,
    largest: Annotated[
        bool, typer.Option("--largest", help="With --bounds: as much noise as the range allows.")
    ] = False,
    access: Access = "gradient",
    precision: Precision = "double",
    journal: Journal = None,
    connection: Connection = Connection(),
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Add noise that TARGET ignores: the answers do not change, the inputs become unreadable."""
    with session(json=json, quiet=quiet):
        _check_choices(access, "default", precision)
        if precision == "extended":
            raise InvalidInput("Obfuscation asks the model as it is; give --precision native or double.")
        import numpy as np

        from divulge import span as spans

        oracle = opened(target, connection, access=access, precision=precision, journal=journal)
        originals = _read_inputs(inputs, oracle.input_dim)[:rows]
        found = spans.load(span) if span is not None else _recovered(oracle, seed)
        limits = _bounds(bounds)
        noisy = spans.obfuscate(originals, found, None if largest else scale, bounds=limits, seed=seed)
        measured = spans.measure(oracle, originals, noisy)
        result = {"rank": found.rank, "input_dim": found.input_dim, "seed": seed, **measured.summary()}
        if out is not None:
            with replacing(out / "noisy.npy") as part:
                np.save(part, noisy.numpy())
            from divulge.span import figures

            result["picture"] = str(_picture(figures, oracle, originals, noisy, out))
        result["queries"] = oracle.ledger.snapshot().as_dict()
        text = (
            f"{result['labels_kept']} of {result['rows']} inputs kept their label under noise of "
            f"{result['relative_distance_median']:.3g} times their norm; outputs changed by at most "
            f"{result.get('output_change_largest', float('nan')):.2g}. The model depends on {found.rank} of "
            f"{found.input_dim} dimensions."
        )
        show(result, json_wanted=json, quiet=quiet, text=text)


def _check_choices(access: str, method: str, precision: str) -> None:
    if access not in ("gradient", "value", "label"):
        raise InvalidInput(f"--access is gradient, value or label; got {access!r}.")
    if method not in ("default", "paper"):
        raise InvalidInput(f"--method is default or paper; got {method!r}.")
    if precision not in ("native", "double", "extended"):
        raise InvalidInput(f"--precision is native, double or extended; got {precision!r}.")
    if precision == "extended" and access != "label":
        raise InvalidInput("--precision extended is for Algorithm 2; give --access label with it.")


def _from_gradients(
    oracle: Oracle,
    access: str,
    rank: int | None,
    method: str,
    samples: int | None,
    outputs: str,
    non_adaptive: bool,
    points: Path | None,
    scale: float,
    risk: float,
    rows: Tensor | None,
    seed: int,
) -> Span:
    from divulge.oracles.region import Region
    from divulge.span import from_gradients
    from divulge.span.from_gradients import default_samples, write_query_points

    if outputs != "all" and not outputs.isdecimal():
        raise InvalidInput(f"--outputs is all or the number of one output; got {outputs!r}.")
    source: Literal["gradients", "values"] = "gradients" if access == "gradient" else "values"
    if points is not None:
        if method == "paper" and samples is None:
            raise InvalidInput("Give --samples with --points: the printed algorithm has no number of its own.")
        non_adaptive = True
        samples = samples if samples is not None else default_samples(oracle.input_dim)
        write_query_points(points, oracle.input_dim, samples, source=source, scale=scale, seed=seed, eps=oracle.eps,
                           region=Region.of(rows, oracle))  # fmt: skip
    chosen: Any = int(outputs) if outputs != "all" else None if method == "paper" else "all"
    return from_gradients(
        oracle, method="paper" if method == "paper" else "default", source=source, adaptive=not non_adaptive,
        samples=samples, rank=rank, outputs=chosen, inputs=rows, scale=scale, risk=risk, seed=seed,
    )  # fmt: skip


def _data(target: str, data: str | None, data_dir: Path | None, column: str | None, dim: int) -> Tensor | None:
    """Rows like the model's inputs, in its own units; None where there are none."""
    if data is not None and data.endswith(".npy"):
        rows = _array(Path(data))
        return rows.reshape(len(rows), -1) if len(rows) and rows[0].numel() == dim else _misfit(data, dim)
    from divulge.datasets import provenance

    known = provenance.data_of_model(target, data, data_dir, target=column)
    if known is None:
        return None
    rows = known.train.X.double()
    return rows if rows.shape[1] == dim else _misfit(data or target, dim)


def _recovered(oracle: Oracle, seed: int) -> Span:
    from divulge.span import from_gradients, from_labels

    return from_gradients(oracle, seed=seed) if oracle.allows("value") else from_labels(oracle, seed=seed)


def _reference(path: Path) -> Span | Tensor:
    from divulge.span import load

    return load(path) if path.is_dir() else _array(path)


def _array(path: Path) -> Tensor:
    import numpy as np
    import torch

    try:
        return torch.from_numpy(np.load(path, allow_pickle=False)).double()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} does not hold an array of numbers that can be read: {error}.") from error


def _read_inputs(name: str, dim: int) -> Tensor:
    """Rows out of a .npy file, one picture out of a picture file, or the test part of a data set."""
    import torch

    path = Path(name)
    if path.suffix.lower() == ".npy":
        return _array(path).reshape(-1, dim) if _array(path).numel() % dim == 0 else _misfit(name, dim)
    if path.suffix.lower() in (".png", ".jpg", ".jpeg", ".bmp") and path.is_file():
        from skimage.io import imread

        pixels = torch.from_numpy(imread(path, as_gray=True).astype("float64"))
        pixels = pixels / 255 if float(pixels.max()) > 1 else pixels
        return pixels.reshape(1, -1) if pixels.numel() == dim else _misfit(name, dim)
    from divulge import datasets

    rows = datasets.load(name).test.X.double()
    return rows if rows.shape[1] == dim else _misfit(name, dim)


def _misfit(name: str, dim: int) -> Tensor:
    raise InvalidInput(f"The inputs in {name} do not fit: the model takes {dim} numbers each.")


def _bounds(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidInput(f"--bounds is two numbers, such as 0,1; got {text!r}.") from error
    return low, high


def _picture(figures: Any, oracle: Oracle, originals: Tensor, noisy: Tensor, out: Path) -> Path | str:
    try:
        shape = figures.picture_shape(oracle.input_dim, oracle.input_shape)
    except InvalidInput:
        return "none: the inputs are not pictures"
    path: Path = figures.before_and_after(
        oracle, originals[:12], {"noisy": noisy[:12]}, out / "obfuscated.png", shape=shape
    )
    return path


_STRUCTURES = {
    "affine": ("It is affine: its rank is at most its number of outputs by construction.",),
    "linear": ("It has the rank of a linear, logistic or softmax regression: no more directions than outputs.",),
}


def _text(span: Span, result: dict[str, Any], out: Path | None) -> str:
    spent = span.ledger
    rows = {"gradients": spent.gradient, "values": spent.value, "labels": spent.label}
    asked = ", ".join(f"{count:,} {kind}" for kind, count in rows.items() if count)
    lines = [
        f"The model depends on {span.rank} of {span.input_dim} input dimensions ({asked}, {span.seconds:.1f} s).",
        span.claim,
        *_STRUCTURES.get(span.structure, ()),
        f"Gap in the singular values: {span.gap:.3g} times.",
    ]
    if span.invariance is not None:
        lines.append(f"Moves in the null space change outputs by {span.invariance:.2g} of their usual change.")
    if "angle" in result:
        lines.append(f"Largest angle to the reference: {result['angle']:.2g} rad.")
    lines += [note for note in span.notes if note != span.reason]
    if out is not None:
        lines.append(f"Written to {out}: span.safetensors, span.json, evidence.png.")
    return "\n".join(lines)
