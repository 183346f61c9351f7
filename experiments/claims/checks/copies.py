"""Copies: are they exact, and do they share the decisions or the variance that the report states?

The copies that the attacks returned are called as plain torch modules. Stated figures are recomputed on the rows that
the audit was given, with scikit-learn's metrics; claims about the model are checked on rows that it was not given.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score
from torch import nn

from experiments.claims.checks.checked import Checked
from experiments.claims.checks.statistics import explained, in_percent, intervals_meet, resampled, share_interval
from experiments.claims.recording import Audited, Call
from experiments.claims.subject import Array, Rows, Subject, matrix

EXACT = 1e-4
"""An exact copy is off by no more than this part of the spread of the answers."""
EQUIVALENT = 1e-3
"""An equivalent copy decides otherwise on no larger share of rows."""
FAITHFUL, USEFUL = 0.98, 0.9
"""Likeness from which docs/severity.md calls a copy taken, and taken in part."""
_METRICS = {"right_answers": accuracy_score, "balanced_accuracy": balanced_accuracy_score}


def answers(copy: nn.Module, X: Array) -> Array:
    """What a copy answers [n, k]."""
    dtype = next((weights.dtype for weights in copy.parameters()), torch.float64)
    with torch.no_grad():
        out: Array = (
            copy(torch.tensor(X, dtype=dtype).reshape(len(X), *getattr(copy, "input_shape", (-1,)))).double().numpy()
        )
    return out.reshape(len(X), -1)


def decisions(out: Array) -> Array:
    """The classes that answers [n, k] mean: the largest, the sign of one logit, or one share above a half."""
    if out.shape[1] > 1:
        return out.argmax(axis=1)
    share = bool(((out >= 0) & (out <= 1)).all())
    return (out[:, 0] > (0.5 if share else 0.0)).astype(int)


def numbers(rows: Any, subject: Subject) -> Array:
    """Rows as a copy takes them."""
    return matrix(rows)


def off_by(subject: Subject, copy: nn.Module, X: Array) -> float:
    """The largest difference between a copy and what it copies best of what the model shows, over its spread.

    Logits of several classes are compared up to a term that all classes share: no answer shows it.
    """
    out, best = answers(copy, X), np.inf
    shown = [out, out - out.mean(axis=1, keepdims=True)] if subject.decide is not None and out.shape[1] > 2 else [out]
    for truth in subject.scores(X):
        if truth.shape == out.shape:
            spread = float(truth.std()) or 1.0
            best = min(best, *(float(np.abs(truth - one).max()) / spread for one in shown))
    return best


def check(audited: Audited, subject: Subject) -> list[Checked]:
    """Every claim about copies."""
    if not hasattr(subject.table.heldout.X, "shape") or hasattr(subject.table.heldout.X, "iloc"):
        return []  # a table of mixed columns: the attacks work in coordinates of their own
    claims: list[Checked] = []
    for access, attacks in (
        ("value", ("extraction.from_values", "extraction.from_tree_values")),
        ("gradient", ("extraction.from_gradients", "extraction.deep_from_gradients")),
    ):
        found = audited.finding(f"copy-from-{access}s")
        if found is not None:
            claims += _exact_claims(found, audited.made_by(found["name"], *attacks), subject)
    found = audited.finding("copy-from-labels")
    if found is not None:
        claims += _label_claims(found, audited.made_by(found["name"], "extraction.from_labels"), subject)
    for name in ("copy-by-learning", "copy-by-learning-from-labels", "copy-by-learning-from-gradients"):
        found = audited.finding(name)
        if found is not None:
            claims += _learned_claims(found, audited.made_by(name, "extraction.by_training"), subject)
    return claims


# -- exact copies -----------------------------------------------------------------------------------------------------


def _exact_claims(found: dict[str, Any], calls: list[Call], subject: Subject) -> list[Checked]:
    if found["outcome"] == "inconclusive":
        return []
    if not calls:
        taken = found["severity"] != "none" or found["measures"].get("exact")
        return [Checked(found["name"], found["title"], "no copy was returned", not taken)]
    exact = [call for call in calls if call.result.exact]
    copy = exact[-1].result.model if exact else _closest(calls, subject)
    said = found["measures"]
    claims = _stated_figures(found, copy, subject)
    if said.get("exact"):
        claims += _exactness(found, copy, subject)
    elif found["severity"] != "none":
        claims.append(_worth(found, [copy], subject))
    if said.get("exact") and subject.width is not None:
        units = said["hidden_units_found"]
        true = f"{subject.width} hidden units"
        claims.append(Checked(found["name"], f"hidden_units_found: {units}", true, units <= subject.width))
    return claims


def _exactness(found: dict[str, Any], copy: nn.Module, subject: Subject) -> list[Checked]:
    """An exact copy gives the answers of the model on held-out rows, between them and near them."""
    X = subject.around()
    worst = off_by(subject, copy, X)
    claims = [
        Checked(found["name"], found["title"], f"off by {worst:.2g} of the spread near held-out rows", worst <= EXACT)
    ]
    if subject.decide is not None:
        same = decisions(answers(copy, X)) == subject.decide(X)
        out = answers(copy, X[~same]) if not same.all() else np.ones((1, 1))
        margin = np.sort(out, axis=1)
        near_tie = np.abs(margin[:, -1] - margin[:, -2]) if out.shape[1] > 1 else np.abs(out[:, 0])
        ties = bool((near_tie <= EXACT * answers(copy, X).std()).all())
        claims.append(Checked(found["name"], "exact: the same decisions", f"{in_percent(float(same.mean()))} the same",
                              bool(same.all()) or ties))  # fmt: skip
    return claims


def _closest(calls: list[Call], subject: Subject) -> nn.Module:
    """Of several copies that are not exact, the one most like the model on the rows that judged them."""
    copies: list[nn.Module] = [call.result.model for call in calls]
    if len(copies) == 1:
        return copies[0]
    share = "variance_explained" if subject.decide is None else "same_decision"
    return max(copies, key=lambda copy: figures(copy, subject, subject.table.unseen)[share])


# -- copies from labels -----------------------------------------------------------------------------------------------


def _label_claims(found: dict[str, Any], calls: list[Call], subject: Subject) -> list[Checked]:
    """An equivalent copy decides like the model on held-out rows, between them and near them; any other is worth it."""
    if found["outcome"] == "inconclusive" or subject.decide is None:
        return []
    if not calls:
        taken = found["severity"] != "none" or found["measures"].get("equivalent")
        return [Checked(found["name"], found["title"], "no copy was returned", not taken)]
    copy = calls[-1].result.model
    claims = _stated_figures(found, copy, subject)
    if found["measures"]["equivalent"]:
        X = subject.around()
        other = int((decisions(answers(copy, X)) != subject.decide(X)).sum())
        low, _ = share_interval(other, len(X))
        measured = f"{other} of {len(X)} rows near held-out rows are decided otherwise"
        claims.append(Checked(found["name"], f"equivalent: {found['title']}", measured, low <= EQUIVALENT))
    elif found["severity"] != "none":
        claims.append(_worth(found, [copy], subject))
    return claims


def _worth(found: dict[str, Any], copies: list[nn.Module], subject: Subject) -> Checked:
    """A copy that counts as taken, in whole or in part, is as alike on held-out rows as the written rule asks."""
    low, high = _likeness_interval(copies, subject, subject.table.heldout, quantity=_quantity(found))
    least = FAITHFUL if found["outcome"] == "succeeded" else USEFUL
    return Checked(found["name"], f"{found['outcome']}: {found['title']}",
                   f"likeness on held-out rows {in_percent(low)} to {in_percent(high)}", high >= least)  # fmt: skip


# -- learned copies ---------------------------------------------------------------------------------------------------


def _learned_claims(found: dict[str, Any], calls: list[Call], subject: Subject) -> list[Checked]:
    if found["title"].startswith("There is nothing to copy"):
        return [_constant_claim(found, subject)]
    asked = re.search(r"fitted to ([\d,]+)", found["title"])
    if asked is None:
        return [Checked(found["name"], found["title"], "the title names no number of queries", False)]
    queries = int(asked.group(1).replace(",", ""))
    copies = [call.result.model for call in calls if call.options.get("queries") == queries]
    said = found["measures"]
    if len(copies) < said["draws"]:
        return [Checked(found["name"], f"{said['draws']} draws", f"{len(copies)} students were fitted", False)]
    copies = copies[: said["draws"]]
    stated = said.get("same_decision", said.get("variance_explained"))
    judged = len(subject.table.unseen.y) - len(subject.table.unseen.y) // 2
    low, high = _likeness_interval(copies, subject, subject.table.heldout, quantity=_quantity(found))
    around = share_interval(round(stated * judged), judged) if "same_decision" in said else _around_explained(
        stated, copies, subject)  # fmt: skip
    claims = [Checked(found["name"], found["title"], f"{in_percent(low)} to {in_percent(high)} on held-out rows",
                      intervals_meet(around, (low, high)))]  # fmt: skip
    if said.get("interval"):
        claims.append(_interval_claim(found, copies, subject, (low, high)))
    if found["severity"] != "none":
        claims.append(_worth(found, copies, subject))
    return [*claims, *_mean_figures(found, copies, subject)]


def _constant_claim(found: dict[str, Any], subject: Subject) -> Checked:
    """A model of which nothing can be copied answers all unseen rows alike."""
    rows = matrix(subject.table.unseen.X)
    answers = subject.scores(rows) if subject.decide is None else [subject.decide(rows)]
    alike = any(len(np.unique(one, axis=0)) == 1 for one in answers)
    return Checked(found["name"], found["title"], f"all {len(rows)} unseen rows alike: {alike}", alike)


def _around_explained(stated: float, copies: list[nn.Module], subject: Subject) -> tuple[float, float]:
    """What share of variance the judging rows may give where the stated one is true."""
    low, high = _likeness_interval(copies, subject, subject.table.unseen, quantity=True)
    return min(stated, low), max(stated, high)


def _interval_claim(
    found: dict[str, Any], copies: list[nn.Module], subject: Subject, truth: tuple[float, float]
) -> Checked:
    """The stated interval and the interval of the truth have a point in common."""
    text = found["measures"]["interval"]
    ends = [_percent(part) for part in text.split(" to ")]
    measured = f"{in_percent(truth[0])} to {in_percent(truth[1])} on held-out rows"
    low = -np.inf if text.startswith("0%") else ends[0] - 5e-4  # a share of variance below zero is printed as none
    holds = intervals_meet((low, ends[-1] + 5e-4), truth)
    return Checked(found["name"], f"95% interval {text}", measured, holds)


def _percent(text: str) -> float:
    """A share from words such as "92.7%" and "over 99.9%"."""
    number = re.search(r"-?[\d.]+", text)
    share = float(number.group()) / 100 if number else float("nan")
    return 1.0 if text.startswith("over") else 0.0 if text.startswith("under") else share


def _quantity(found: dict[str, Any]) -> bool:
    """Whether the report judges a copy by variance: a single answer that never changes its sign is no decision."""
    return "variance_explained" in found["measures"]


def _likeness_interval(copies: list[nn.Module], subject: Subject, rows: Rows, *, quantity: bool) -> tuple[float, float]:
    """The mean likeness of copies on these rows, with what chance does to it."""
    X = matrix(rows.X)
    if subject.decide is not None and not quantity:
        truth = subject.decide(X)
        hits = [int((decisions(answers(copy, X)) == truth).sum()) for copy in copies]
        return share_interval(round(sum(hits) / len(hits)), len(X))
    values = subject.scores(X)[0]
    ends = [resampled(values, answers(copy, X)) for copy in copies]
    return sum(end[0] for end in ends) / len(ends), sum(end[1] for end in ends) / len(ends)


# -- figures ----------------------------------------------------------------------------------------------------------


def figures(copy: nn.Module, subject: Subject, rows: Rows) -> dict[str, float]:
    """What there is to say of a copy, by scikit-learn's metrics."""
    X, y = matrix(rows.X), np.asarray(rows.y)
    out = answers(copy, X)
    if subject.decide is None:
        return {"variance_explained": explained(subject.scores(X)[0], out)}
    own, copied = subject.decide(X), decisions(out)
    said = {"same_decision": accuracy_score(own, copied), "balanced_same_decision": _balanced(own, copied)}
    if out.shape[1] == 1:
        said["variance_explained"] = explained(subject.scores(X)[0], out)
    for who, decided in (("copy", copied), ("model", own)):
        said[f"right_answers_of_the_{who}"] = accuracy_score(y, decided)
        said[f"balanced_accuracy_of_the_{who}"] = _balanced(y, decided)
    if len(set(y.tolist())) == 2 and out.shape[1] <= 2:
        said["auc_of_the_copy"] = roc_auc_score(y, out[:, -1] - (out[:, 0] if out.shape[1] == 2 else 0))
    return {name: float(value) for name, value in said.items()}


