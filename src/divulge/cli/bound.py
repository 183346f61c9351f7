"""``divulge bound``: the chance of a reconstruction at most, and how much protection is enough."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from divulge.cli.common import Json, Out, Quiet, Seed, session, show
from divulge.cli.target_options import DataDir, TargetColumn
from divulge.core.errors import InvalidInput
from divulge.core.storage import write

if TYPE_CHECKING:
    from divulge.datasets.dataset import Rows
    from divulge.protection import Kappa, Schedule


def command(
    data: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Estimate a blind guess's chance (kappa) from these records."),
    ] = None,
    data_dir: DataDir = None,
    target: TargetColumn = None,
    eta: Annotated[
        float | None, typer.Option(help="A reconstruction counts within this error (Euclidean, with --prior).")
    ] = None,
    error: Annotated[
        str, typer.Option(metavar="mse|l2|l1|max", help="How the error is measured, with --data.")
    ] = "mse",
    prior: Annotated[
        str | None, typer.Option(metavar="uniform:D|gaussian:D[:SIGMA]", help="A prior in closed form instead of data.")
    ] = None,
    kappa: Annotated[float | None, typer.Option(help="A blind guess's chance, if you know it.")] = None,
    units: Annotated[
        str, typer.Option(metavar="data|scaled", help="With --data: errors in its units, or in each column's spread.")
    ] = "data",
    gamma: Annotated[
        float,
        typer.Option("--gamma", "--accept-reconstruction", help="The chance of a reconstruction that you accept."),
    ] = 0.05,
    accept_membership_tpr: Annotated[
        str | None,
        typer.Option(metavar="RATE@FPR", help="Share of members that you accept to be found, such as 0.05@0.01."),
    ] = None,
    many: Annotated[int, typer.Option(help="Unknown records that an attacker is after at once.")] = 100,
    epsilon: Annotated[
        float | None, typer.Option(help="Instead of recommending: the bounds at this epsilon of (epsilon, delta)-DP.")
    ] = None,
    delta: Annotated[float, typer.Option(help="delta of (epsilon, delta)-DP.")] = 1e-5,
    fisher: Annotated[
        bool,
        typer.Option(help="Also the error that Fisher information proves, for a logistic regression on --data."),
    ] = False,
    recipe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="recipe.json: steps and batches as this training has them.")
    ] = None,
    records: Annotated[
        int | None, typer.Option(help="Training records, with --recipe; those of --data if left out.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps, without --recipe.  [default: 100]")] = None,
    sampling_rate: Annotated[
        float | None, typer.Option(help="Share of the records in a step, without --recipe.  [default: 1, full batch]")
    ] = None,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compute the smallest noise (and largest epsilon) that keeps the chance of a reconstruction small.

    For attackers who know every other record, and of this one only the population that it comes from."""
    with session(json=json, quiet=quiet):
        from divulge.cli import bound_further as sharper
        from divulge.protection.recommend import chance

        given = _records(data, data_dir, target, units)
        rows_given = None if given is None else given.X
        log_kappa, source, found = _log_kappa(rows_given, eta, error, prior, kappa, seed)
        schedule = _schedule(recipe, records, None if found is None else found.records, steps, sampling_rate)
        if epsilon is not None:
            rows, accepted = _at_epsilon(log_kappa, epsilon, delta, schedule), None
            heading = f"At epsilon {epsilon:g}, delta {delta:g}, {_training(schedule)}:"
        else:
            rows, accepted = _recommended(log_kappa, gamma, delta, schedule), gamma
            heading = f"To keep the chance of a reconstruction at or below {gamma:g}, {_training(schedule)}:"
        lines = [f"A blind guess has a chance of {chance(log_kappa)} ({source}).", heading]
        lines += [f"  {row['bound']:<34} " + _described(row) for row in rows]
        members = None if epsilon is None else _membership(epsilon, delta, schedule)
        lines += [] if members is None else [_members_found(members)]
        limit = sharper.membership_limit(accept_membership_tpr, schedule, delta)
        lines += [] if limit is None else [limit["sentence"]]
        lines += [_REACH, *_ceiling(found, rows[0], schedule, delta)]
        further = sharper.further_bounds(
            rows[0]["noise_multiplier"], schedule, delta, log_kappa=log_kappa, rows=rows_given, units=units, many=many
        )
        if fisher:
            spent = rows[0]["noise_multiplier"], schedule, delta
            further["Fisher information"] = sharper.fisher_limit(given, *spent, seed)
        lines += ["", *(f"{name}: {entry['sentence']}" for name, entry in further.items())]
        result: dict[str, Any] = {
            "log_kappa": log_kappa, "kappa": math.exp(log_kappa), "kappa_from": source, "gamma": accepted,
            "kappa_ceiling": None if found is None else found.ceiling,
            "delta": delta, "steps": schedule.steps, "sampling_rate": schedule.sampling_rate, "bounds": rows,
            "membership": members, "accepted_membership": limit, "further": further,
            "units": units if data is not None else None,
        }  # fmt: skip
        if out is not None:
            path = _plot(log_kappa, delta, schedule, accepted, out)
            result["plot"] = str(path)
            lines.append(f"Wrote {path}")
        show(result, json_wanted=json, quiet=quiet, text="\n".join(lines))


