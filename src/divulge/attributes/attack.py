"""``attributes.attack``: can they tell what somebody did not say? One hidden column of training records.

The attacker knows a record's other columns and its label, asks the model what it answers for every value that the
hidden column may have, and holds other people's rows. Fredrikson et al. 2014 weigh the model's probability of the label
by the prior; Mehnaz et al. 2022 (CSMIA) take the one value that makes the model right, or the most confident of
several, or the least confident where none does. Both count what is true of everybody as the model's leak. ``combined``,
the default, weighs the model's answers together with an imputation that has all of the attacker's knowledge but not the
model (``imputation``), and only the difference to that imputation alone is called the model's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from divulge.attributes import imputation
from divulge.attributes.columns import Hidden, hidden_column
from divulge.attributes.imputation import Array, Index
from divulge.attributes.result import Attribute
from divulge.core.errors import InvalidInput, WrongShape
from divulge.core.progress import report
from divulge.core.statistics import WithInterval
from divulge.core.validation import checked_choice, checked_rows, checked_seed, checked_whole
from divulge.oracles import Access
from divulge.oracles.factory import is_plain_function
from divulge.oracles.record_gradients import gradient_log_norms
from divulge.oracles.record_scores import Asked, asked

Method = Literal["auto", "combined", "fredrikson", "csmia"]
METHODS: tuple[Method, ...] = get_args(Method)
FEWEST = 30
"""Records that an attack needs: with fewer no advantage can be told from chance."""
DRAWS = 3
"""How often the records are divided anew into other people and those asked about."""


@dataclass(frozen=True)
class _Answers:
    """What the model answers for each record with each candidate [n, k]: the label's fit, and whether it is right.

    ``gradients`` says how small the candidate's gradient is, where the weights are granted.
    """

    fits: Array
    right: NDArray[np.bool_]
    gradients: Array | None = None


def attack(
    model: object,
    X: object,
    y: object,
    *,
    column: int | str | Sequence[int] | Sequence[str],
    method: Method = "auto",
    non_members: object = None,
    groups: object = None,
    bins: int = 5,
    access: Access | None = None,
    names: Sequence[str] = (),
    seed: int = 0,
) -> Attribute:
    """Infer one hidden column of training records, and say what the model adds to imputation without it.

    Parameters
    ----------
    model : object
        An oracle, or anything that :func:`divulge.oracle` takes.
    X : array [n, d]
        Training records, with the column.
    y : array [n]
        Their labels or targets.
    column : int, str or sequence
        The hidden column by number or name. Several columns are one attribute in one-hot form.
    method : {"auto", "combined", "fredrikson", "csmia"}, default "auto"
        ``"combined"`` (auto) weighs imputation and the model; ``"fredrikson"`` and ``"csmia"`` are the published
        attacks, as printed.
    non_members : (array, array), optional
        Records that the model was not trained on: the advantage on them is the control.
    groups : array [n], optional
        A subgroup for each record; the result then says how exposed each is.
    bins : int, default 5
        Into how many intervals a quantity is cut; the interval is guessed.
    access : {"label", "value", "gradient", "weights"}, optional
        What the attacker may ask of a model that is not an oracle yet; by default values, or labels where there is
        nothing else. With weights the size of each candidate's gradient counts too.
    names : sequence of str, default ()
        Names of the columns, where ``X`` has none.
    seed : int, default 0
        Fixes every random choice.

    Returns
    -------
    Attribute
        Accuracy, baseline, advantage with its interval, and a score a record. It succeeds where the advantage lies
        above zero.

    Raises
    ------
    InvalidInput
        If there is no such column, it does not vary, or the records are too few or do not fit the model.

    Examples
    --------
    >>> import numpy as np, divulge
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = np.column_stack([rng.integers(0, 2, 300), rng.normal(size=(300, 3))]).astype(float)
    >>> y = rng.integers(0, 2, 300)
    >>> tree = DecisionTreeClassifier(random_state=0).fit(X, y)
    >>> risk = divulge.attributes.attack(tree, X, y, column=0)
    >>> risk.accuracy > risk.baseline, risk.queries
    (True, 600)
    """
    started = time.perf_counter()
    seed = checked_seed(seed)
    chosen = checked_choice("method", method, METHODS)
    chosen = "combined" if chosen == "auto" else chosen
    bins = checked_whole("bins", bins, at_least=2, at_most=20)
    rows, labels = _checked(X, y, "records", None)
    hidden = hidden_column(rows, column, tuple(names) or tuple(map(str, getattr(X, "columns", ()))), bins)
    subgroups = _checked_groups(groups, len(rows))
    view = asked(model, labels, access=access, **_shape(model, rows))
    before = view.oracle.ledger.snapshot()
    answers = _answers(view, hidden, rows, labels)
    others = None if non_members is None else _others(view, hidden, non_members, rows.shape[1])
    spent = view.oracle.ledger.snapshot() - before
    judged = _judged(chosen, hidden, rows, labels, answers, others, seed)
    return _result(hidden, judged, subgroups, method=chosen, seed=seed, ledger=spent, started=started)


# -- asking the model -------------------------------------------------------------------------------------------------


def _answers(view: Asked, hidden: Hidden, X: Tensor, y: NDArray[Any]) -> _Answers:
    """Every record is asked once with each candidate."""
    k = len(hidden.values)
    fits, right = np.empty((len(X), k)), np.empty((len(X), k), dtype=bool)
    for candidate in range(k):
        report("asking candidates", candidate, k)
        filled = hidden.filled(X, candidate)
        if view.oracle.allows("value"):
            fits[:, candidate] = view.fits(filled, y)
            right[:, candidate] = fits[:, candidate] > 0
        else:
            right[:, candidate] = view.agrees(filled, y)
            fits[:, candidate] = right[:, candidate]
    if not view.oracle.allows("weights"):
        return _Answers(fits, right)
    sizes = [gradient_log_norms(view, hidden.filled(X, candidate), y).mean(axis=1) for candidate in range(k)]
    return _Answers(fits, right, -np.stack(sizes, axis=1))


@dataclass(frozen=True)
class _Others:
    """Records that the model was not trained on, for the control."""

    X: Tensor
    y: NDArray[Any]
    own: Index
    answers: _Answers


def _others(view: Asked, hidden: Hidden, given: Any, width: int) -> _Others:
    try:
        X, y = given
    except (TypeError, ValueError) as error:
        raise InvalidInput("non_members come as (X, y): rows, and a label or target for each.") from error
    rows, labels = _checked(X, y, "non-members", width)
    return _Others(rows, labels, hidden.index(rows), _answers(view, hidden, rows, labels))


# -- judging ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Judged:
    """Right guesses of attack and baseline over draws [draws, n], the last draw's guesses, and what the model adds."""

    attack: NDArray[np.bool_]
    baseline: NDArray[np.bool_]
    guesses: Index
    scores: Array
    control: WithInterval | None


