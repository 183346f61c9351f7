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
from divulge.core.validation import checked_whole
from divulge.reconstruction.known_start import precision
from divulge.reconstruction.known_start.difference import GAP, LayerPair, Spectrum

FULL = 0.85
"""The share of the singular values from which on a rank counts as full: inputs that are 0 in nearly every record give a
difference of full rank small values at its end."""
UNRELATED = 0.2
"""The largest correlation with weights that are not the start: independent entries stay far below it."""
CLEAR = 10.0
"""The least ratio at a gap behind which there is more than rounding. Training in half precision leaves 100; records
beyond the number of inputs, noise in the inputs and shared weights leave up to 8."""
MOVED = 0.01
"""The share of the root mean square change of a unit's weights below which a weight did not move: decay alone moves
those of inputs that are always 0."""
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
        if checked_whole("n", n, at_least=1) > most:
            raise InvalidInput(
                f"n = {n} inputs cannot be told apart by a layer of {units} units and {width} inputs, bias included; "
                f"give 1 to {most}."
            )
        return n
    if abs(spectrum.decay) < UNRELATED:
        raise InvalidInput(
            "The weights hold nothing of the start: this is not the start of the model, or the file holds changes of "
            "weights and not weights (--update)."
        )
    most_shown = (MANY if spectrum.adam is None and evenness(pair) > EVEN else FULL) * len(spectrum.values)
    least = GAP if spectrum.exact or spectrum.adam is not None else CLEAR
    if spectrum.ratio >= least and 0 < spectrum.rank <= most_shown:
        return spectrum.rank
    likeness = _cosine(pair.W0, pair.W)
    if likeness < UNRELATED:
        raise InvalidInput(
            f"This is not the start of the model, or noise was added that hides it: the layer's weights have a "
            f"correlation of {likeness:.2f} with it, and their difference has full rank. Give the checkpoint from "
            "which the model was trained."
        )
    raise AttackFailed(_reason(pair, spectrum, most))


def _cosine(A: Tensor, B: Tensor) -> float:
    return float((A * B).sum() / (A.norm() * B.norm()).clamp_min(1e-300))


def _reason(pair: LayerPair, spectrum: Spectrum, most: int) -> str:
    """Why the difference shows no number of inputs."""
    place = f"{spectrum.rank} of {len(spectrum.values)}"
    head = "The difference of the layer to its start has "
    if spectrum.ratio < GAP:
        head += f"no gap in its singular values (largest ratio {spectrum.ratio:.2f}, behind {place})"
    elif spectrum.rank > MANY * len(spectrum.values):
        head += f"a gap in its singular values only behind {place}, too far to be a number of inputs"
    else:
        head += (
            f"no clear gap in its singular values (largest ratio {spectrum.ratio:.2f}, behind {place}), and behind it "
            f"there is {spectrum.rest:,.0f} times what rounding leaves"
        )
    if precision.stored(pair.W) == "few levels":
        return (
            f"{head}, and the released weights take few different values: they were rounded, and the rounding is as "
            "large as the difference."
        )
    if evenness(pair) > EVEN:
        return (
            f"{head}, and its entries are of even size, as several steps of Adam make them: then they are not "
            "combinations of the inputs, and the difference holds their span only roughly. Or the model saw more "
            f"records than the {most} that the layer can tell apart. Give n to look for few inputs in it all the same."
        )
    return (
        f"{head}: the optimiser rescaled every entry of its steps (Adam, RMSprop), noise was added (private training, "
        "rounding, noisy or augmented inputs), the start is not the right one, or the model saw more records than the "
        f"{most} that the layer can tell apart. Give n if the number of records is known."
    )


def evenness(pair: LayerPair) -> float:
    """How even the sizes of a unit's changes are, up to 1; the median of the units."""
    D = (pair.W - pair.W0).abs()
    D = D[D.any(dim=1)]
    D = D * (MOVED * D.square().mean(dim=1, keepdim=True).sqrt() < D)
    moved = (D > 0).sum(dim=1)
    shares = D.sum(dim=1).square() / (moved * D.square().sum(dim=1))
    return float(shares.median()) if len(D) else 0.0
