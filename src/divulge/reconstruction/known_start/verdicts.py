"""What the spectrum of a difference says: a number of inputs, or why there is none to be read.

A difference that gradient descent made has a gap: as many singular values as there were inputs, then rounding. The
difference to weights that are not the start has none, and is as large as both together. Adam divides every entry of a
step by its own size, so that a step is not a combination of inputs, and its differences have full rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from divulge.core.errors import AttackFailed, InvalidInput
from divulge.reconstruction.known_start.difference import GAP, LayerPair, Spectrum

FULL = 0.85
"""The share of the singular values from which on a rank counts as full: inputs that are 0 in nearly every record give a
difference of full rank small values at its end."""
UNRELATED = 0.2
"""The largest correlation with weights that are not the start: independent entries stay far below it."""
FEW_VALUES = 300
"""Different values of a tensor up to which it was rounded to eight bits or fewer."""
SAME_SIZE = 0.3
"""Adam's first steps have the same size everywhere, so the spread of |entries| of its difference is small: below this
share of their mean after few steps. Gradient descent stays above 0.7."""


def check(pair: LayerPair, spectrum: Spectrum, n: int | None) -> int:
    """The number of inputs to look for; raises where the spectrum shows none."""
    units, width = pair.stacked()[0].shape
    most = min(units, width)
    if n is not None:
        if n > most:
            raise InvalidInput(
                f"n = {n} inputs cannot be told apart by a layer of {units} units and {width} inputs, bias included; "
                f"give 1 to {most}."
            )
        return n
    if spectrum.ratio >= GAP and 0 < spectrum.rank <= FULL * len(spectrum.values):
        return spectrum.rank
    likeness = _cosine(pair.W0, pair.W)
    if likeness < UNRELATED:
        raise InvalidInput(
            f"This is not the start of the model, or noise was added that hides it: the layer's weights have a "
            f"correlation of {likeness:.2f} with it, and their difference has full rank. Give the checkpoint from "
            "which the model was trained."
        )
    raise AttackFailed(_reason(pair, spectrum, len(spectrum.values)))


def _cosine(A: Tensor, B: Tensor) -> float:
    return float((A * B).sum() / (A.norm() * B.norm()).clamp_min(1e-300))


def _reason(pair: LayerPair, spectrum: Spectrum, most: int) -> str:
    """Why the difference shows no number of inputs."""
    head = f"The difference of the layer to its start has no gap in its singular values (largest ratio "\
           f"{spectrum.ratio:.2f})"  # fmt: skip
    values = distinct_values(pair.W)
    if values <= min(FEW_VALUES, pair.W.shape[1] // 2):
        return (
            f"{head}, and the released weights take {values} different values a row at most: they were rounded, and "
            "the rounding is as large as the difference."
        )
    D = (pair.W - pair.W0).abs()
    if float(D.std() / D.mean().clamp_min(1e-300)) < SAME_SIZE + 0.5 and _signlike(D):
        return (
            f"{head}, and its entries are of similar size, as Adam's steps or added noise make them: they are not "
            "combinations of the inputs, so the difference does not hold their span."
        )
    return (
        f"{head}: the optimiser rescaled every entry of its steps (Adam, RMSprop), noise was added (private training, "
        f"rounding), the start is not the right one, or the model saw more records than the {most} that the layer can "
        "tell apart. Give n if the number of records is known."
    )


def _signlike(D: Tensor) -> bool:
    """Whether the sizes of entries crowd near their largest, as those of sign-like steps do."""
    high = torch.quantile(D.flatten()[:: max(1, D.numel() // 100_000)], 0.99)
    return bool(D.median() > 0.15 * high)


def distinct_values(W: Tensor) -> int:
    """The largest number of different values in a row of W, over the first rows."""
    return max(len(row.unique()) for row in W[:8])
