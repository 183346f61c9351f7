"""The number of inputs where what runs in front of the layer was trained too.

Then the layer's inputs changed during training, and its difference is a sum of combinations of all of them: it has no
gap behind the number of inputs. Its strongest directions still hold the features of each input, and weaker ones hold
how they changed. So more directions are separated than there are inputs, and each is made a picture. A direction that
is no input has features that no picture has. Pictures whose features are missed are left out, and so are copies, which
the weaker directions hold.
"""

from __future__ import annotations

import torch
from torch import Tensor

from divulge.core.errors import AttackFailed
from divulge.reconstruction.ica import differences
from divulge.reconstruction.known_start.difference import GAP, Spectrum
from divulge.reconstruction.known_start.verdicts import CLEAR
from divulge.reconstruction.matching import correlation

SHARES = (0.05, 0.02, 0.008)
"""Shares of the largest singular value above which directions are separated, one after the other."""
MOST, FEWEST_LEFT = 160, 0.5
"""Directions up to which that is done, and the share of all directions that they are at most: a difference that falls
nowhere holds no span."""
MISSED = 0.3
"""The share of its features that a picture may miss. Of 20 CIFAR-10 pictures (seed 901) all that came back missed less,
and directions that were none missed 0.4 and more."""
ALIKE, EDGES_ALIKE = 0.9, 0.6
"""The correlation of two pictures, and of the differences between their neighbouring pixels, from which on they are the
same. A direction that holds how the features of an input changed gives a rough copy of its picture: of 20 CIFAR-10
pictures (seeds 902, 5000, 5001) the differences of copies have 0.62 and more, those of others up to 0.17."""


def ranks(spectrum: Spectrum) -> list[int]:
    """Numbers of directions to separate; none where the gap of the singular values shows the number of inputs.

    It does where the inputs changed little. An exact gap may be that of one step, or lie behind the inputs of all
    steps. Raises AttackFailed where the singular values do not fall.
    """
    values = spectrum.values
    if not spectrum.exact and spectrum.ratio >= CLEAR:
        return []
    numbers = sorted({int((values > share * values[0]).sum()) for share in SHARES})
    if spectrum.exact and spectrum.ratio >= GAP and spectrum.rank <= min(MOST, FEWEST_LEFT * len(values)):
        return sorted({spectrum.rank, *(number for number in numbers if number < spectrum.rank)})
    if numbers[-1] > min(MOST, FEWEST_LEFT * len(values)):
        raise AttackFailed(
            "What runs in front of the layer was trained too, so that its inputs changed, and the singular values of "
            f"its difference do not fall: {numbers[-1]} of {len(values)} are above {SHARES[-1]:.1%} of the largest. "
            "There are too many inputs, the optimiser rescaled its steps (Adam), or noise was added. Give n if the "
            "number of records is known."
        )
    return numbers


def distinct(X: Tensor, missed: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Indices of different inputs among X [m, d] of a shape, those that miss the fewest of their features first."""
    order = torch.argsort(missed)
    order = order[missed[order] <= MISSED]
    likeness = correlation(X[order], X[order]) >= ALIKE
    if len(shape) > 1:
        edges = differences(X[order], shape).flatten(1)
        likeness |= correlation(edges, edges) >= EDGES_ALIKE
    kept: list[int] = []
    for place in range(len(order)):
        if not bool(likeness[place, kept].any()):
            kept.append(place)
    return order[torch.tensor(kept, dtype=torch.long)]