def _judged(
    method: str, hidden: Hidden, X: Tensor, y: NDArray[Any], answers: _Answers, others: _Others | None, seed: int
) -> _Judged:
    n, k, own = len(X), len(hidden.values), hidden.own
    table = np.column_stack([hidden.known(X), _label_column(y, y)])
    evidence = _evidence(answers)
    right, without, added = np.empty((DRAWS, n), bool), np.empty((DRAWS, n), bool), np.zeros(n)
    rows, guesses = np.arange(n), own
    for draw in range(DRAWS):
        report("imputing", draw, DRAWS)
        folds = imputation.folds_of(n, seed + draw)
        prior = imputation.imputed(table, own, k, folds, seed + draw)
        base = imputation.weighed(prior, own, folds)
        both = imputation.weighed(np.concatenate([prior, evidence], axis=2), own, folds)
        guesses = _guesses(method, both, answers, own, seed)
        right[draw], without[draw] = guesses == own, base.argmax(axis=1) == own
        added += (both[rows, own] - base[rows, own]) / DRAWS
    control = None if others is None else _control(method, hidden, table, y, evidence, others, seed)
    return _Judged(right, without, np.asarray(guesses), added, control)


def _control(
    method: str, hidden: Hidden, table: Array, y: NDArray[Any], evidence: Array, others: _Others, seed: int
) -> WithInterval:
    """The advantage on non-members, by imputers and weights that were learned from the members."""
    k, own = len(hidden.values), hidden.own
    asked_about = np.column_stack([hidden.known(others.X), _label_column(others.y, y)])
    folds = imputation.folds_of(len(own), seed)
    prior = imputation.imputed(table, own, k, folds, seed)
    theirs = imputation.predicted(table, own, asked_about, k, seed)
    base = theirs @ imputation.weights(prior, own)
    features = np.concatenate([theirs, _evidence(others.answers)], axis=2)
    both = features @ imputation.weights(np.concatenate([prior, evidence], axis=2), own)
    guesses = _guesses(method, both, others.answers, own, seed)
    return advantage((guesses == others.own)[None], (base.argmax(axis=1) == others.own)[None])


def _evidence(answers: _Answers) -> Array:
    """What the model says for each candidate [n, k, 3 or 5]: its fit less the others', the best fit, and the label.

    With weights the same two of its gradient.
    """
    parts = [answers.right.astype(float)]
    for values in (answers.fits, answers.gradients):
        if values is not None:
            centred = values - values.mean(axis=1, keepdims=True)
            best = values == values.max(axis=1, keepdims=True)
            best &= ~best.all(axis=1, keepdims=True)
            parts += [centred / max(float(centred.std()), 1e-12), best.astype(float)]
    return np.stack(parts, axis=2)


