"""Can someone who knows the rest rebuild one record? Informed adversaries, after Balle et al. 2022."""

from __future__ import annotations

from divulge.informed.baselines import BaselineErrors, Score, baseline_errors, picture, score
from divulge.informed.checks import NotReproduced
from divulge.informed.direct import direct
from divulge.informed.glm import glm
from divulge.informed.linear.models import LinearModel
from divulge.informed.membership import Curve, Membership, membership, membership_scores, roc
from divulge.informed.reconstructor import Reconstructor, reconstructor
from divulge.informed.result import Candidate, Record
from divulge.informed.shadow_models.training import Shadows, shadows

__all__ = [
    "BaselineErrors", "Candidate", "Curve", "LinearModel", "Membership", "NotReproduced", "Reconstructor", "Record",
    "Score", "Shadows", "baseline_errors", "direct", "glm", "membership", "membership_scores", "picture",
    "reconstructor", "roc", "score", "shadows",
]  # fmt: skip
