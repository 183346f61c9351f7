"""Protections: the chance of a blind guess, what noise guarantees, and attacks run again behind the guards."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from experiments.claims.checks.checked import Checked
from experiments.claims.checks.copies import answers, decisions
from experiments.claims.checks.records import units
from experiments.claims.checks.statistics import in_percent, share_interval
from experiments.claims.recording import Audited
from experiments.claims.subject import Array, Subject, matrix

COPY = 0.9
"""Agreement from which an attack has a copy."""
SEEDS = 3


def check(audited: Audited, subject: Subject, *, rerun: bool = True) -> list[Checked]:
    """Every claim about protection; ``rerun`` also repeats the attacks behind the guards."""
    claims: list[Checked] = []
    noise = audited.finding("protection-needed")
    if noise is not None and not hasattr(subject.table.heldout.X, "iloc"):
        claims += (
            _blind_guess(noise, subject) + _noise(noise)
            if "accepted_chance" in noise["measures"]
            else _private(noise, subject)
        )
    guards = audited.finding("protection-at-the-endpoint")
    if guards is not None and rerun:
        claims += _guards(guards, subject)
    return claims + _offered(audited)


# -- blind guesses ----------------------------------------------------------------------------------------------------


def best_blind_guess(proposed: Array, judged: Array, radius: float, *, seeds: int = 5) -> tuple[int, int]:
    """Hits of the best of many guesses that do not see the judged rows: rows, means of neighbours, medians, centres."""
    from sklearn.cluster import KMeans

    guesses = [proposed, proposed.mean(axis=0, keepdims=True), np.median(proposed, axis=0, keepdims=True)]
    counts = [(count, seed) for count in (2, 5, 20) if count < len(proposed) for seed in range(seeds)]
    guesses += [KMeans(count, n_init=1, random_state=seed).fit(proposed).cluster_centers_ for count, seed in counts]
    pool = np.concatenate(guesses)
    near = _within(pool, proposed, radius)
    best = pool[np.argsort(-near.sum(axis=1))[:20]]
    return int(_within(best[:1], judged, radius).sum()), len(judged)


def _within(guesses: Array, rows: Array, radius: float) -> Array:
    from scipy.spatial.distance import cdist

    near: Array = cdist(guesses, rows) <= radius
    return near


def _blind_guess(found: dict[str, Any], subject: Subject) -> list[Checked]:
    """The stated upper limit of a blind guess, against the best of many guesses on held-out rows."""
    said = found["measures"]
    table = subject.table
    known = np.concatenate([matrix(table.training.X), matrix(table.unseen.X)])
    scale = np.ones(known.shape[1]) if "shape" in subject.options else units(known)
    radius = math.sqrt(said["accepted_error_mse"] * known.shape[1])
    hits, rows = best_blind_guess(known / scale, matrix(table.heldout.X) / scale, radius)
    low, _ = share_interval(hits, rows)
    upper = said["blind_guess_upper_limit"]
    claim = f"a blind guess has at most {in_percent(upper)}"
    return [Checked(found["name"], claim, f"{hits} of {rows} held-out records", low <= upper)]


# -- noise ------------------------------------------------------------------------------------------------------------


def delta_of(epsilon: float, mu: float) -> float:
    """The least delta of a Gaussian mechanism with shift mu (Balle and Wang 2018)."""
    log_tail = norm.logcdf(-epsilon / mu - mu / 2)
    return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon + log_tail))


def _noise(found: dict[str, Any]) -> list[Checked]:
    """Epsilon and the bound that noise gives, for full batches, from the Gaussian mechanism in closed form."""
    said = found["measures"]
    stated = re.search(r"noise multiplier ([\d.,e-]+)", found["meaning"])
    if stated is None or said["sampling_rate"] != 1.0:
        return []
    noise = float(stated.group(1).strip(".,").replace(",", ""))
    mu = math.sqrt(said["training_steps"]) / noise
    bound = float(norm.cdf(norm.ppf(said["blind_guess_upper_limit"]) + mu))
    claim = f"no attacker has a chance above {in_percent(said['accepted_chance'])}"
    allowed = f"the Gaussian mechanism allows {in_percent(bound)}"
    claims = [Checked(found["name"], claim, allowed, bound <= said["accepted_chance"] * 1.01)]
    epsilon = re.search(r"epsilon ([\d.,e-]+)", found["title"])
    if epsilon is not None:
        named = float(epsilon.group(1).strip(".,").replace(",", ""))
        true = brentq(lambda e: delta_of(e, mu) - said["delta"], 0.0, 1e4) if delta_of(0.0, mu) > said["delta"] else 0.0
        claims.append(
            Checked(found["name"], found["title"], f"epsilon {true:.3g}", abs(named - true) <= 0.02 * true + 0.01)
        )
    return claims


def _private(found: dict[str, Any], subject: Subject) -> list[Checked]:
    """What a private model is said to guarantee; with noise that its recipe repeats it guarantees nothing."""
    said, recipe = found["measures"], subject.options.get("recipe")
    if subject.guarantee is None or recipe is None or recipe.privacy is None:
        return [Checked(found["name"], found["title"], "the model was not trained privately", False)]
    noise, steps = subject.guarantee
    claims = [
        Checked(
            found["name"],
            f"noise {said['noise_multiplier']}, {said['training_steps']} steps",
            f"noise {noise}, {steps} steps",
            (said["noise_multiplier"], said["training_steps"]) == subject.guarantee,
        )
    ]
    if recipe.privacy.noise_seed is not None:
        claims.append(
            Checked(
                found["name"],
                found["title"],
                "the recipe repeats the noise",
                "no privacy can be claimed" in found["title"],
            )
        )
        return claims
    bound = float(norm.cdf(norm.ppf(said["blind_guess_upper_limit"]) + math.sqrt(steps) / noise))
    stated = said["chance_at_most"]
    claim, measured = f"at most {in_percent(stated)}", f"the Gaussian mechanism allows {in_percent(bound)}"
    return [*claims, Checked(found["name"], claim, measured, stated >= bound * 0.99)]


# -- guards -----------------------------------------------------------------------------------------------------------


def _offered(audited: Audited) -> list[Checked]:
    """A remedy that names a guard stands beside a measurement of that guard against the same attack."""
    study = audited.finding("protection-at-the-endpoint")
    rows = [] if study is None else study["tables"][0]["rows"]
    measured = {str(row[0]) for row in rows}
    claims = []
    for found in audited.report["findings"]:
        for remedy in found["remedies"]:
            guard = re.match(r"Guard (\S+):", remedy)
            if guard is not None:
                known = guard.group(1) in measured
                claims.append(
                    Checked(found["name"], remedy, "measured in this audit" if known else "not measured", known)
                )
    return claims


def _guards(found: dict[str, Any], subject: Subject) -> list[Checked]:
    """Each guard that is said to stop every copy: the learned copies behind it, from other seeds, on held-out rows."""
    claims = []
    for remedy in found["remedies"]:
        match = re.match(r"Guard (\S+): the best attack \((.+), ([\d,]+) rows?\)", remedy)
        if match is None or subject.decide is None:
            continue
        scores = [copied_behind(match.group(1), subject, seed) for seed in range(1, SEEDS + 1)]
        median = sorted(scores)[len(scores) // 2]
        low, _ = share_interval(round(median * len(subject.table.heldout.y)), len(subject.table.heldout.y), error=0.01)
        shown = ", ".join(in_percent(score) for score in scores)
        claims.append(Checked(found["name"], remedy, f"learned copies behind it agree in {shown}", low < COPY))
    return claims


def copied_behind(name: str, subject: Subject, seed: int, *, rows: int = 300, steps: int = 500) -> float:
    """Agreement of a student that learns from guarded answers about unseen rows, on held-out rows."""
    import divulge
    from divulge.oracles.guards import guard

    X, held = matrix(subject.table.unseen.X), matrix(subject.table.heldout.X)
    options = {key: value for key, value in subject.options.items() if key == "input_shape"}
    view = guard(name, seed=seed)(divulge.oracle(subject.model, access="value", **options))
    pool = X[np.random.default_rng(seed).permutation(len(X))[:rows]]
    assert subject.decide is not None
    shown = view.label(pool).numpy() if view.access == "label" else None
    copy = _student(pool, shown if shown is not None else decisions(view.value(pool).double().numpy()), steps, seed)
    return float((decisions(answers(copy, held)) == subject.decide(held)).mean())


def _student(X: Array, y: Array, steps: int, seed: int) -> Any:
    """A network with one hidden layer, fitted to labels in units of the columns."""
    import torch
    from torch import nn

    centre, scale = X.mean(axis=0), units(X)
    classes = int(y.max()) + 1
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(X.shape[1], 128), nn.ReLU(), nn.Linear(128, max(2, classes))).double()
        optimiser = torch.optim.Adam(network.parameters(), lr=5e-3, weight_decay=1e-4)
        rows, labels = torch.tensor((X - centre) / scale), torch.tensor(y).long()
        for _ in range(steps):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(rows), labels).backward()
            optimiser.step()

    class Copy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.network((x - torch.tensor(centre)) / torch.tensor(scale))

    return Copy()
