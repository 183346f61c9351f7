"""Every public name is documented: what it does, each parameter, what comes back, and an example that runs."""

from __future__ import annotations

import ast
import inspect
import itertools
import logging
import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import griffe
import pytest

import divulge

SOURCE = Path(divulge.__file__).parent
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py") if "__all__" in path.read_text())
NAMES = sorted(
    {f"divulge.{package}.{name}" for package in PACKAGES for name in import_module(f"divulge.{package}").__all__}
    | {f"divulge.{name}" for name in ("audit", "oracle", "Recipe", "DivulgeError")}
)
logging.getLogger("griffe").setLevel(logging.ERROR)


def found(name: str) -> Any:
    package, _, last = name.rpartition(".")
    return getattr(divulge if package == "divulge" else import_module(package), last)


def sections(value: Any) -> dict[str, Any]:
    docstring = griffe.Docstring(inspect.cleandoc(value.__doc__ or ""))
    return {section.kind.value: section.value for section in docstring.parse("numpy", warnings=False)}


def described_fields(value: type) -> set[str]:
    """Fields that a string right below them describes, in the class or in one that it extends."""
    found = set()
    for base in value.__mro__:
        if is_dataclass(base):
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
            for field, after in itertools.pairwise(body):
                if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                    found.add(field.target.id)  # type: ignore[union-attr]
            found |= documented(sections(base), "parameters", "attributes")
    return found


def documented(parts: dict[str, Any], *kinds: str) -> set[str]:
    return {name.strip().lstrip("*") for kind in kinds for item in parts.get(kind, []) for name in item.name.split(",")}


@pytest.mark.parametrize(
    "name", [name for name in NAMES if inspect.isclass(found(name)) or inspect.isroutine(found(name))]
)
def test_every_parameter_is_documented(name: str) -> None:
    value = found(name)
    if inspect.isclass(value) and issubclass(value, BaseException):
        assert (value.__doc__ or "").strip()
        return
    parts = sections(value)
    assert parts.get("text", "").strip(), "no line says what it does"
    if is_dataclass(value):
        wanted = {field.name for field in fields(value) if not field.name.startswith("_")}
        missing = wanted - described_fields(value)
    elif inspect.isclass(value):
        signature = inspect.signature(value) if "__init__" in vars(value) else None
        wanted = set(signature.parameters) if signature is not None else set()
        missing = wanted - {"args", "kwargs"} - documented(parts, "parameters", "attributes")
    else:
        missing = set(inspect.signature(value).parameters) - documented(parts, "parameters", "other parameters")
        if value is divulge.audit:  # its options are the fields of one dataclass, which documents them
            missing -= described_fields(divulge.auditing.AuditOptions)
        assert "returns" in parts or "yields" in parts or value.__annotations__.get("return") in ("None", None)
    assert not missing, f"{name} does not document {', '.join(sorted(missing))}"


@pytest.mark.parametrize("name", [name for name in NAMES if inspect.isroutine(found(name))])
def test_every_function_has_an_example(name: str) -> None:
    assert ">>>" in (found(name).__doc__ or ""), f"{name} shows no example"


def rendered(thing: Any) -> Iterator[Any]:
    """An object of the reference and its public members, as the documentation site reads them."""
    thing = thing.final_target if thing.is_alias else thing
    yield thing
    if thing.is_class:
        for name, member in thing.members.items():
            if not name.startswith("_") and not member.is_alias:
                yield from rendered(member)


@pytest.mark.slow
def test_the_site_has_nothing_to_warn_about(caplog: pytest.LogCaptureFixture) -> None:
    package = griffe.load("divulge", search_paths=[SOURCE.parent], docstring_parser="numpy", resolve_aliases=True)
    with caplog.at_level(logging.WARNING, logger="griffe"):
        for name in NAMES:
            for thing in rendered(package[name.removeprefix("divulge.")]):
                if thing.docstring is not None:
                    _ = thing.docstring.parsed
    assert [record.getMessage() for record in caplog.records if record.name == "griffe"] == []


@pytest.mark.parametrize("package", sorted({path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py")}))
def test_files_that_docstrings_name_exist(package: str) -> None:
    """A name such as ``layers/peeling.py`` is the end of a module's path; files of the user's own are examples."""
    there = [path.as_posix() for path in SOURCE.rglob("*.py")]
    examples = ("file.py", "code.py", "my_code.py", "my_script.py")
    for path in sorted((SOURCE / package).rglob("*.py")) if (SOURCE / package).is_dir() else [SOURCE / package]:
        named = re.findall(r"[\w/]+\.py\b", path.read_text(encoding="utf-8"))
        missing = {name for name in named if not any(module.endswith(f"/{name}") for module in there)}
        assert not missing - {*examples}, f"{path} names {', '.join(sorted(missing))}"
