"""Normals of a decision boundary from labels alone: where the label flips, and how that place tilts.

Everything is bisection, and every bisection is batched: all heights of the boundary around one point are narrowed
down together, one label each a round. Three things keep the count of labels low. Heights are bracketed by what their
neighbours did, and only those found at the end of their bracket are bracketed anew. The height at -e is looked for
where the height at +e says it should be, so only curvature is left to search. And a height is not found more finely
than the slope it serves can use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Labels = Callable[[Tensor], Tensor]
Inside = Callable[[Tensor], Tensor]
"""Rows [n, d] to booleans [n]: is the label the one that the search started from?"""

_PILOTS = 8  # heights found first, with a wide bracket, to know how wide the others need
_CHECKS = 2  # random directions along which a normal is compared with the boundary itself


@dataclass(frozen=True)
class Normal:
    """A unit normal [d] of the boundary at ``point`` [d], and its error as measured along further directions."""

    direction: Tensor
    point: Tensor
    error: float
    curvature: float


def bisect_segments(labels: Labels, starts: Tensor, ends: Tensor, kinds: Tensor, resolution: float) -> Tensor:
    """For each segment [m, d], whose label is ``kinds`` [m] at its start and another at its end, where it flips."""
    low, high = torch.zeros(len(starts), dtype=torch.float64), torch.ones(len(starts), dtype=torch.float64)
    longest = float((ends - starts).norm(dim=1).max())
    while float((high - low).max()) * longest > resolution:
        middle = (low + high) / 2
        if bool(((middle == low) | (middle == high)).all()):
            break
        stays = labels(starts + middle[:, None] * (ends - starts)) == kinds
        low, high = torch.where(stays, middle, low), torch.where(stays, high, middle)
    places: Tensor = starts + ((low + high) / 2)[:, None] * (ends - starts)
    return places


def heights(
    inside: Inside, bases: Tensor, along: Tensor, centre: Tensor, width: Tensor, resolution: float
) -> tuple[Tensor, Tensor]:
    """Along ``along`` [d] from each of ``bases`` [m, d], where the label flips; and whether it was there at all.

    Each is looked for within ``width`` of ``centre`` [m]. The bracket's ends are not asked: a height that comes out at
    an end lies beyond it, and is looked for again in a bracket 16 times as wide, up to four times.
    """
    result, found = centre.clone(), torch.zeros(len(bases), dtype=torch.bool)
    todo = torch.arange(len(bases))
    for _ in range(5):
        low, high = centre[todo] - width[todo], centre[todo] + width[todo]
        bottom, top = low.clone(), high.clone()
        rounds = max(1, math.ceil(math.log2(max(2.0, float(2 * width[todo].max()) / resolution))))
        for _ in range(rounds):
            middle = (low + high) / 2
            stays = inside(bases[todo] + middle[:, None] * along)
            low, high = torch.where(stays, middle, low), torch.where(stays, high, middle)
        result[todo] = (low + high) / 2
        good = (low > bottom) & (high < top)
        found[todo] = good
        todo = todo[~good]
        if len(todo) == 0:
            break
        width = width * 16
    return result, found


@dataclass(frozen=True)
class Outlook:
    """What a crossing promises, from a few rough slopes."""

    fresh: float
    """The part of the boundary's unit normal that lies outside the span found so far, from 0 to 1."""
    known: Tensor
    """Its components along the directions found so far."""
    promise: float
    """Larger is better: much that is new, and a line of search that does not graze the boundary."""


def outlook(inside: Inside, point: Tensor, along: Tensor, new: Tensor, old: Tensor, *, step: float) -> Outlook | None:
    """Judge a crossing; None where the boundary is lost.

    ``new`` are a few random unit rows outside the span found so far (and not along ``along``), ``old`` is its basis.
    """
    everywhere = torch.cat([new, old])
    flat = torch.zeros(len(everywhere), dtype=torch.float64)
    rise, seen = heights(inside, point + step * everywhere, along, flat, flat + 4 * step, step / 32)
    if not bool(seen.all()):
        return None
    slopes = rise / step
    steepness = float(slopes[: len(new)].square().mean().sqrt())
    outside = 1 + (len(point) - len(old) - 1) * steepness**2
    known = slopes[len(new) :]
    length = math.sqrt(outside + float(known.square().sum()))
    fresh = math.sqrt(outside) / length
    return Outlook(fresh, known / length, fresh / (1 + steepness))


def normal_at(
    inside: Inside,
    point: Tensor,
    along: Tensor,
    directions: Tensor,
    *,
    step: float,
    resolution: float,
    generator: torch.Generator,
) -> Normal | None:
    """The boundary's unit normal at ``point`` within the span of ``along`` and ``directions`` (orthonormal rows).

    Central differences of the height along ``along``; None where the boundary is lost on the way.
    """
    mixing = torch.randn(_CHECKS, len(directions), generator=generator, dtype=torch.float64)
    mixing = mixing / mixing.norm(dim=1, keepdim=True)
    everywhere = torch.cat([directions, mixing @ directions])
    slopes = torch.empty(len(everywhere), dtype=torch.float64)
    bends = torch.empty(len(everywhere), dtype=torch.float64)
    tilt, bend = 4.0, 4 * step  # brackets, in steps: for the height at +e, and for how far -e differs from it
    for part in torch.arange(len(everywhere)).tensor_split([_PILOTS]):
        if len(part) == 0:
            continue
        bases, full = everywhere[part] * step, torch.full((len(part),), step, dtype=torch.float64)
        up, seen_up = heights(
            inside, point + bases, along, torch.zeros(len(part), dtype=torch.float64), tilt * full, resolution
        )
        down, seen_down = heights(inside, point - bases, along, -up, bend * full, resolution)
        if not bool((seen_up & seen_down).all()):
            return None
        slopes[part] = (up - down) / (2 * step)
        bends[part] = (up + down) / 2
        tilt = max(3 * float(slopes[part].abs().max()), 8 * resolution / step)
        bend = max(4 * float(bends[part].abs().max()) / step, 8 * resolution / step)
    measured, checks = slopes[: len(directions)], slopes[len(directions) :]
    raw = along - measured @ directions
    length = float(raw.norm())
    # an error s in every slope tilts the normal by s * sqrt(m) / length
    miss = float((mixing @ measured - checks).square().mean().sqrt()) / math.sqrt(2)
    error = max(miss, resolution / (2 * math.sqrt(12) * step)) * math.sqrt(len(directions)) / length
    return Normal(raw / length, point, error, float(bends.abs().max()) * 2 / step**2)
