"""A search for the printed method's four hyper-parameters with Optuna (Haim et al. 2022, appendix B.2).

Trials are stored in a database: an SQLite file, or any URL that Optuna takes, such as PostgreSQL's. So a search that
stopped continues, and several processes or machines can share the search of one target.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from divulge.core.errors import AttackFailed, InvalidInput, MissingPackage
from divulge.core.storage import digest
from divulge.core.validation import checked_choice, checked_whole
from divulge.core.workers import Workers, run
from divulge.reconstruction.printed.kkt import PaperSettings, reconstruct

RANGES: dict[str, tuple[float, float, bool]] = {
    "learning_rate": (1e-5, 1.0, True), "initial_scale": (1e-6, 0.1, True), "lambda_min": (0.01, 0.5, False),
    "alpha": (10.0, 500.0, False),
}  # fmt: skip
"""Lowest value, highest value, and whether the scale is logarithmic: the ranges of the authors' code."""
PRINTED_RANGES: dict[str, tuple[float, float, bool]] = {
    "learning_rate": (1e-5, 1.0, True), "initial_scale": (1e-6, 1.0, True), "lambda_min": (1e-4, 1.0, True),
    "alpha": (10.0, 500.0, False),
}  # fmt: skip
"""The same as appendix B.2 prints them; values are drawn from these at random."""
Method = Literal["default", "paper"]


@dataclass(frozen=True)
class Search:
    """The best settings that ``search`` found.

    Examples
    --------
    >>> from divulge.reconstruction import PaperSettings, Search
    >>> Search(PaperSettings(), score=0.5, trials=50, storage="sqlite:///search.db", seconds=60.0).score
    0.5
    """

    settings: PaperSettings
    """The settings of the best trial."""
    score: float
    """Mean best correlation with the training inputs, or minus the stationarity residual where none were given."""
    trials: int
    """Finished trials of this target, those of earlier runs included."""
    storage: str
    """The URL of the database."""
    seconds: float
    """How long this run took."""


@dataclass(frozen=True)
class _Task:
    model: nn.Module
    n: int
    training_inputs: Tensor | None
    settings: PaperSettings
    storage: str
    study: str
    seed: int
    method: Method


def search(
    model: nn.Module,
    *,
    n: int,
    training_inputs: Tensor | None = None,
    trials: int = 50,
    settings: PaperSettings | None = None,
    storage: str | Path = "search.db",
    method: Method = "default",
    seed: int = 0,
    workers: Workers = None,
) -> Search:
    """Search the hyper-parameters of the printed method, and return those of the best trial.

    Parameters
    ----------
    model : nn.Module
        The target.
    n : int
        The number of training inputs.
    training_inputs : Tensor, optional
        [n, d]. Trials are then scored by their mean best correlation with them, as the authors scored theirs. The
        default is the stationarity residual, which is all that an attacker has.
    trials : int, default 50
        Trials in all, those of earlier runs with the same storage included.
    settings : PaperSettings, optional
        The settings that are not searched, and the iterations of each trial.
    storage : str or Path, default "search.db"
        An SQLite file, or the URL of a database.
    method : {"default", "paper"}, default "default"
        "paper" draws each trial at random from the ranges of appendix B.2. The default lets Optuna propose values from
        the ranges of the authors' code.
    seed : int, default 0
        Fixes the trials.
    workers : int, str or None, default None
        Processes or a Dask cluster for the trials.

    Returns
    -------
    Search
        The best settings and their score.

    Raises
    ------
    AttackFailed
        Every trial diverged.
    MissingPackage
        Optuna or the driver of the database is not installed.

    Examples
    --------
    >>> from divulge import reconstruction
    >>> best = reconstruction.search(model, n=20, trials=50)  # doctest: +SKIP
    >>> reconstruction.from_weights(model, method="paper", n=20, settings=best.settings)  # doctest: +SKIP
    """
    started = time.perf_counter()
    for name, count in (("n", n), ("trials", trials)):
        checked_whole(name, count, at_least=1)
    checked_choice("method", method, ("default", "paper"))
    optuna = _optuna()
    settings = settings or PaperSettings()
    name = _name(model, n, training_inputs, settings) + ("-printed" if method == "paper" else "")
    task = _Task(model, n, training_inputs, settings, _url(storage), name, seed, method)
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
    """The study in its database. Error messages leave out its address, which may hold a password."""
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
    """One run of the printed method at values that Optuna proposes. Its score goes to the database."""
    optuna = _optuna()
    printed = task.method == "paper"
    samplers = optuna.samplers
    sampler = (samplers.RandomSampler if printed else samplers.TPESampler)(seed=1000 * task.seed + number)
    study = optuna.load_study(study_name=task.study, storage=task.storage, sampler=sampler)
    trial = study.ask()
    ranges = PRINTED_RANGES if printed else RANGES
    values = {name: trial.suggest_float(name, low, high, log=log) for name, (low, high, log) in ranges.items()}
    try:
        found = reconstruct(task.model, n=task.n, seed=task.seed, settings=replace(task.settings, **values))
    except AttackFailed:  # diverged: a rate too high for this target
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return
    trial.set_user_attr("residual", found.residual)
    score = -found.residual
    if task.training_inputs is not None:
        score = float(found.match(task.training_inputs).correlation.mean())
    study.tell(trial, score)


def _finished(study: Any) -> int:
    """How many trials ended, diverged ones included. A trial whose process died does not count and is repeated."""
    return sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False))


def _url(storage: str | Path) -> str:
    return storage if isinstance(storage, str) and "://" in storage else f"sqlite:///{Path(storage)}"


def _name(model: nn.Module, n: int, training_inputs: Tensor | None, settings: PaperSettings) -> str:
    """The name of the study, one for each target and kind of score, so that one database can hold many."""
    tensors = [*model.state_dict().values(), *([] if training_inputs is None else [training_inputs])]
    identity = digest(repr((n, training_inputs is None, settings)), *(tensor.double() for tensor in tensors))
    return f"haim-{identity[:16]}"


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise MissingPackage("Searching for hyper-parameters needs optuna; install divulge[scale].") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
