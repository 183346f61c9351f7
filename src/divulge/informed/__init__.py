"""Can someone who knows the rest rebuild one record? Informed adversaries, after Balle et al. 2022."""

from __future__ import annotations

from divulge.informed.direct import direct
from divulge.informed.glm import glm
from divulge.informed.linear_models import LinearModel
from divulge.informed.record import Candidate, Record
from divulge.informed.shadows import Shadows, shadows

__all__ = ["Candidate", "LinearModel", "Record", "Shadows", "direct", "glm", "shadows"]