def _membership(epsilon: float, delta: float, schedule: Schedule) -> dict[str, Any]:
    """What is proven of membership inference at this epsilon: by epsilon alone, and by the noise of the training."""
    from divulge.protection import membership_advantage_bound, membership_bound, subsampled_bound
    from divulge.training.private import accounting

    levels = (0.1, 0.01, 0.001)
    noise = accounting.noise_for(epsilon, delta=delta, steps=schedule.steps, sampling_rate=schedule.sampling_rate)
    training: Any = {"noise_multiplier": noise, "sampling_rate": schedule.sampling_rate, "steps": schedule.steps}
    return {
        "advantage": membership_advantage_bound(epsilon=epsilon, delta=delta),
        "tpr_at_fpr": {f"{fpr:g}": membership_bound(fpr, epsilon=epsilon, delta=delta) for fpr in levels},
        "tpr_at_fpr_of_this_training": {f"{fpr:g}": subsampled_bound(fpr, **training) for fpr in levels},
    }


def _members_found(members: dict[str, Any]) -> str:
    from divulge.cli.bound_further import points

    tight = members["tpr_at_fpr_of_this_training"]
    found = ", ".join(f"{share:.2%} at {float(fpr):.1%} false positives" for fpr, share in tight.items())
    return (
        f"Of the members nobody finds more than {found}. By epsilon and delta alone, the share of members found "
        f"exceeds that of others taken for members by at most {points(members['advantage'])}."
    )


_REACH = (
    "This is for attackers who know every other record, and of this one only the population that it comes from. "
    "Whoever knows part of the record, such as all columns but one, guesses better: give --kappa for them."
)


def _ceiling(found: Kappa | None, row: dict[str, Any], schedule: Schedule, delta: float) -> list[str]:
    """What is assumed of a blind guess that was estimated, and what holds without the assumption."""
    from divulge.protection import guarantees
    from divulge.protection.recommend import TIGHT, chance

    if found is None:
        return []
    said = (
        f"It is assuming the best blind guess is the one found (the best of {found.guesses}). The proven ceiling for "
        f"every blind guess is {found.ceiling:.3g}"
    )
    if found.ceiling >= 1:
        return [f"{said}: nothing is proven without the assumption."]
    log_ceiling, noise = math.log(found.ceiling), row["noise_multiplier"]
    _, gammas = guarantees(noise, log_kappa=log_ceiling, schedule=schedule, delta=delta, names=(TIGHT,))
    return [f"{said}, with which noise multiplier {noise:.4g} gives a chance of at most {chance(gammas[TIGHT])}."]


def _records(data: str | None, data_dir: Path | None, target: str | None, units: str) -> Rows | None:
    """The records of --data in the units asked for; None without."""
    if units not in ("data", "scaled"):
        raise InvalidInput(f"--units is data or scaled; got {units!r}.")
    if data is None:
        return None
    from divulge import datasets

    records = datasets.load(data, data_dir, target=target).train
    deviation = records.X.std(dim=0)
    scale = deviation.where(deviation > 0, deviation.new_ones(()))
    return records._replace(X=records.X / scale) if units == "scaled" else records


