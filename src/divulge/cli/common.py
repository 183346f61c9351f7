"""What every command shares: its options, its exit codes, its progress bar, and one way to print a result."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from divulge.cli.interrupts import EXIT_CODE, STOPPED
from divulge.core.errors import DivulgeError, InvalidInput
from divulge.core.hints import for_command_line
from divulge.core.json import dumps
from divulge.core.memory import explained
from divulge.core.storage import write_json
from divulge.core.text import clean, clean_lines

Seed = Annotated[int, typer.Option("--seed", min=0, help="Fixes every random choice.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="Write results to this folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing; the exit code is the result.")]
Workers = Annotated[
    str | None,
    typer.Option("--workers", metavar="N|all|tcp://HOST:PORT", help="Processes on this machine, or a Dask cluster."),
]
UnusedSeed = Annotated[int, typer.Option("--seed", min=0, help="Accepted as by every command; nothing here is random.")]
GATE_NOT_MET = 5
GATE_INCONCLUSIVE = 6


@contextmanager
def session(*, json: bool = False, quiet: bool = False) -> Iterator[None]:
    """Run a command's body: progress on the terminal, errors as one sentence, exit codes as documented.

    Warnings of other libraries are for programmers, and not shown.
    """
    try:
        with warnings.catch_warnings(), _progress(enabled=not (json or quiet)), explained():
            warnings.simplefilter("ignore")
            yield
    except DivulgeError as error:
        typer.echo(f"divulge: {clean(for_command_line(str(error), sys.argv[1:]))}", err=True)
        raise typer.Exit(error.exit_code) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        typer.echo(f"divulge: {clean(_refusal(error))}", err=True)
        raise typer.Exit(DivulgeError.exit_code) from error
    except KeyboardInterrupt as interrupt:
        typer.echo(STOPPED, err=True)
        raise typer.Exit(EXIT_CODE) from interrupt


def _refusal(error: OSError) -> str:
    """What the system refused: a folder that cannot be written to, a full disk."""
    reason = error.strerror or str(error)
    return f"{reason}: {error.filename}." if error.filename is not None else f"{reason}."


def seconds_of(text: str) -> float:
    """A length of time as people write it: 90, 90s, 5m, 1.5h."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if not match or float(match[1]) == 0:
        raise InvalidInput(f"A time is written like 90s, 5m or 1h; got {text!r}.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def gibibytes_of(text: str) -> float:
    """An amount of memory as people write it, in gibibytes: 4, 4G, 1.5G, 512M."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([MG]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if not match:
        raise InvalidInput(f"An amount of memory is written like 4G or 512M; got {text!r}.")
    return float(match[1]) / (1024 if match[2].upper() == "M" else 1)


def jobs_of(workers: str | None) -> int | str | None:
    """``--workers`` as divulge.core.workers takes it: a number is a number of processes."""
    if workers is None or workers == "all" or "://" in workers:
        return workers
    if not workers.isdecimal() or int(workers) == 0:
        raise InvalidInput(f"--workers takes a number from 1, all, or tcp://HOST:PORT; got {workers!r}.")
    return int(workers)


def show(result: dict[str, Any], *, json_wanted: bool, quiet: bool, text: str) -> None:
    """Print a command's result: ``text`` for a person, or the dictionary as one JSON object for a program."""
    if json_wanted:
        sys.stdout.write(dumps(result) + "\n")
    elif not quiet:
        typer.echo(clean_lines(text))


def deliver_copy(
    stolen: Any, out: Path | None, text: str, *, onnx: bool = False, json_wanted: bool, quiet: bool
) -> None:
    """Write a copy of a model and its figures, then show them."""
    result = stolen.as_dict()
    if out is not None:
        stolen.save(out)
        if onnx:
            stolen.to_onnx(out / "model.onnx")
        write_json(out / "extraction.json", result)
        result["out"] = str(out)
    show(result, json_wanted=json_wanted, quiet=quiet, text=text)


@contextmanager
def _progress(*, enabled: bool) -> Iterator[None]:
    if not enabled or not sys.stderr.isatty():
        yield
        return
    from divulge.cli.progress_lines import progress_lines

    with progress_lines():
        yield
