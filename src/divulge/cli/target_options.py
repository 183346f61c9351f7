"""The options with which every command names a target and says how it may be asked, and one way to open it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from divulge.core.errors import InvalidInput

if TYPE_CHECKING:
    from divulge.oracles import Oracle

Target = Annotated[
    str, typer.Argument(help="A model folder or file, an ONNX file, an http:// address, module:function.")
]
Budget = Annotated[int | None, typer.Option("--budget", help="Rows that may be asked in all.")]
InputShape = Annotated[
    str | None,
    typer.Option(
        "--input-shape",
        metavar="C,H,W",
        help="The shape of one input, where the target does not state it; NAME=C,H,W;... for several inputs.",
    ),
]
Fix = Annotated[
    list[str] | None,
    typer.Option(
        "--fix", metavar="NAME=VALUE", help="An input of an ONNX model that is the same for every row; may be repeated."
    ),
]
Unseen = Annotated[
    str | None,
    typer.Option(
        "--unseen", metavar="DATA", help="Rows like the training data, with their labels, that the model never saw."
    ),
]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="FOLDER", help="Where named picture sets are stored.")
]
TargetColumn = Annotated[
    str | None, typer.Option("--target", metavar="COLUMN", help="The column of your own table that is predicted.")
]
RecipeFile = Annotated[
    Path | None, typer.Option("--recipe", metavar="FILE", help="recipe.json; by default the one beside the model.")
]
TrustPickle = Annotated[bool, typer.Option("--trust-pickle", help="Load files that can run code, such as pickles.")]
Journal = Annotated[
    Path | None,
    typer.Option("--journal", metavar="FILE", help="Record of an endpoint's answers; a later run continues from it."),
]
TokenEnv = Annotated[
    str | None, typer.Option("--token-env", metavar="NAME", help="Environment variable with the endpoint's token.")
]
RateLimit = Annotated[
    float | None, typer.Option("--rate-limit", metavar="N", help="Requests a second that an endpoint may be sent.")
]
Request = Annotated[
    str | None,
    typer.Option(
        "--request",
        metavar="TEMPLATE",
        help='What an endpoint of its own kind is sent: JSON with "$rows" or "$row" for the input, or @FILE with it.',
    ),
]
Response = Annotated[
    str | None,
    typer.Option(
        "--response", metavar="PATH", help="Where its answer stands: a JSON pointer or a JMESPath expression."
    ),
]


def request_of(text: str | None) -> str | None:
    """``--request`` as JSON text: what was typed, or what the file after an @ holds."""
    if text is None or not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--request {text} names no readable file.") from error


def shape_of(text: str | None) -> tuple[int, ...] | dict[str, tuple[int, ...]] | None:
    """``--input-shape`` as numbers; by name where several inputs are named."""
    if text is None:
        return None
    if "=" in text:
        named = [part.partition("=") for part in text.replace(";", " ").split()]
        return {name: _extents(shape, text) for name, _, shape in named}
    return _extents(text, text)


def _extents(shape: str, text: str) -> tuple[int, ...]:
    extents = [extent.strip() for extent in shape.split(",")]
    if not all(extent.isdecimal() and int(extent) > 0 for extent in extents):
        raise InvalidInput(f"--input-shape takes whole numbers such as 64 or 1,28,28; got {text!r}.")
    return tuple(int(extent) for extent in extents)


def fixed_of(words: list[str] | None) -> dict[str, float] | None:
    """``--fix`` as numbers by name."""
    fixed = {}
    for word in words or []:
        name, _, value = word.rpartition("=")
        try:
            fixed[name] = float(value)
        except ValueError as error:
            raise InvalidInput(f"--fix takes NAME=NUMBER, such as sr=16000; got {word!r}.") from error
    return fixed or None


@dataclass(frozen=True)
class Connection:
    """The options with which every command says how its target is reached; ``with_connection`` reads them."""

    input_shape: InputShape = None
    fix: Fix = None
    token_env: TokenEnv = None
    rate_limit: RateLimit = None
    request: Request = None
    response: Response = None
    trust_pickle: TrustPickle = False

    def options(self) -> dict[str, Any]:
        """The same as ``divulge.oracle`` and ``divulge.audit`` take it."""
        return {
            "input_shape": shape_of(self.input_shape),
            "fixed": fixed_of(self.fix),
            "token_env": self.token_env,
            "rate_limit": self.rate_limit,
            "request": request_of(self.request),
            "response": self.response,
            "trust_pickle": self.trust_pickle,
        }


def with_connection(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command every option of ``Connection`` in place of its parameter ``connection``."""
    signature = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True) | get_type_hints(Connection, include_extras=True)
    grouped = inspect.signature(Connection).parameters
    expanded: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        expanded += grouped.values() if name == "connection" else [parameter]

    @functools.wraps(command)
    def expanded_command(**options: Any) -> None:
        command(connection=Connection(**{name: options.pop(name) for name in grouped}), **options)

    typed = [parameter.replace(annotation=hints[parameter.name]) for parameter in expanded]
    expanded_command.__signature__ = signature.replace(parameters=typed)  # type: ignore[attr-defined]
    expanded_command.__annotations__ = {parameter.name: parameter.annotation for parameter in typed}
    return expanded_command


def opened(target: str, connection: Connection, **options: Any) -> Oracle:
    """The oracle of a command's target; options that were not given are left to ``divulge.oracle``."""
    import divulge

    given = {name: value for name, value in options.items() if value is not None}
    oracle: Oracle = divulge.oracle(target, **connection.options(), **given)
    return oracle
