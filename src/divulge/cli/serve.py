"""``divulge serve``: a model behind real HTTP, to rehearse what a client of it could learn."""

from __future__ import annotations

import sys
from json import dumps
from typing import Annotated

import typer

from divulge.cli.common import Json, Out, Quiet, Seed, session, show


def command(
    model: Annotated[
        str, typer.Argument(help="A saved-model folder, a .safetensors or .onnx file, or module:function.")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; only 127.0.0.1 is out of reach for others.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8080,
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
    trust_pickle: Annotated[bool, typer.Option("--trust-pickle", help="Load files that can run code.")] = False,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Serve MODEL over the Open Inference Protocol v2 until interrupted."""
    with session(json=json, quiet=quiet):
        from divulge import serving

        served = serving.open_model(
            model, gradients=gradients, guard=guard, seed=seed, precision=precision, name=name,
            max_batch=max_batch, max_body=max_body, trust_pickle=trust_pickle,
        )  # fmt: skip

        def ready(url: str) -> None:
            text = f"Serving {model} at {url} (Ctrl-C stops). Try: divulge extract {url}"
            told = {"url": url, **served.metadata()}
            if out is not None:
                out.mkdir(parents=True, exist_ok=True)
                (out / "serving.json").write_text(dumps(told, indent=2) + "\n")
            show(told, json_wanted=json, quiet=quiet, text=text)
            sys.stdout.flush()  # whoever started us by a pipe waits for this line

        serving.serve(served, host=host, port=port, ready=ready)
