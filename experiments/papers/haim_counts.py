"""How many training pictures of a target were rebuilt, by the measures of Haim et al. 2022, beside unseen ones."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from divulge.reconstruction import matching
from experiments.papers.haim_targets import Target

ALIKE = 0.9


def match(samples: Tensor, there: Target, *, stretch: bool = False) -> matching.Match:
    """The samples against the pictures of the target."""
    return matching.match(samples, there.X, unseen=there.unseen, mean=there.mean, threshold=ALIKE, stretch=stretch)


def scored(samples: Tensor, there: Target, seconds: float) -> dict[str, Any]:
    """Counts at the thresholds of the paper and ours, for training pictures and, as shares, for unseen ones; ``right``
    is how many of the samples are the best of a training picture above the threshold that 1 % of unseen ones pass."""
    samples = samples.double()
    clipped, stretched = (match(samples, there, stretch=stretch) for stretch in (False, True))
    control = clipped.control
    assert clipped.ssim is not None
    assert stretched.ssim is not None
    assert control is not None
    assert stretched.control is not None
    assert stretched.control.ssim is not None
    limit = by_control(stretched.ssim, stretched.control.ssim)
    return {
        "samples": len(samples), "right": len(stretched.nearest[stretched.ssim > limit["threshold"]].unique()),
        "seconds": seconds, "alike": clipped.found(ALIKE),
        "ssim_0.4": int((stretched.ssim > 0.4).sum()), "ssim_0.9": int((clipped.ssim > 0.9).sum()),
        "unseen_alike": float((control.correlation > ALIKE).double().mean()),
        "unseen_ssim_0.4": float((stretched.control.ssim > 0.4).double().mean()), "p_value": clipped.p_value, **limit,
    }  # fmt: skip


def by_control(seen: Tensor, unseen: Tensor) -> dict[str, Any]:
    """How many training pictures lie above the least threshold from 0.4 on that less than 1 % of unseen ones pass."""
    most = math.ceil(len(unseen) / 100) - 1  # that may pass
    threshold = max(0.4, float(unseen.sort(descending=True).values[most]))
    return {"threshold": threshold, "above_threshold": int((seen > threshold).sum()),
            "unseen_above": float((unseen > threshold).double().mean())}  # fmt: skip
