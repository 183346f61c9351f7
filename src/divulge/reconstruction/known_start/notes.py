"""What is said beside the inputs of a known start: how they were found, why they are not exact, or are none."""

from __future__ import annotations

import math

from torch import Tensor

from divulge.reconstruction.known_start import precision, trained_front
from divulge.reconstruction.known_start.difference import LayerPair, Spectrum
from divulge.reconstruction.known_start.evidence import Evidence
from divulge.reconstruction.known_start.layers import ChangedLayer

FAR = 0.1
"""The root mean square distance from the range, as a share of its width, or the share of the features that is missed,
from which on a sample is no input."""

FAINT = 1000.0
"""The ratio of the singular values at the gap, in single precision, below which some may have sunk into rounding.
Inputs that are all seen leave 10,000 and more (40 to 100 pictures), those that are not 3 to 500 (digits of values below
1/255)."""


def reason_of(evidence: Evidence, certified: Tensor, layer: ChangedLayer) -> str:
    """Why the samples are none of the inputs; empty where one of them may be."""
    nearest = float(evidence.outside.min()) if len(certified) else math.inf
    if bool(certified.any()) or nearest <= (FAR if layer.frozen else trained_front.MISSED):
        return ""
    if layer.features is not None:
        least = "" if math.isinf(nearest) else f", {nearest:.0%} of them are missed at least"
        return f"No picture has the features that the layer gave away{least}. So these are mixtures of features."
    return (
        f"None of the samples lies in the range of values: the nearest one is off by {nearest:.0%} of its width. So "
        "they are mixtures of inputs, or the inputs have another range."
    )


def notes_of(
    spectrum: Spectrum, certified: Tensor, layer: ChangedLayer, numbers: list[int], n: int | None
) -> tuple[str, ...]:  # fmt: skip
    """What the user should know. ``numbers`` are those of directions that were separated where ``n`` was not told."""
    notes = [f"{int(certified.sum())} of {len(certified)} inputs are certified."]
    if not math.isclose(spectrum.decay, 1.0, abs_tol=1e-8):
        notes.append(f"Weight decay shrank the start by a factor of {spectrum.decay:.6f}, which was undone.")
    if spectrum.adam is not None:
        notes.append(
            f"The difference is one step of Adam or RMSprop, which moved weights by {spectrum.adam.rate:g}. It was "
            "undone."
        )
    elif not spectrum.exact and layer.frozen:
        notes.append(
            "There is more than rounding in the difference beside the inputs, so they are not exact: it was trained in "
            "half precision, noise was added, or there were more inputs."
        )
    elif n is not None and n != spectrum.rank and spectrum.exact and spectrum.ratio >= FAINT:
        notes.append(
            f"The difference shows {spectrum.rank} inputs, but n = {n} were looked for: so some samples are mixtures, "
            "or inputs are left out."
        )
    elif n is None and spectrum.ratio < FAINT and precision.stored(layer.pair.W) == "float32":
        notes.append(
            f"The singular values fall to the rounding of the weights without a wide gap (largest ratio "
            f"{spectrum.ratio:.1f}), so there may be more inputs than the {spectrum.rank} that show."
        )
    notes += _format_notes(layer.pair)
    if layer.features is not None:
        notes.append(f"The inputs were computed from their features, which layer {layer.name!r} gave away.")
        if not layer.frozen:
            notes.append(
                "What runs in front of that layer was trained too, so neither the features nor their number are exact."
            )
    if numbers:
        tried = ", ".join(str(number) for number in numbers)
        notes.append(
            f"The difference does not show the number of inputs. Of {tried} directions those are given that are "
            "features of a picture; there may be more inputs."
        )
    return tuple(notes)


def _format_notes(pair: LayerPair) -> list[str]:
    """What the released numbers leave open."""
    notes = []
    form = precision.stored(pair.W)
    if form == "few levels":
        notes.append(
            "The released weights were rounded to few levels, so the number of inputs may be wrong, and they are not "
            "exact."
        )
    elif form in ("float16", "bfloat16"):
        notes.append(f"The released weights were rounded to {form}, so the inputs are not exact.")
    if not pair.has_bias:
        notes.append(
            "No bias of the layer was trained, so the signs and sizes of the inputs are not known: they were chosen to "
            "fill the range of values where there is one, the signs after the classes where both fit, and a "
            "certificate says nothing about them. A merged low-rank adapter leaves such a difference too, in which "
            "inputs are seen through its own matrix."
        )
    return notes
