"""``divulge attributes``: can somebody tell what a training record holds in a hidden column?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from divulge.cli.common import Json, Out, Quiet, Seed, session, show
from divulge.cli.target_options import Budget, Connection, Target, opened, with_connection
from divulge.core.errors import AttackFailed, InvalidInput
from divulge.core.storage import write_json

if TYPE_CHECKING:
    from divulge.attributes import Attribute
    from divulge.datasets.provenance import ModelData


@with_connection
def command(
    target: Target,
    column: Annotated[
        list[str],
        typer.Option(metavar="NAME|NUMBER", help="The hidden column; give it again for more, or say all."),
    ],
    data: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Training records; by default data.json beside the model.")
    ] = None,
    non_members: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Records that it was not trained on: the control.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where named picture sets lie.")] = None,
    target_column: Annotated[
        str | None, typer.Option("--target", metavar="COLUMN", help="What is predicted, of your own table.")
    ] = None,
    method: Annotated[str, typer.Option(help="auto, combined, fredrikson or csmia.")] = "auto",
    bins: Annotated[int, typer.Option(help="Into how many intervals a quantity is cut.")] = 5,
    group: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="A column whose values are subgroups, each judged by itself.")
    ] = None,
    access: Annotated[str | None, typer.Option(help="What the attacker sees: label, value or weights.")] = None,
    budget: Budget = None,
    connection: Connection = Connection(),
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Infer hidden columns of training records, and compare with imputation that does not have the model.

    With --out each column's guesses and scores are written to a folder of its own, and the figures to attributes.json.
    The exit code is 3 where the model adds nothing to imputation in any column.
    """
    with session(json=json, quiet=quiet):
        from divulge import attributes
        from divulge.datasets import provenance

        known = provenance.data_of_model(target, data, data_dir, target=target_column, unseen=non_members)
        if known is None:
            raise InvalidInput("Say with --data which records the model was trained on.")
        oracle = opened(target, connection, access=access, budget=budget)
        known = known.numbered_for(oracle.output_dim, oracle.class_names)
        control = _control(known, non_members)
        rows = known.train.X.flatten(1)
        found = attributes.attack_columns(
            oracle, rows, known.train.y, columns="all" if column == ["all"] else _named(column, known.columns),
            non_members=control, names=known.columns, bins=bins, seed=seed, method=method,
            groups=None if group is None else group_of(rows, group, known.columns),
        )  # fmt: skip
        result: dict[str, Any] = {"columns": {name: risk.as_dict() for name, risk in found.items()}}
        if out is not None:
            for risk in found.values():
                risk.save(out / f"column_{'_'.join(map(str, risk.column))}")
            write_json(out / "attributes.json", result)
        show(result, json_wanted=json, quiet=quiet, text=_text(found))
        if not any(risk.success for risk in found.values()):
            raise AttackFailed("The model adds nothing certain to imputation in any of these columns.")


def _control(known: ModelData, non_members: str | None) -> Any:
    """Records that the model never saw, with their labels: those that were named, or enough of those beside it."""
    if non_members is not None and known.unseen_labels is None:
        raise InvalidInput(
            f"{non_members} has classes that the training records do not have; give records of the same."
        )
    enough = known.unseen is not None and (non_members is not None or len(known.unseen) >= 30)
    return (known.unseen, known.unseen_labels) if enough and known.unseen_labels is not None else None


def group_of(rows: Any, column: str, names: tuple[str, ...]) -> Any:
    """The value of each record in the column that makes subgroups."""
    [named] = _named([column], names)
    place = names.index(named) if named in names else named
    if not isinstance(place, int) or not 0 <= place < rows.shape[1]:
        raise InvalidInput(f"There is no column {column!r} to make subgroups of.")
    return rows[:, place].numpy()


def _named(given: list[str], names: tuple[str, ...]) -> list[int | str]:
    return [int(name) if name.isdecimal() and name not in names else name for name in given]


def _text(found: dict[str, Attribute]) -> str:
    lines = []
    for name, risk in sorted(found.items(), key=lambda item: -float(item[1].advantage)):
        value, low, high = risk.advantage
        lines.append(
            f"{name}: {risk.accuracy:.1%} right, {risk.baseline:.1%} without the model; the model adds {value:+.1%} "
            f"({low:+.1%} to {high:+.1%})"
        )
        for name_of, part in risk.by_group.items():
            value, low, high = part["advantage"]
            lines.append(f"  {name_of}: {part['records']} records, {value:+.1%} ({low:+.1%} to {high:+.1%})")
        lines.append(f"  most exposed: rows {', '.join(str(row) for row in risk.worst(5))}")
        lines += [f"  {note}" for note in risk.notes]
    return "\n".join(lines)
