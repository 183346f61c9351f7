"""``divulge serve``: a model behind HTTP, to measure what a client of it can learn."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, cast

import typer

from divulge.cli.common import Json, Out, Quiet, session, show
from divulge.cli.target_options import TrustPickle
from divulge.core.storage import write_json

if TYPE_CHECKING:
    from divulge.oracles.arguments import Precision


def command(
    model: Annotated[
        str, typer.Argument(help="A saved-model folder, a .safetensors or .onnx file, or module:function.")
    ],
    host: Annotated[str, typer.Option(help="Address to bind to; other machines cannot reach 127.0.0.1.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind to; 0 takes a free one.")] = 8080,
    name: Annotated[str, typer.Option(help="The model's name in its address.")] = "model",
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Also answer gradients, as an explanation would.")
    ] = False,
    guard: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Defences in front of the model, such as noise:0.01,round:4; the first is closest to it.",
        ),
    ] = "",
    precision: Annotated[str, typer.Option(help="native, or double for a float64 copy.")] = "native",
    max_batch: Annotated[int, typer.Option(help="Most rows that one request may ask.")] = 16_384,
    max_body: Annotated[int, typer.Option(help="Most bytes that one request may have.")] = 64 << 20,
    trust_pickle: TrustPickle = False,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Makes the guards' noise repeatable, for tests; by default it is secret."),
    ] = None,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Serve MODEL over the Open Inference Protocol v2 until interrupted."""
    with session(json=json, quiet=quiet):
        from divulge import serving

        served = serving.open_model(
            model, gradients=gradients, guard=guard, seed=seed, precision=cast("Precision", precision), name=name,
            max_batch=max_batch, max_body=max_body, trust_pickle=trust_pickle,
        )  # fmt: skip

        def ready(url: str) -> None:
            text = f"Serving {model} at {url} (Ctrl-C stops). Try: divulge extract {url}"
            announced = {"url": url, **served.metadata()}
            if out is not None:
                write_json(out / "serving.json", announced)
            show(announced, json_wanted=json, quiet=quiet, text=text)
            sys.stdout.flush()  # a program that reads our output waits for this line

        serving.serve(served, host=host, port=port, ready=ready)
