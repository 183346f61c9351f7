"""The printed method's four hyper-parameters searched for with Optuna (Haim et al. 2022, appendix B.2).

Trials are kept in a database (an SQLite file, or any URL that Optuna takes, such as PostgreSQL's for many machines), so
a search that died goes on where it stopped, and a search of the same target may be shared by several processes.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from divulge.errors import AttackFailed, InvalidInput, MissingPackage
from divulge.reconstruction.paper import PaperSettings, reconstruct
from divulge.workers import Workers, run

RANGES: dict[str, tuple[float, float, bool]] = {
    "learning_rate": (1e-5, 1.0, True), "initial_scale": (1e-6, 0.1, True), "lambda_min": (0.01, 0.5, False),
    "alpha": (10.0, 500.0, False),
}  # fmt: skip
"""Lowest, highest and whether on a logarithmic scale: the ranges of the authors' own sweep."""


@dataclass(frozen=True)
class Search:
    """What a search found."""

    settings: PaperSettings
    score: float
    """Mean best correlation with the training inputs, or minus the stationarity residual where none were given."""
    trials: int
    """Finished trials of this target, earlier runs' included."""
    storage: str
    seconds: float


@dataclass(frozen=True)
class _Task:
    model: nn.Module
    n: int
    training_inputs: Tensor | None
    settings: PaperSettings
    storage: str
    study: str
    seed: int


def search(
    model: nn.Module,
    *,
    n: int,
    training_inputs: Tensor | None = None,
    trials: int = 50,
    settings: PaperSettings | None = None,
    storage: str | Path = "search.db",
    seed: int = 0,
    workers: Workers = None,
) -> Search:
    """The best of ``trials`` runs of the printed method, each of ``settings.iterations``.

    Runs are judged by ``training_inputs`` [n, d] where the auditor has them, as the authors judged theirs, and by the
    stationarity residual otherwise, which is all an attacker has.
    """
    started = time.perf_counter()
    for name, count in (("n", n), ("trials", trials)):
        if count < 1:
            raise InvalidInput(f"{name} is a whole number from 1 on; got {count}.")
    optuna = _optuna()
    settings = settings or PaperSettings()
    name = _name(model, n, training_inputs, settings)
    task = _Task(model, n, training_inputs, settings, _url(storage), name, seed)
    study = _opened(optuna, task)
    run(partial(_trial, task), range(_finished(study), trials), workers=workers, stage="trials")
    done = [trial for trial in study.get_trials(deepcopy=False) if trial.value is not None]
    if not done:
        raise AttackFailed(f"All {_finished(study)} trials of the printed method diverged; none gave a sample.")
    best = max(done, key=lambda trial: float(trial.value))
    return Search(
        replace(task.settings, **best.params), float(best.value), _finished(study), task.storage,
        time.perf_counter() - started,
    )  # fmt: skip


def _opened(optuna: Any, task: _Task) -> Any:
    """The study in its database; what stands in the way is said without the address, which may hold a password."""
    from sqlalchemy.exc import SQLAlchemyError

    kind = task.storage.partition("://")[0]
    try:
        return optuna.create_study(
            study_name=task.study, storage=task.storage, direction="maximize", load_if_exists=True
        )
    except ImportError as error:
        raise MissingPackage(
            f"A {kind} database needs its driver, and none is installed; PostgreSQL's comes with divulge[scale]."
        ) from error
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise InvalidInput(f"The {kind} database for the trials cannot be opened: {reason}.") from error


def _trial(task: _Task, number: int) -> None:
    """One run of the printed method at values that Optuna proposes; its score goes to the database."""
    optuna = _optuna()
    sampler = optuna.samplers.TPESampler(seed=1000 * task.seed + number)
    study = optuna.load_study(study_name=task.study, storage=task.storage, sampler=sampler)
    trial = study.ask()
    values = {name: trial.suggest_float(name, low, high, log=log) for name, (low, high, log) in RANGES.items()}
    try:
        found = reconstruct(task.model, n=task.n, seed=task.seed, settings=replace(task.settings, **values))
    except AttackFailed:  # diverged: a rate too high for this target
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return
    score = -found.residual
    if task.training_inputs is not None:
        score = float(found.match(task.training_inputs).correlation.mean())
    study.tell(trial, score)


def _finished(study: Any) -> int:
    """Trials that ended, well or not; one whose process died is not among them and is made up for."""
    return sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))


def _url(storage: str | Path) -> str:
    return storage if isinstance(storage, str) and "://" in storage else f"sqlite:///{Path(storage)}"


def _name(model: nn.Module, n: int, training_inputs: Tensor | None, settings: PaperSettings) -> str:
    """A study for each target and way of judging, so that one database holds many and mixes none."""
    digest = hashlib.sha256(repr((n, training_inputs is None, settings)).encode())
    for tensor in [*model.state_dict().values(), *([] if training_inputs is None else [training_inputs])]:
        digest.update(tensor.detach().double().cpu().contiguous().numpy().tobytes())
    return f"haim-{digest.hexdigest()[:16]}"


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise MissingPackage("Searching for hyper-parameters needs optuna; install divulge[scale].") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