def _log_kappa(
    rows: Any, eta: float | None, error: str, prior: str | None, kappa: float | None, seed: int
) -> tuple[float, str, Kappa | None]:
    """The blind guess's chance, where it comes from, and the estimate if there is one."""
    from divulge.protection import priors

    given = [name for name, value in (("--data", rows), ("--prior", prior), ("--kappa", kappa)) if value is not None]
    if len(given) != 1:
        raise InvalidInput("Say what an attacker knows beforehand in one way: --data, --prior or --kappa.")
    if kappa is not None:
        if not 0 < kappa < 1:
            raise InvalidInput(f"--kappa is a chance strictly between 0 and 1; got {kappa}.")
        if eta is not None:
            raise InvalidInput("--kappa is the chance for whatever counts as a reconstruction; leave --eta out.")
        return math.log(kappa), "as given", None
    if eta is None:
        raise InvalidInput("Say with --eta how close a guess must be to count as a reconstruction.")
    if rows is not None:
        found = priors.estimate_kappa(rows, eta, error=cast("Any", error), seed=seed)
        if found.upper >= 1:
            raise InvalidInput(f"With --eta {eta:g} a blind guess is always right; count only closer ones.")
        source = (
            f"at most, with {found.confidence:.0%} confidence; {found.estimate:.3g} seen in {found.records:,} records"
        )
        return math.log(found.upper), source, found
    assert prior is not None
    name, *numbers = prior.split(":")
    try:
        dimension, sigma = int(numbers[0]), float(numbers[1]) if len(numbers) > 1 else 1.0
    except (IndexError, ValueError) as failure:
        raise InvalidInput(f"--prior is uniform:DIMENSION or gaussian:DIMENSION:SIGMA; got {prior!r}.") from failure
    if name == "uniform":
        return priors.log_kappa_uniform(dimension, eta), "Proposition 6, uniform on the unit ball", None
    if name == "gaussian":
        return priors.log_kappa_gaussian(dimension, eta, sigma), "Proposition 7, Gaussian", None
    raise InvalidInput(f"There is no prior {name!r}; choose uniform or gaussian.")


def _schedule(
    path: Path | None, records: int | None, counted: int | None, steps: int | None, rate: float | None
) -> Schedule:
    """``counted`` are the records of --data."""
    from divulge.protection import Schedule

    if path is None:
        if records is not None:
            raise InvalidInput("--records belongs to --recipe, whose batches it counts; give --sampling-rate instead.")
        return Schedule(100 if steps is None else steps, 1.0 if rate is None else rate)
    if steps is not None or rate is not None:
        raise InvalidInput("--recipe says the steps and the batches; leave --steps and --sampling-rate out.")
    from divulge.training import Recipe

    recipe = Recipe.load(path)
    rows = records if records is not None else counted
    if rows is None and recipe.batch_size is not None:
        raise InvalidInput(f"{path} trains in batches; say with --records of how many records.")
    return Schedule.of(recipe, 1 if rows is None else rows)


def _recommended(log_kappa: float, gamma: float, delta: float, schedule: Schedule) -> list[dict[str, Any]]:
    from divulge.protection import required_privacy

    return [row.as_dict() for row in required_privacy(log_kappa, gamma, schedule=schedule, delta=delta)]


def _at_epsilon(log_kappa: float, epsilon: float, delta: float, schedule: Schedule) -> list[dict[str, Any]]:
    from divulge.protection import bounds, guarantees
    from divulge.protection.recommend import PURE
    from divulge.training.private import accounting

    noise = accounting.noise_for(epsilon, delta=delta, steps=schedule.steps, sampling_rate=schedule.sampling_rate)
    _, gammas = guarantees(noise, log_kappa=log_kappa, schedule=schedule, delta=delta)
    rows = [
        {"bound": name, "gamma": math.exp(log), "log_gamma": log, "noise_multiplier": noise}
        for name, log in gammas.items()
    ]
    pure = bounds.log_bound_dp(log_kappa, epsilon)
    return [*rows, {"bound": PURE, "gamma": math.exp(pure), "log_gamma": pure}]


def _plot(log_kappa: float, delta: float, schedule: Schedule, accepted: float | None, out: Path) -> Path:
    from divulge.protection import bound_curves

    path = out / "bounds.png"
    write(path, bound_curves(log_kappa, schedule=schedule, delta=delta).plot(accepted))
    return path


def _training(schedule: Schedule) -> str:
    batches = "full batches" if schedule.full_batch else f"each with {schedule.sampling_rate:.3g} of the records"
    return f"{schedule.steps:,} steps, {batches}"


def _described(row: dict[str, Any]) -> str:
    from divulge.protection.recommend import chance

    parts = [] if "log_gamma" not in row else [f"chance {chance(row['log_gamma'])}"]
    parts += [f"{name.replace('_', ' ')} {row[name]:.4g}" for name in ("noise_multiplier", "epsilon") if name in row]
    return ", ".join(parts)