def _balanced(truth: Array, decided: Array) -> float:
    """Balanced accuracy; of a single class, accuracy."""
    if len(set(truth.tolist())) == 1:
        return float(accuracy_score(truth, decided))
    return float(np.mean([np.mean(decided[truth == one] == one) for one in np.unique(truth)]))


def _stated_figures(found: dict[str, Any], copy: nn.Module, subject: Subject) -> list[Checked]:
    """The figures of an exact copy, on as many of the unseen rows as the audit says it judged it by."""
    unseen, count = subject.table.unseen, found["measures"]["judging_rows"]
    rows = Rows(unseen.X[:count], np.asarray(unseen.y)[:count])
    measured = figures(copy, subject, rows)
    return [
        Checked(found["name"], f"{name}: {stated:.6g}", f"{measured[name]:.6g}", abs(measured[name] - stated) <= 2e-3)
        for name, stated in found["measures"].items() if name in measured and isinstance(stated, float)
    ]  # fmt: skip


def _mean_figures(found: dict[str, Any], copies: list[nn.Module], subject: Subject) -> list[Checked]:
    """The figures of learned copies, on held-out rows; the audit judged them by half of the unseen ones."""
    held = [figures(copy, subject, subject.table.heldout) for copy in copies]
    rows = min(len(subject.table.heldout.y), len(subject.table.unseen.y) // 2)
    classes = 1 if subject.decide is None else _smallest_class(subject)
    claims = []
    for name, stated in found["measures"].items():
        if not isinstance(stated, float) or name not in held[0] or name in ("same_decision", "variance_explained"):
            continue
        mean = sum(one[name] for one in held) / len(held)
        count = classes if name.startswith(("balanced", "auc")) else rows
        near = intervals_meet(share_interval(round(stated * count), count), share_interval(round(mean * count), count))
        claims.append(Checked(found["name"], f"{name}: {stated:.4g}", f"{mean:.4g} on held-out rows", near))
    return claims


def _smallest_class(subject: Subject) -> int:
    """Rows of the rarest class among those that judge a learned copy, about."""
    _, counts = np.unique(subject.table.heldout.y, return_counts=True)
    return max(1, int(counts.min() / 2))
