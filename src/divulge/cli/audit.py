"""``divulge audit``: one command, every attack that fits, a page to look at."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from divulge.cli import interrupts
from divulge.cli.common import (
    GATE_INCONCLUSIVE,
    GATE_NOT_MET,
    Json,
    Quiet,
    Seed,
    Workers,
    gibibytes_of,
    jobs_of,
    seconds_of,
    session,
    show,
)
from divulge.cli.target_options import Connection, DataDir, RecipeFile, Target, TargetColumn, Unseen, with_connection
from divulge.core.errors import InvalidInput, JournalMismatch, TargetError

if TYPE_CHECKING:
    from divulge.oracles import Access
    from divulge.report import Gate, Report

COLUMNS, MOST_FINDINGS = 80, 10
"""The summary fits one screen of 24 lines: so many columns, and findings at most."""
TABLE_MODELS = (".pkl", ".pickle", ".joblib", ".cbm")
"""Files of estimators, which take tables as pandas reads them."""
ENDINGS = {
    "unfinished": "Started, and not run to the end",
    "not tried": "Not started",
    "failed": "Run to the end without a result",
    "does not fit": "Not tried",
}


@with_connection
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
    data_dir: DataDir = None,
    target_column: TargetColumn = None,
    unseen: Unseen = None,
    recipe: RecipeFile = None,
    start: Annotated[
        str | None, typer.Option(metavar="BASE", help="The model before training, or its recipe.json.")
    ] = None,
    access: Annotated[
        str | None, typer.Option(help="What the attacker may see: weights, gradient, value or label.")
    ] = None,
    guard: Annotated[str, typer.Option(help="Defences in front of the model, such as round:4 or noise:0.01.")] = "",
    budget: Annotated[int | None, typer.Option(help="Rows each adversary may ask.")] = None,
    time: Annotated[str, typer.Option(help="How long the whole may take, such as 90s or 5m.")] = "5m",
    memory: Annotated[
        str,
        typer.Option(help="How much memory the whole may use, such as 4G or 512M; on Linux the system enforces it."),
    ] = "4G",
    price: Annotated[float | None, typer.Option(help="Price of 1,000 queries, to show costs in money.")] = None,
    format: Annotated[
        list[str] | None, typer.Option(help="html, pdf, json, markdown, sarif, cyclonedx; give it again for several.")
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            help="Exit 5 if a finding is at least this severe (low, medium, high or critical), and 6 if an attack that "
            "could find that did not run to its end."
        ),
    ] = None,
    require: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Attacks that must run to their end; exit 6 if one does not."),
    ] = None,
    auditor: Annotated[str, typer.Option(metavar="NAME", help="Who makes the audit, for the sign-off summary.")] = "",
    control: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="A control that you declare, such as a rate limit; it is listed, not tested."
        ),
    ] = None,
    accept_membership_tpr: Annotated[
        str | None,
        typer.Option(
            metavar="RATE@FPR",
            help="Share of members that you accept to be found, and the false positive rate, such as 0.05@0.01: the "
            "audit then measures what protection costs and recommends an epsilon.",
        ),
    ] = None,
    accept_reconstruction: Annotated[
        float | None, typer.Option(help="Chance of a reconstruction that you accept, such as 0.05; likewise.")
    ] = None,
    show_records: Annotated[
        bool, typer.Option("--show-records", help="Show training records, and what was rebuilt of them, in the report.")
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Continue the audit whose results are in this folder.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="NAME", help="The output to read, where there are several.")
    ] = None,
    workers: Workers = None,
    connection: Connection = Connection(),
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
            raise InvalidInput(f"There is no audit in {resume} to continue; run it with --out first.")
        known, held_out = _data(target, data, data_dir, target_column, unseen)
        folder.mkdir(parents=True, exist_ok=True)
        report = _audited(
            folder,
            target,
            access=cast("Access | None", access),
            guard=guard,
            budget=budget,
            time=seconds_of(time),
            memory=gibibytes_of(memory),
            price=price,
            seed=seed,
            out=folder,
            resume=resume is not None,
            output=output,
            workers=jobs_of(workers),
            require=_names(require),
            auditor=auditor,
            controls=tuple(control or ()),
            accept_membership_tpr=accept_membership_tpr,
            accept_reconstruction=accept_reconstruction,
            show_records=show_records or _public(target, data),
            **connection.options(),
            data_name=_data_words(data, data_dir, target_column, unseen),
            training_data=known,
            unseen=held_out,
            recipe=_recipe(recipe, data, target),
            start=start,
        )
        paths = [report.save(folder / f"report.{form}") for form in forms]
        gate = report.gate(fail_on, require=_names(require)) if fail_on or require else None
        result = {**report.as_dict(), "files": [str(path) for path in paths]}
        if gate is not None:
            result["gate"] = {"result": gate.result, "reason": gate.reason}
        show(result, json_wanted=json, quiet=quiet, text=_text(report, gate, paths))
    code = _exit_code(report, gate)
    if code:
        raise typer.Exit(code)


def _data(target: str, data: str | None, data_dir: Path | None, column: str | None, unseen: str | None) -> Any:
    """Training data and control; of a pickled estimator the tables as they are, since it may take mixed columns."""
    from divulge.datasets import provenance, user_files

    file = Path(target.rpartition("@")[2])
    if data is not None and file.suffix.lower() in TABLE_MODELS and Path(data).suffix.lower() in user_files.TABLES:
        control = None if unseen is None else user_files.frame(Path(unseen), column)
        return user_files.frame(Path(data), column), control
    return provenance.data_of_model(target, data, data_dir, target=column, unseen=unseen), None


def _exit_code(report: Report, gate: Gate | None) -> int:
    """5 if the gate is not met, 130 after Ctrl-C, 3 if the target stopped answering, 6 if the gate is inconclusive."""
    if gate is not None and gate.result == "not met":
        return GATE_NOT_MET
    if report.interrupted:
        return interrupts.EXIT_CODE
    if report.target_failed:
        return TargetError.exit_code
    return GATE_INCONCLUSIVE if gate is not None and gate.result == "inconclusive" else 0


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _public(target: str, data: str | None) -> bool:
    """Whether the training data is one of the public sets that divulge knows by name."""
    from divulge.datasets import names, provenance

    if data is not None and not (Path(data) / "data.json").is_file():
        return data in names()
    folder = Path(data or target)
    return (folder / "data.json").is_file() and provenance.read_selection(folder)[0].data in names()


def _audited(folder: Path, target: str, **options: Any) -> Report:
    import divulge

    journal = folder / "answers.db"
    try:
        return divulge.audit(target, journal=journal, **options)
    except JournalMismatch as error:
        raise InvalidInput(f"{error} Choose another --out, or delete {journal}.") from error


def _forms(wanted: list[str] | None) -> list[str]:
    names = {
        "html": "html", "pdf": "pdf", "json": "json", "markdown": "md", "md": "md", "sarif": "sarif",
        "cyclonedx": "cdx.json",
    }  # fmt: skip
    chosen = ["html", *(wanted or []), "json"]
    unknown = [form for form in chosen if form not in names]
    if unknown:
        raise InvalidInput(
            f"There is no report format {unknown[0]!r}; choose html, pdf, json, markdown, sarif or cyclonedx."
        )
    return list(dict.fromkeys(names[form] for form in chosen))


def _recipe(given: Path | None, data: str | None, target: str) -> Any:
    """The training recipe: as the user says, or as ``divulge train`` wrote it beside the data or the model."""
    beside = Path(target) if Path(target).is_dir() else Path(target).parent
    found = (path for path in (Path(data or target) / "recipe.json", beside / "recipe.json") if path.is_file())
    path = given or next(found, None)
    if path is None:
        return None
    from divulge.training import Recipe

    return Recipe.load(path)


def _data_words(data: str | None, data_dir: Path | None, column: str | None, unseen: str | None) -> list[str]:
    """What was said about the training data, for commands that repeat a finding."""
    options = [("--data-dir", data_dir), ("--target", column), ("--unseen", unseen)] if data is not None else []
    return [*([data] if data is not None else []), *(str(word) for pair in options if pair[1] for word in pair)]


def _cut(line: str) -> str:
    """A line that fits the terminal."""
    return line if len(line) <= COLUMNS else line[: COLUMNS - 3] + "..."


def _text(report: Report, gate: Gate | None, paths: list[Path]) -> str:
    from divulge.core.text import clean
    from divulge.report.document import badge, ranked
    from divulge.report.text import duration

    lines = [f"{report.headline.upper()}: what {report.target['name']} gives away ({duration(report.seconds)})"]
    lines += [line for sentence in report.verdict for line in wrap(clean(sentence), COLUMNS)] + [""]
    findings = ranked(report.findings)
    lines += [_cut(f"  {badge(finding):<14}{finding.title}") for finding in findings[:MOST_FINDINGS]]
    more = len(findings) - MOST_FINDINGS
    lines += [f"  and {more} more, in the report"] if more > 0 else []
    folded = [
        f"{heading} ({len(items)}): {items[0]}{', ...' if len(items) > 1 else ''}"
        for ending, heading in ENDINGS.items()
        if (items := [skip.title for skip in report.skipped if skip.ending == ending])
    ]
    lines += ["", *map(_cut, folded), "Why, and what would change it, is in the report."] if folded else []
    if report.target_failed:
        lines += ["", "The target stopped answering before all attacks were done; continue with --resume."]
    if report.interrupted:
        lines += ["", "Stopped early; continue with --resume."]
    if gate is not None:
        lines += ["", f"Gate {gate.result}: {gate.reason}"]
    return "\n".join([*map(clean, lines), "", *(f"Wrote {clean(str(path))}" for path in paths)])
