"""Commands and code on the pages: every option, name and keyword argument that they use exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from divulge.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def commands(text: str) -> Iterator[list[str]]:
    """The words of every ``divulge`` command in a page, comments left out."""
    joined = text.replace("\\\n", " ")
    for line in re.findall(r"(?:^|`|run: |entry: )(divulge [a-z]+(?: [^\n`]*)?)", joined, re.MULTILINE):
        if line.split()[1] in COMMANDS or " --" in line:
            yield shlex.split(line.split(" #")[0].rstrip(" &"))[1:]


def options_of(words: list[str]) -> set[str]:
    command = COMMANDS[words[0]]
    if hasattr(command, "commands"):
        command = command.commands.get(words[1] if len(words) > 1 else "", command.commands["recover"])
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_option_of_a_command_exists(page: Path) -> None:
    for words in commands(page.read_text()):
        assert words[0] in COMMANDS, words
        used = {word.split("=")[0] for word in words if word.startswith("--")}
        assert used <= options_of(words), words


def resolved(node: ast.expr, names: dict[str, Any]) -> Any:
    """What a name or a chain of attributes stands for; None where that is not known without running the page."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := resolved(node.value, names)) is not None:
        if not (inspect.ismodule(owner) or inspect.isclass(owner)):
            return None
        if not hasattr(owner, node.attr) and inspect.ismodule(owner):
            return importlib.import_module(f"{owner.__name__}.{node.attr}")
        return getattr(owner, node.attr)
    return None


def imported(tree: ast.Module) -> dict[str, Any]:
    names: dict[str, Any] = {"divulge": importlib.import_module("divulge")}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("divulge"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
                names[alias.asname or alias.name] = getattr(module, alias.name)
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_and_keyword_of_the_code_exists(page: Path) -> None:
    names: dict[str, Any] = {}
    for language, code in FENCED.findall(page.read_text()):
        if language != "python":
            continue
        tree = ast.parse(code)
        names |= imported(tree)  # later blocks go on from earlier ones
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                resolved(node, names)
            if isinstance(node, ast.Call) and callable(called := resolved(node.func, names)):
                parameters = inspect.signature(called).parameters
                if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
                    assert {word.arg for word in node.keywords} <= set(parameters), ast.unparse(node)