def _guesses(method: str, both: Array, answers: _Answers, own: Index, seed: int) -> Index:
    if method == "combined":
        return np.asarray(both.argmax(axis=1))
    prior = np.bincount(own, minlength=both.shape[1]) / len(own)
    if method == "fredrikson":
        return np.asarray((np.log(prior + 1e-12) - np.logaddexp(0, -answers.fits)).argmax(axis=1))
    ties = 1e-9 * np.random.default_rng([seed, 2]).random(answers.fits.shape)
    sure = np.abs(answers.fits) + ties  # confidence in whatever label is answered
    several = np.where(answers.right, sure, -np.inf).argmax(axis=1)
    return np.asarray(np.where(answers.right.any(axis=1), several, sure.argmin(axis=1)))


def advantage(attack: NDArray[np.bool_], baseline: NDArray[np.bool_], confidence: float = 0.95) -> WithInterval:
    """The mean difference of two paired rows of right guesses [draws, n], with its interval over records and draws.

    The normal interval of the mean of n paired differences, with the variance of the mean over draws added, and widened
    by one record to either side for small n.
    """
    paired = attack.astype(float) - baseline
    differences, draws = paired.mean(axis=0), len(paired)
    n, value = len(differences), float(differences.mean())
    variance = float(differences.var(ddof=1)) / n
    variance += float(paired.mean(axis=1).var(ddof=1)) / draws if draws > 1 else 0.0
    half = float(-ndtri((1 - confidence) / 2)) * np.sqrt(variance) + 1 / n
    return WithInterval(value, max(-1.0, value - half), min(1.0, value + half))


def _result(hidden: Hidden, judged: _Judged, groups: NDArray[Any] | None, *, started: float, **run: Any) -> Attribute:
    gain = advantage(judged.attack, judged.baseline)
    attack_rate, base_rate = float(judged.attack.mean()), float(judged.baseline.mean())
    by_group = {}
    for group in [] if groups is None else np.unique(groups):
        inside = groups == group
        if inside.sum() > 1:
            part = judged.attack[:, inside], judged.baseline[:, inside]
            by_group[str(group)] = {
                "records": int(inside.sum()), "accuracy": float(part[0].mean()), "baseline": float(part[1].mean()),
                "advantage": list(advantage(*part)),
            }  # fmt: skip
    reason = "" if gain.low > 0 else (
        f"The model adds nothing certain to imputation: {attack_rate:.1%} right with it and {base_rate:.1%} without, a "
        f"difference between {gain.low:+.1%} and {gain.high:+.1%}."
    )  # fmt: skip
    notes = [] if judged.control is None or judged.control.low <= 0 else [
        f"Non-members lose {float(judged.control):.1%} too: that part is what the model learned about everybody, not "
        "about its members."
    ]  # fmt: skip
    return Attribute(
        column=hidden.columns, accuracy=attack_rate, baseline=base_rate, advantage=gain,
        majority=float(np.bincount(hidden.own).max() / len(hidden.own)), control=judged.control, values=hidden.values,
        guesses=judged.guesses, scores=judged.scores, by_group=by_group, quantity=hidden.quantity, reason=reason,
        notes=tuple(notes), seconds=time.perf_counter() - started, **run,
    )  # fmt: skip


# -- what is handed in ------------------------------------------------------------------------------------------------


def _checked(X: object, y: Any, what: str, width: int | None) -> tuple[Tensor, NDArray[Any]]:
    rows = checked_rows(X, what=what, width=width)
    labels = np.asarray(y.detach().cpu().numpy() if isinstance(y, Tensor) else y)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.ndim != 1 or len(labels) != len(rows):
        raise WrongShape(f"The {what} have {len(rows)} rows and labels of shape {labels.shape}.")
    if len(rows) < FEWEST:
        raise InvalidInput(f"There are {len(rows)} {what}; attribute inference needs at least {FEWEST}.")
    return rows, labels.astype(str) if labels.dtype.kind == "O" else labels


def _checked_groups(groups: Any, records: int) -> NDArray[Any] | None:
    if groups is None:
        return None
    named = np.asarray(groups)
    if named.shape != (records,):
        raise InvalidInput(f"groups names a subgroup for each of the {records:,} records; got shape {named.shape}.")
    return named


def _label_column(y: NDArray[Any], known: NDArray[Any]) -> Array:
    return y.astype(float) if y.dtype.kind in "fiub" else np.searchsorted(np.unique(known), y).astype(float)


def _shape(model: object, rows: Tensor) -> dict[str, Any]:
    """A plain function does not say what it takes; the records do."""
    return {"input_shape": (rows.shape[1],)} if is_plain_function(model) else {}
