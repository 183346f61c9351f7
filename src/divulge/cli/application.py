"""Every command of ``divulge`` under its name.

Command modules import nothing heavy at the top, so that ``divulge --help`` answers at once.
"""

from __future__ import annotations

import typer

from divulge.cli import (
    attributes,
    audit,
    bound,
    compare,
    contents,
    data,
    extract,
    history,
    informed,
    membership,
    reconstruct,
    reproduce,
    serve,
    span,
    train,
)

app = typer.Typer(
    name="divulge",
    help="Tells you what a trained model gives away, before someone else finds out. Audit your own models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _version(
    version: bool = typer.Option(False, "--version", help="Print the version and stop.", is_eager=True),
) -> None:
    if version:
        from divulge import __version__

        typer.echo(__version__)
        raise typer.Exit


app.command("audit")(audit.command)
app.command("attributes")(attributes.command)
app.command("bound")(bound.command)
app.command("compare")(compare.command)
app.command("contents")(contents.command)
app.command("data")(data.command)
app.command("extract")(extract.command)
app.command("history")(history.command)
app.command("reconstruct")(reconstruct.command)
app.command("informed")(informed.command)
app.command("membership")(membership.command)
app.command("reproduce")(reproduce.command)
app.command("serve")(serve.command)
app.add_typer(span.app, name="span")
app.command("train")(train.command)
