"""``divulge audit``: one command, every attack that fits, a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from divulge.cli.common import Json, Quiet, Seed, Workers, jobs_of, seconds_of, session, show
from divulge.cli.target import InputShape, RateLimit, Target, TokenEnv, TrustPickle, Unseen, shape_of
from divulge.errors import InvalidInput, JournalMismatch, TargetError

if TYPE_CHECKING:
    from divulge.oracles import Access

FAILED_THE_THRESHOLD = 5


def command(
    target: Target,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="TRAIN",
            help="Training data: a named set, a table, or a folder with the data.json of divulge train; by default "
            "the one beside the model.",
        ),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where named picture sets lie.")] = None,
    target_column: Annotated[
        str | None, typer.Option("--target", metavar="COLUMN", help="What is predicted, of your own table.")
    ] = None,
    unseen: Unseen = None,
    recipe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="recipe.json; taken from beside the model if there.")
    ] = None,
    access: Annotated[
        str | None, typer.Option(help="What the attacker may see: weights, gradient, value or label.")
    ] = None,
    guard: Annotated[str, typer.Option(help="Defences in front of the model, such as round:4 or noise:0.01.")] = "",
    budget: Annotated[int | None, typer.Option(help="Rows each adversary may ask.")] = None,
    time: Annotated[str, typer.Option(help="How long the whole may take, such as 90s or 5m.")] = "5m",
    price: Annotated[float | None, typer.Option(help="Price of 1,000 queries, to show costs in money.")] = None,
    format: Annotated[list[str] | None, typer.Option(help="html, json, markdown; give it again for several.")] = None,
    fail_on: Annotated[
        str | None, typer.Option(help="Exit 5 if a finding is at least this severe: low, medium, high or critical.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with the audit whose results are in this folder.")
    ] = None,
    input_shape: InputShape = None,
    output: Annotated[
        str | None, typer.Option(metavar="NAME", help="The output to read, where there are several.")
    ] = None,
    workers: Workers = None,
    token_env: TokenEnv = None,
    rate_limit: RateLimit = None,
    trust_pickle: TrustPickle = False,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the report is written.")] = Path("audit"),
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run every attack that fits a model and write a report of what it gives away."""
    with session(json=json, quiet=quiet):
        from divulge.auditing import SEVERITIES

        if fail_on is not None and fail_on not in SEVERITIES:
            raise InvalidInput(f"--fail-on takes one of {', '.join(SEVERITIES[1:])}; got {fail_on!r}.")
        forms = _forms(format)
        folder = resume or out
        if resume is not None and not resume.is_dir():
            raise InvalidInput(f"There is no audit in {resume} to go on with; run it with --out first.")
        known = _known(target, data, data_dir, target_column, unseen, recipe)
        folder.mkdir(parents=True, exist_ok=True)
        report = _audited(
            folder,
            target,
            access=cast("Access | None", access),
            guard=guard,
            budget=budget,
            time=seconds_of(time),
            price=price,
            seed=seed,
            out=folder,
            resume=resume is not None,
            trust_pickle=trust_pickle,
            input_shape=shape_of(input_shape),
            output=output,
            workers=jobs_of(workers),
            token_env=token_env,
            rate_limit=rate_limit,
            data_name=_data_words(data, data_dir, target_column, unseen),
            **known,
        )
        paths = [report.save(folder / f"report.{form}") for form in forms]
        show({**report.as_dict(), "files": [str(path) for path in paths]}, json_wanted=json, quiet=quiet,
             text=_text(report, paths))  # fmt: skip
    if fail_on is not None and report.reaches(fail_on):
        raise typer.Exit(FAILED_THE_THRESHOLD)
    if not report.finished:
        raise typer.Exit(130)
    if report.target_failed:
        raise typer.Exit(TargetError.exit_code)


def _audited(folder: Path, target: str, **options: Any) -> Any:
    import divulge

    journal = folder / "answers.db"
    try:
        return divulge.audit(target, journal=journal, **options)
    except JournalMismatch as error:
        raise InvalidInput(f"{error} Choose another --out, or delete {journal}.") from error


def _forms(wanted: list[str] | None) -> list[str]:
    names = {"html": "html", "json": "json", "markdown": "md", "md": "md"}
    chosen = ["html", *(wanted or []), "json"]
    unknown = [form for form in chosen if form not in names]
    if unknown:
        raise InvalidInput(f"There is no report format {unknown[0]!r}; choose html, json or markdown.")
    return list(dict.fromkeys(names[form] for form in chosen))


def _known(
    target: str, data: str | None, data_dir: Path | None, column: str | None, unseen: str | None, recipe: Path | None
) -> dict[str, Any]:
    """Training data, control and recipe: as the user says, or as ``divulge train`` wrote them beside the model."""
    from divulge.datasets import record

    told = record.known(target, data, data_dir, target=column, unseen=unseen)
    known: dict[str, Any] = {}
    if told is not None:
        unseen_rows = told.unseen if told.unseen_labels is None else (told.unseen, told.unseen_labels)
        known = {"training_data": told.train, "unseen": unseen_rows, "shape": told.shape, "columns": told.columns,
                 "mean": told.mean}  # fmt: skip
    folder = Path(data or target)
    beside = Path(target) if Path(target).is_dir() else Path(target).parent
    found = (path for path in (folder / "recipe.json", beside / "recipe.json") if path.is_file())
    path = recipe or next(found, None)
    if path is not None:
        from divulge.training import Recipe

        known["recipe"] = Recipe.load(path)
    return known


def _data_words(data: str | None, data_dir: Path | None, column: str | None, unseen: str | None) -> list[str]:
    """What was said about the training data, for commands that repeat a finding."""
    options = [("--data-dir", data_dir), ("--target", column), ("--unseen", unseen)] if data is not None else []
    return [*([data] if data is not None else []), *(str(word) for pair in options if pair[1] for word in pair)]


def _text(report: Any, paths: list[Path]) -> str:
    from divulge.report.document import duration

    lines = [f"{report.severity.upper()}: what {report.target['name']} gives away ({duration(report.seconds)})"]
    lines += [*report.verdict, ""]
    for level in ("critical", "high", "medium", "low", "none"):
        found = [finding for finding in report.findings if finding.severity == level]
        lines += [f"  {'advice' if f.adversary is None else f.severity:<9}{f.title}" for f in found]
    for heading, tried in (("Tried without a result:", True), ("Not tried:", False)):
        told = [f"  {s.title}: {s.reason}" for s in report.skipped if s.tried == tried]
        lines += ["", heading, *told] if told else []
    if report.target_failed:
        lines += ["", "The target stopped answering before all attacks were done; go on with --resume."]
    if not report.finished:
        lines += ["", "Stopped early; go on with --resume."]
    return "\n".join([*lines, "", *(f"Wrote {path}" for path in paths)])
