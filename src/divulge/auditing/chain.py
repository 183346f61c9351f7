"""From a prediction endpoint to training data: the weights that an extracted copy stands for.

Extraction (Milli 2019) gives a function, reconstruction (Haim 2022) reads weights. This is the one place where two
attacks meet.
"""

from __future__ import annotations

from divulge.core.errors import AttackFailed
from divulge.extraction import Extraction, LabelCopy
from divulge.models import MLP
from divulge.reconstruction import rebalance


def weights_of_copy(extraction: Extraction | LabelCopy) -> MLP:
    """The homogeneous network that an exact extraction copied, with all its layers oriented and balanced.

    The units of a deeper copy have their active sides already; only their scales are open. A copy from labels leaves a
    positive factor of the output open too. Reconstruction does not need it: in the stationarity equation it is a factor
    of the multipliers, which are unknown.
    """
    if not extraction.exact:
        raise AttackFailed(
            f"Only an exact copy can be oriented, and this one is not ({extraction.reason or 'unverified'})."
        )
    if extraction.width == 0:
        raise AttackFailed("The copy is linear: it has no hidden units whose weights would depend on single records.")
    if len(extraction.widths) > 1:
        return rebalance.rebalance_all(extraction.model)
    return rebalance.orient(extraction.model)
