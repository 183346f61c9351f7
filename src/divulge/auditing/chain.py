"""From a prediction endpoint to training data: the weights that an extracted copy stands for.

Extraction (Milli 2019) gives a function, reconstruction (Haim 2022) reads weights. This is the one place where two
attacks meet.
"""

from __future__ import annotations

from divulge.core.errors import AttackFailed
from divulge.extraction import Extraction
from divulge.models import MLP
from divulge.reconstruction import rebalance


def weights_of_copy(extraction: Extraction) -> MLP:
    """The homogeneous one-hidden-layer network that an exact extraction copied, oriented and balanced."""
    if not extraction.exact:
        raise AttackFailed(
            f"Only an exact copy can be oriented, and this one is not ({extraction.reason or 'unverified'})."
        )
    if extraction.width == 0:
        raise AttackFailed("The copy is linear: it has no hidden units whose weights would depend on single records.")
    return rebalance.orient(extraction.model)
