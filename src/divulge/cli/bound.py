"""``divulge bound``: how likely any attacker rebuilds a record, and how much protection is enough."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from divulge.cli.common import Json, Out, Quiet, Seed, session, show
from divulge.errors import InvalidInput


def command(
    data: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Estimate a blind guess's chance (kappa) from these records."),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where named picture sets lie.")] = None,
    target: Annotated[str | None, typer.Option(metavar="COLUMN", help="What is predicted, of your own table.")] = None,
    eta: Annotated[
        float | None, typer.Option(help="A reconstruction counts within this error (mean squared, with --data).")
    ] = None,
    prior: Annotated[
        str | None, typer.Option(metavar="uniform:D|gaussian:D[:SIGMA]", help="A prior in closed form instead of data.")
    ] = None,
    kappa: Annotated[float | None, typer.Option(help="A blind guess's chance, if you know it.")] = None,
    gamma: Annotated[float, typer.Option(help="The chance of a reconstruction that you accept.")] = 0.05,
    epsilon: Annotated[
        float | None, typer.Option(help="Instead of recommending: the bounds at this epsilon of (epsilon, delta)-DP.")
    ] = None,
    delta: Annotated[float, typer.Option(help="delta of (epsilon, delta)-DP.")] = 1e-5,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 100,
    sampling_rate: Annotated[float, typer.Option(help="Share of the records in a step; 1 is the full batch.")] = 1.0,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The smallest noise (and largest epsilon) that keeps every attacker's chance of a reconstruction small."""
    with session(json=json, quiet=quiet):
        log_kappa, source = _log_kappa(data, data_dir, target, eta, prior, kappa, seed)
        if epsilon is not None:
            rows = _at_epsilon(log_kappa, epsilon, delta, steps, sampling_rate)
            heading = f"At epsilon {epsilon:g}, delta {delta:g}, in {steps} steps:"
        else:
            rows = _recommended(log_kappa, gamma, delta, steps, sampling_rate)
            heading = f"To keep every attacker's chance at or below {gamma:g} in {steps} steps:"
        lines = [f"A blind guess has a chance of {_chance(log_kappa)} ({source}).", heading]
        lines += [f"  {row['bound']:<34} " + _described(row) for row in rows]
        result: dict[str, Any] = {
            "log_kappa": log_kappa, "kappa": math.exp(log_kappa), "kappa_from": source, "gamma": gamma, "delta": delta,
            "steps": steps, "sampling_rate": sampling_rate, "bounds": rows,
        }  # fmt: skip
        if out is not None:
            path = _plot(log_kappa, out)
            result["plot"] = str(path)
            lines.append(f"Wrote {path}")
        show(result, json_wanted=json, quiet=quiet, text="\n".join(lines))


def _log_kappa(
    data: str | None, data_dir: Path | None, target: str | None, eta: float | None, prior: str | None,
    kappa: float | None, seed: int,
) -> tuple[float, str]:  # fmt: skip
    from divulge.protection import priors

    given = [name for name, value in (("--data", data), ("--prior", prior), ("--kappa", kappa)) if value is not None]
    if len(given) != 1:
        raise InvalidInput("Say what an attacker knows beforehand in one way: --data, --prior or --kappa.")
    if kappa is not None:
        if not 0 < kappa < 1:
            raise InvalidInput(f"--kappa is a chance strictly between 0 and 1; got {kappa}.")
        return math.log(kappa), "as given"
    if eta is None:
        raise InvalidInput("Say with --eta how close a guess must be to count as a reconstruction.")
    if data is not None:
        from divulge import datasets

        found = priors.estimate_kappa(datasets.load(data, data_dir, target=target).train.X, eta, seed=seed)
        if found.upper >= 1:
            raise InvalidInput(f"With --eta {eta:g} a blind guess is always right; count only closer ones.")
        told = (
            f"at most, with {found.confidence:.0%} confidence; {found.estimate:.3g} seen in {found.records:,} records"
        )
        return math.log(found.upper), told
    assert prior is not None
    name, *numbers = prior.split(":")
    try:
        dimension, sigma = int(numbers[0]), float(numbers[1]) if len(numbers) > 1 else 1.0
    except (IndexError, ValueError) as error:
        raise InvalidInput(f"--prior is uniform:DIMENSION or gaussian:DIMENSION:SIGMA; got {prior!r}.") from error
    if name == "uniform":
        return priors.log_kappa_uniform(dimension, eta), "Proposition 6, uniform on the unit ball"
    if name == "gaussian":
        return priors.log_kappa_gaussian(dimension, eta, sigma), "Proposition 7, Gaussian"
    raise InvalidInput(f"There is no prior {name!r}; choose uniform or gaussian.")


def _recommended(log_kappa: float, gamma: float, delta: float, steps: int, rate: float) -> list[dict[str, Any]]:
    from divulge.protection import accounting, bounds

    names = {"gaussian": "tight Gaussian" if rate == 1 else "privacy-loss distribution (tight)"}
    if rate == 1:
        names["zcdp"] = "Corollary 4 (zCDP)"
    rows: list[dict[str, Any]] = []
    for theorem, name in names.items():
        noise = bounds.smallest_noise(log_kappa, gamma, steps=steps, sampling_rate=rate, theorem=theorem)
        spent = accounting.privacy_spent(noise_multiplier=noise, steps=steps, delta=delta, sampling_rate=rate)
        rows.append({"bound": name, "noise_multiplier": noise, "epsilon": spent.epsilon, "delta": delta})
    rows.append({"bound": "Corollary 3 (pure DP)", "epsilon": bounds.largest_epsilon(log_kappa, gamma), "delta": 0.0})
    return rows


def _at_epsilon(log_kappa: float, epsilon: float, delta: float, steps: int, rate: float) -> list[dict[str, Any]]:
    from divulge.protection import accounting, bounds

    noise = accounting.noise_for(epsilon, delta=delta, steps=steps, sampling_rate=rate)
    pure = math.exp(bounds.log_bound_dp(log_kappa, epsilon))
    rows = [{"bound": "Corollary 3 (if it were pure DP)", "gamma": pure}]
    if rate < 1:
        tight = bounds.subsampled_bound(log_kappa=log_kappa, noise_multiplier=noise, sampling_rate=rate, steps=steps)
        return [{"bound": "privacy-loss distribution (tight)", "gamma": tight, "noise_multiplier": noise}, *rows]
    mu = bounds.gaussian_mu(noise, steps)
    full_batch = {
        "tight Gaussian": bounds.log_bound_gaussian(log_kappa, mu),
        "Corollary 4 (zCDP)": bounds.log_bound_zcdp(log_kappa, mu**2 / 2),
    }
    named = [{"bound": name, "gamma": math.exp(log), "noise_multiplier": noise} for name, log in full_batch.items()]
    return [*named, *rows]


def _plot(log_kappa: float, out: Path) -> Path:
    from divulge.auditing.protecting import bounds_picture

    out.mkdir(parents=True, exist_ok=True)
    path = out / "bounds.png"
    path.write_bytes(bounds_picture(log_kappa).png)
    return path


def _chance(log_kappa: float) -> str:
    return f"{math.exp(log_kappa):.3g}" if log_kappa > -700 else f"10^{log_kappa / math.log(10):.0f}"


def _described(row: dict[str, Any]) -> str:
    parts = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in row.items() if name not in ("bound", "delta")]
    return ", ".join(parts)
