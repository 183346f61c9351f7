"""``divulge membership``: can somebody tell who was in the training set?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from divulge.cli.common import Json, Out, Quiet, Seed, Workers, jobs_of, session, show
from divulge.cli.target_options import Budget, Connection, Target, opened, with_connection
from divulge.core.errors import AttackFailed, InvalidInput
from divulge.core.storage import write_json

if TYPE_CHECKING:
    from divulge.membership import Membership
    from divulge.oracles import Oracle

WITHOUT_REFERENCES = ("loss", "confidence", "quantile", "combined", "label", "gradient")


@with_connection
def command(
    target: Target,
    members: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Training records; by default data.json beside the model.")
    ] = None,
    non_members: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Records that it was not trained on; by default the set's test part."),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where named picture sets lie.")] = None,
    target_column: Annotated[
        str | None, typer.Option("--target", metavar="COLUMN", help="What is predicted, of your own table.")
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="recipe.json to train reference models by; taken from beside the model."),
    ] = None,
    clone: Annotated[
        bool, typer.Option("--clone", help="Train reference models as clones of the pickled estimator itself.")
    ] = False,
    method: Annotated[
        str,
        typer.Option(
            help="auto, loss, confidence, quantile, combined, rmia, lira, each of the two -offline, label, gradient."
        ),
    ] = "auto",
    shadows: Annotated[int, typer.Option(help="How many reference models.")] = 8,
    group: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="A column whose values are subgroups, each judged by itself.")
    ] = None,
    access: Annotated[str | None, typer.Option(help="What the attacker sees: label, value or weights.")] = None,
    delta: Annotated[float, typer.Option(help="delta of the lower limit on epsilon.")] = 1e-5,
    canaries: Annotated[
        int | None,
        typer.Option(help="Train the recipe once more with so many canaries: a lower limit on epsilon by one run."),
    ] = None,
    copy: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A copy of the target: the same attack on it, side by side.")
    ] = None,
    budget: Budget = None,
    connection: Connection = Connection(),
    workers: Workers = None,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Score every training record by how clearly the model shows that it was trained on it.

    With --out the scores are written as NPZ, the figures as JSON and the ROC curve as a picture; answers of reference
    models are kept there too, and a run that died goes on from them.
    """
    with session(json=json, quiet=quiet):
        from divulge import membership

        seen = access or ("weights" if method == "gradient" else None)
        oracle, trust_pickle = opened(target, connection, access=seen, budget=budget), connection.trust_pickle
        inside, outside = sides(target, members, non_members, data_dir, target_column, oracle)
        risk = membership.attack(
            oracle, inside, outside, train=_train(target, recipe, clone, trust_pickle, method), shadows=shadows,
            method=method, delta=delta, seed=seed, workers=jobs_of(workers),  # type: ignore[arg-type]
            groups=_groups(target, group, inside, outside, members, data_dir, target_column),
            folder=None if out is None else out / "reference_models",
        )  # fmt: skip
        train = _train(target, recipe, clone, trust_pickle, "auto")
        result, lines = risk.as_dict(), [_text(risk, out)]
        if canaries is not None:
            audited = _audited(train, inside, canaries, delta, seed)
            result, lines = result | {"epsilon_audit": audited.as_dict()}, [*lines, f"By canaries, {audited}"]
        if copy is not None:
            copied = opened(copy, Connection(trust_pickle=trust_pickle))
            both = membership.on_copy(oracle, copied, inside, outside, method=risk.method, train=train,  # type: ignore[arg-type]
                                      shadows=shadows, seed=seed)  # fmt: skip
            result, lines = result | {"on_copy": both.as_dict()}, [*lines, _copy_text(both)]
        if out is not None:
            risk.save(out)
            risk.picture(out / "roc.png")
            write_json(out / "membership.json", result)
        show(result, json_wanted=json, quiet=quiet, text="\n".join(lines))
        if not risk.success:
            raise AttackFailed(risk.reason)


