"""Membership: who was in the training set, by plain losses against held-out rows, and by the attack on other rows.

Figures are recomputed from the scores with scikit-learn. That members can be told from others, or were not, is compared
with the loss of the model on its training rows and on held-out rows, which the audit was not given. The attack is also
run with two sets of rows that the model never saw: it must tell neither from the other.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from experiments.claims.checks.checked import Checked
from experiments.claims.checks.statistics import intervals_meet, share_interval
from experiments.claims.recording import Audited
from experiments.claims.subject import Array, Rows, Subject, matrix

NAME, ON_COPY = "membership", "membership-on-a-copy"
CLEAR = 0.6
"""Area from which docs/severity.md calls exposure clear."""
THRESHOLDS = 60
"""Quantiles of the scores that are tried as thresholds."""
SEVERAL = 3.9
"""Standard errors that chance leaves less often than once in 10,000 times."""


def check(audited: Audited, subject: Subject) -> list[Checked]:
    """Every claim about who was in the training set."""
    claims: list[Checked] = []
    found = audited.finding(NAME)
    if found is not None and found["outcome"] != "inconclusive":
        results = [call.result for call in audited.made_by(NAME, "membership.attack")]
        same = [one for one in results if one.method == found["measures"]["method"]]
        claims += _figures(found, same[-1:]) + _losses(found, subject)
        if found["severity"] != "none" and not hasattr(subject.table.heldout.X, "iloc"):
            claims.append(_strangers(found, subject))
    found = audited.finding(ON_COPY)
    if found is not None and found["outcome"] != "inconclusive":
        results = [call.result for call in audited.made_by(ON_COPY, "membership.on_copy")]
        claims += _copy_figures(found, results[-1:])
    return claims


# -- figures ----------------------------------------------------------------------------------------------------------


def area(members: Array, others: Array) -> float:
    """The chance that a member scores above another, by scikit-learn."""
    truth = np.concatenate([np.ones(len(members)), np.zeros(len(others))])
    return float(roc_auc_score(truth, np.concatenate([members, others])))


def half_width(value: float, members: int, others: int) -> float:
    """How far chance rarely takes an area (Hanley and McNeil 1982)."""
    first, second = value / (2 - value), 2 * value**2 / (1 + value)
    spread = value * (1 - value) + (members - 1) * (first - value**2) + (others - 1) * (second - value**2)
    return SEVERAL * float(np.sqrt(max(spread, 1.0) / (members * others)))


def found_at(level: float, members: Array, others: Array) -> float:
    """The largest share of members above a threshold that at most this share of others passes."""
    ordered = np.sort(others)[::-1]
    threshold = ordered[int(np.floor(level * len(others) + 1e-9))]
    return float((members > threshold).mean())


def most_epsilon(members: Array, others: Array) -> float:
    """The largest epsilon that any two thresholds show, before correction for having several.

    Whoever scores above the first is guessed in, whoever scores below the second out; under epsilon-DP the odds of a
    right guess are at most e^epsilon. One of the two may lie beyond all scores, so that one end alone is guessed.
    """
    rows = min(len(members), len(others))
    cuts = np.quantile(np.concatenate([members, others]), np.linspace(0, 1, THRESHOLDS + 1))
    above, below = ([(compared(side[:, None], cuts)).mean(axis=0) for side in (members, others)]
                    for compared in (np.greater_equal, np.less_equal))  # fmt: skip
    best = 0.0
    for (caught, wrongly), (right, missed) in product(zip(*above, strict=True), zip(*reversed(below), strict=True)):
        for good, bad in ((caught + right, wrongly + missed), (caught, wrongly), (right, missed)):
            hits, wrong = int(good * rows), int(bad * rows)
            if hits > wrong:
                low = share_interval(hits, hits + wrong, error=0.2)[0]
                best = max(best, float(np.log(low / (1 - low))) if low < 1 else np.inf)
    return best


def _figures(found: dict[str, Any], results: list[Any]) -> list[Checked]:
    """The stated figures against the scores that the attack returned."""
    if not results:
        return [Checked(found["name"], found["title"], "no scores were returned", False)]
    said, (result,) = found["measures"], results
    members, others = np.asarray(result.scores), np.asarray(result.non_member_scores)
    true = area(members, others)
    claims = [Checked(NAME, f"auc: {said['auc']:.4g}", f"{true:.4g}", abs(true - said["auc"]) <= 1e-3)]
    for level in (0.1, 0.01, 0.001):
        stated = said.get(f"found_at_{level:g}_false_positives")
        if stated is not None:
            true = found_at(level, members, others)
            claims.append(Checked(NAME, f"found at {level:g}: {stated:.4g}", f"{true:.4g}", stated <= true + 2e-3))
    most = most_epsilon(members, others)
    stated = said["epsilon_at_least"]
    claims.append(Checked(NAME, f"epsilon at least {stated:.3g}", f"no two thresholds show more than {most:.3g}",
                          stated <= most + 1e-6))  # fmt: skip
    return claims


def _copy_figures(found: dict[str, Any], results: list[Any]) -> list[Checked]:
    if not results:
        return [Checked(found["name"], found["title"], "no scores were returned", False)]
    said, (result,) = found["measures"], results
    claims = []
    for name, one in (("auc_on_the_copy", result.copy), ("auc_at_the_endpoint", result.endpoint)):
        true = area(np.asarray(one.scores), np.asarray(one.non_member_scores))
        claims.append(Checked(ON_COPY, f"{name}: {said[name]:.4g}", f"{true:.4g}", abs(true - said[name]) <= 1e-3))
    return claims


# -- the claim itself -------------------------------------------------------------------------------------------------


def losses(subject: Subject, rows: Rows) -> Array:
    """The loss of the model on each row, from what it answers."""
    y = np.asarray(rows.y)
    X = rows.X if hasattr(rows.X, "iloc") else matrix(rows.X)
    if subject.decide is None:
        return np.square(subject.scores(X)[0][:, 0] - y)
    scores = subject.scores(X)
    best = min((one for one in scores if one.shape[1] == len(set(y.tolist()))), key=lambda one: one.min() < 0,
               default=scores[0])  # fmt: skip
    if best.shape[1] == 1:
        return np.where(y > 0, -best[:, 0], best[:, 0])
    return -best[np.arange(len(y)), y.astype(int)]


def _losses(found: dict[str, Any], subject: Subject) -> list[Checked]:
    """What plain losses say of training rows and held-out rows, beside what the report says."""
    inside, outside = losses(subject, subject.table.training), losses(subject, subject.table.heldout)
    if len(inside) < 30 or not np.isfinite(np.concatenate([inside, outside])).all():
        return []
    true = area(-inside, -outside)
    low = true - half_width(true, len(inside), len(outside))
    measured = f"losses alone tell training rows from held-out ones with an area of {true:.3f}, at least {low:.3f}"
    if found["severity"] == "none":
        return [Checked(NAME, found["title"], measured, low <= 0.5)]
    return [Checked(NAME, f"{found['outcome']}: {found['title']}", measured,
                    found["outcome"] == "succeeded" or low < CLEAR)]  # fmt: skip


def _strangers(found: dict[str, Any], subject: Subject) -> Checked:
    """The attack on two sets of rows that the model never saw: whoever is told from others there was told wrongly."""
    import divulge

    options = {key: value for key, value in subject.options.items() if key == "input_shape"}
    target = divulge.oracle(subject.model, access="value", **options)
    known = {tuple(row) for row in matrix(subject.table.unseen.X)}
    fresh = [place for place, row in enumerate(matrix(subject.table.heldout.X)) if tuple(row) not in known]
    sides = [(matrix(rows.X)[kept], np.asarray(rows.y)[kept]) for rows, kept in
             ((subject.table.unseen, slice(None)), (subject.table.heldout, fresh))]  # fmt: skip
    risk = divulge.membership.attack(target, *sides, method="auto", seed=1)
    width = half_width(0.5, len(sides[0][1]), len(sides[1][1]))
    return Checked(NAME, f"{found['title']}: by membership", f"unseen rows against held-out ones: area {risk.auc:.3f}",
                   intervals_meet((risk.auc, risk.auc), (0.5 - width, 0.5 + width)))  # fmt: skip
