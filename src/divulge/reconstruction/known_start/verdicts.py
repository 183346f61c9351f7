"""What the spectrum of a difference says: a number of inputs, or why there is none to be read.

A difference that gradient descent made has a gap: as many singular values as there were inputs, then rounding. The
difference to weights that are not the start has none, and is as large as both together. Adam divides every entry of a
step by its own size, so that a step is not a combination of inputs, and its differences have nearly full rank. Where
inputs are 0 in most records they have a gap all the same, far behind the number of inputs. Such entries are known by
their even sizes.
"""

from __future__ import annotations

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
EVEN = 0.72
"""The squared mean size of a unit's entries, as a share of their mean square, from which on they are of even size: 0.50
to 0.66 after gradient descent, 0.77 to 1 after Adam (digits and tables of 5 to 200 records, median of the units)."""
MANY = 0.5
"""The share of the singular values from which on a rank is doubted where entries are of even size. Few inputs of even
values have entries of even size too."""


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
    most_shown = (MANY if spectrum.adam is None and evenness(pair) > EVEN else FULL) * len(spectrum.values)
    if spectrum.ratio >= GAP and 0 < spectrum.rank <= most_shown:
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
    head = (
        f"The difference of the layer to its start has no gap in its singular values (largest ratio "
        f"{spectrum.ratio:.2f})"
    )
    if spectrum.ratio >= GAP:
        head = (
            f"The difference of the layer to its start has a gap in its singular values only behind {spectrum.rank} of "
            f"{len(spectrum.values)}, too far to be a number of inputs"
        )
    values = distinct_values(pair.W)
    if rounded(pair):
        return (
            f"{head}, and the released weights take {values} different values a row at most: they were rounded, and "
            "the rounding is as large as the difference."
        )
    if evenness(pair) > EVEN:
        return (
            f"{head}, and its entries are of even size, as several steps of Adam make them: they are not combinations "
            "of the inputs, so the difference holds their span only roughly. Give n to look for few pictures in it all "
            "the same. One step of Adam is undone where its gradients are small enough to be seen."
        )
    return (
        f"{head}: the optimiser rescaled every entry of its steps (Adam, RMSprop), noise was added (private training, "
        f"rounding), the start is not the right one, or the model saw more records than the {most} that the layer can "
        "tell apart. Give n if the number of records is known."
    )


def evenness(pair: LayerPair) -> float:
    """How even the sizes of a unit's changes are, up to 1; the median of the units."""
    D = (pair.W - pair.W0).abs()
    D = D[D.any(dim=1)]
    moved = (D > 0).sum(dim=1)
    shares = D.sum(dim=1).square() / (moved * D.square().sum(dim=1))
    return float(shares.median()) if len(D) else 0.0


def rounded(pair: LayerPair) -> bool:
    """Whether the released weights take so few different values that they were rounded to eight bits or fewer."""
    return distinct_values(pair.W) <= min(FEW_VALUES, pair.W.shape[1] // 2)


def distinct_values(W: Tensor) -> int:
    """The largest number of different values in a row of W, over the first rows."""
    return max(len(row.unique()) for row in W[:8])
