"""How much protection is enough? The noise and epsilon that keep every attacker's chance of a reconstruction small."""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from torch import Tensor

from divulge.auditing.finding import Finding, Picture, Table
from divulge.auditing.probe import Probe, deadline
from divulge.auditing.target import Target
from divulge.report.pictures import curve

ACCEPTED = 0.05
"""The chance of a reconstruction that the recommendation accepts."""
CLOSE = 0.1
"""A reconstruction counts when its error is below this part of the data's variance."""


def _records(target: Target) -> Tensor | None:
    """Records like the ones to protect, for what an attacker knows of them beforehand."""
    known = [part for part in (target.inputs, target.unseen) if part is not None]
    return torch.cat(known) if known else None


def _obstacle(target: Target) -> str:
    records = _records(target)
    if records is None:
        return "no data was given; what an attacker knows beforehand is estimated from it."
    if len(records) < 20:
        return f"{len(records)} records are too few to estimate how well a blind guess does."
    return ""


def _run(target: Target, seconds: float) -> Finding:
    from divulge.protection import accounting, bounds, priors

    started = time.perf_counter()
    X = _records(target)
    assert X is not None
    with deadline(seconds):
        eta = CLOSE * float(X.var(dim=0).mean())
        kappa = priors.estimate_kappa(X, eta, error="mse", seed=target.seed)
        log_kappa = math.log(min(kappa.upper, 1 - 1e-9))
        accepted = max(ACCEPTED, min(0.99, 2 * kappa.upper))
        steps = getattr(target.recipe, "epochs", None) or 100
        delta = 1 / (10 * len(X if target.inputs is None else target.inputs))
        rows = []
        for theorem in ("gaussian", "zcdp"):
            noise = bounds.smallest_noise(log_kappa, accepted, steps=steps, theorem=theorem)
            epsilon = accounting.privacy_spent(noise_multiplier=noise, steps=steps, delta=delta).epsilon_pld
            name = "tight Gaussian bound" if theorem == "gaussian" else "Corollary 4 (zCDP)"
            rows.append((name, noise, epsilon))
        picture = bounds_picture(log_kappa)
    noise, epsilon = rows[0][1], rows[0][2]
    return Finding(
        name="protection-needed",
        question="protection",
        adversary=None,
        title=f"Noise multiplier {noise:.3g} (epsilon {epsilon:.3g}) would be enough",
        outcome="succeeded",
        severity="none",
        meaning=f"Trained privately with this noise, no attacker whatever rebuilds a record to within {CLOSE:.0%} of "
        f"the data's variance with a chance above {accepted:.1%}; a blind guess has {kappa.estimate:.2%}.",
        certainty="Proven (Balle et al. 2022, section VII; Hayes et al. 2023), given the chance of a blind guess, "
        f"which is estimated from {kappa.records:,} records with {kappa.confidence:.0%} confidence.",
        measures={
            "accepted_error_mse": eta,
            "blind_guess_estimate": kappa.estimate,
            "blind_guess_upper_limit": kappa.upper,
            "accepted_chance": accepted,
            "training_steps": steps,
            "delta": delta,
        },
        seconds=time.perf_counter() - started,
        seed=target.seed,
        command=f"divulge bound --kappa {kappa.upper:.4g} --gamma {accepted:.4g} --steps {steps} --delta {delta:.3g}",
        pictures=(picture,),
        tables=(Table("Private training that is enough", ("bound", "noise multiplier", "epsilon"), tuple(rows)),),
        notes=(
            "What the noise costs in accuracy depends on the data; train with "
            f"Privacy(noise_multiplier={noise:.3g}, clip=1.0) and audit the result.",
        ),
    )


def bounds_picture(log_kappa: float) -> Picture:
    """The bounds against the privacy spent, for this prior."""
    from divulge.protection import bounds

    mus = np.geomspace(0.05, 12, 60).tolist()
    series = [
        ("tight Gaussian", mus, [math.exp(bounds.log_bound_gaussian(log_kappa, mu)) for mu in mus]),
        ("Corollary 4 (zCDP)", mus, [math.exp(bounds.log_bound_zcdp(log_kappa, mu**2 / 2)) for mu in mus]),
    ]
    png = curve(
        series, x_label="mu = sqrt(steps) / noise multiplier", y_label="chance of a reconstruction, at most", log_x=True
    )
    words = "Upper bounds on the chance of a reconstruction rise from the blind guess to one as the noise shrinks"
    return Picture(png, words, "What no attacker can exceed, against the privacy spent.")


PROBES = (Probe("protection-needed", "How much protection is enough", _obstacle, _run, share=0.5),)