def _groups(
    model: str, group: str | None, inside: Any, outside: Any, members: str | None, data_dir: Path | None,
    column: str | None,
) -> Any:  # fmt: skip
    """The subgroup of each member and each non-member."""
    from divulge.cli.attributes import group_of
    from divulge.datasets import provenance

    if group is None:
        return None
    known = provenance.data_of_model(model, members, data_dir, target=column)
    names = () if known is None else known.columns
    return tuple(group_of(side[0].flatten(1), group, names) for side in (inside, outside))


def _audited(train: Any, members: Any, canaries: int, delta: float, seed: int) -> Any:
    from divulge import membership

    if train is None:
        raise InvalidInput("Canaries go into a new training run; say with --recipe or --clone how models are trained.")
    return membership.epsilon_audit(train, *members, canaries=canaries, delta=delta, seed=seed)


def _copy_text(both: Any) -> str:
    value, low, high = both.difference
    return (
        f"On the copy: AUC {both.copy.auc:.3f}, {value:+.3f} beside the endpoint ({low:+.3f} to {high:+.3f}); "
        f"{both.shared:.0%} of the most exposed members are the same."
    )


def sides(
    model: str, members: str | None, non_members: str | None, data_dir: Path | None, column: str | None, oracle: Oracle
) -> tuple[Any, Any]:
    """Members and non-members, as the user names them or as they are recorded beside the model."""
    from divulge.datasets import provenance

    known = provenance.data_of_model(model, members, data_dir, target=column, unseen=non_members)
    if known is None:
        raise InvalidInput("Say with --members which records the model was trained on.")
    if known.unseen_labels is None and non_members is not None:
        raise InvalidInput(f"{non_members} has classes that the members do not have; compare records of the same ones.")
    if known.unseen is None or known.unseen_labels is None:
        raise InvalidInput("Say with --non-members which records like the training ones the model never saw.")
    known = known.numbered_for(oracle.output_dim, oracle.class_names)
    return known.train, (known.unseen, known.unseen_labels)


def _train(target: str, recipe: Path | None, clone: bool, trust_pickle: bool, method: str) -> Any:
    """How reference models are trained, where the user says so or a recipe lies beside the model."""
    from divulge.training import Recipe

    if clone:
        from divulge.oracles import load_model

        return load_model(target, trust_pickle=trust_pickle)
    beside = Path(target) if Path(target).is_dir() else Path(target).parent
    if recipe is not None:
        return Recipe.load(recipe)
    if (beside / "recipe.json").is_file() and method not in WITHOUT_REFERENCES:
        return Recipe.load(beside)
    return None


def _text(risk: Membership, out: Path | None) -> str:
    low, high = risk.auc_interval
    lines = [
        f"{risk.method}: AUC {risk.auc:.3f} ({low:.3f} to {high:.3f}); non-members against each other "
        f"{risk.control[0]:.3f}; rows without the model {risk.distribution[0]:.3f}"
    ]
    for level, rate in risk.rates().items():
        if rate is not None:
            lines.append(
                f"  at a false positive rate of {level:g}: {rate[0]:.2%} ({rate[1]:.2%} to {rate[2]:.2%}) found"
            )
    worst = ", ".join(str(row) for row in risk.worst(10))
    lines.append(f"Most exposed members: rows {worst}.")
    for kind, share in risk.kinds.items():
        if share["most_exposed"] > 2 * share["all"] and share["most_exposed"] > 0.05:
            lines.append(f"  {kind}: {share['most_exposed']:.0%} of the most exposed, {share['all']:.0%} of all.")
    for name, part in risk.by_group.items():
        lines.append(f"  subgroup {name}: {part['members']} members, AUC {part['auc'][0]:.3f}")
    lines.append(
        f"epsilon is at least {risk.epsilon:.2f} at delta {risk.delta:g}, with {risk.confidence:.0%} confidence."
    )
    lines += [risk.reason, *risk.notes]
    if out is not None:
        lines.append(f"Wrote the scores to {out}.")
    return "\n".join(line for line in lines if line)
