"""Normals of a decision boundary from labels alone, by batched bisection.

A height is the distance along a line at which the label flips. All heights around one point are bisected together, one
label each per round. Three rules keep the number of labels low:

- The bracket of a height comes from its neighbours, and only a height at the end of its bracket gets a wider one.
- The height at -e is searched near the mirror image of the height at +e, so only curvature is left to search.
- A height is not found more finely than the slope computed from it can use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Labels = Callable[[Tensor], Tensor]
SameLabel = Callable[[Tensor], Tensor]
"""Rows [n, d] to booleans [n]: whether the label is the one at the start of the search."""

_PILOTS = 8  # heights found first, in a wide bracket, which set the bracket of the others
_CHECKS = 2  # random directions along which a normal is compared with the boundary


@dataclass(frozen=True)
class Normal:
    """A unit normal of the boundary."""

    direction: Tensor
    """[d]."""
    point: Tensor
    """[d], on the boundary."""
    error: float
    """Angle in radians by which the normal may be off, measured along further directions."""
    curvature: float


def bisect_segments(labels: Labels, starts: Tensor, ends: Tensor, start_labels: Tensor, resolution: float) -> Tensor:
    """Points [m, d] where the label flips, one on each segment.

    ``start_labels`` [m] are the labels at ``starts`` [m, d]; the labels at ``ends`` differ from them.
    """
    low, high = torch.zeros(len(starts), dtype=torch.float64), torch.ones(len(starts), dtype=torch.float64)
    longest = float((ends - starts).norm(dim=1).max())
    while float((high - low).max()) * longest > resolution:
        middle = (low + high) / 2
        if bool(((middle == low) | (middle == high)).all()):
            break
        stays = labels(starts + middle[:, None] * (ends - starts)) == start_labels
        low, high = torch.where(stays, middle, low), torch.where(stays, high, middle)
    points: Tensor = starts + ((low + high) / 2)[:, None] * (ends - starts)
    return points


def heights(
    same_label: SameLabel, bases: Tensor, along: Tensor, centre: Tensor, width: Tensor, resolution: float
) -> tuple[Tensor, Tensor]:
    """Heights [m] above ``bases`` [m, d] along ``along`` [d], and booleans [m]: whether each was found.

    Each height is searched within ``width`` of ``centre`` [m]. The ends of the bracket are not queried. A height that
    comes out at an end lies beyond it, and is searched again in a bracket 16 times as wide, up to four times.
    """
    result, found = centre.clone(), torch.zeros(len(bases), dtype=torch.bool)
    todo = torch.arange(len(bases))
    for _ in range(5):
        low, high = centre[todo] - width[todo], centre[todo] + width[todo]
        bottom, top = low.clone(), high.clone()
        rounds = max(1, math.ceil(math.log2(max(2.0, float(2 * width[todo].max()) / resolution))))
        for _ in range(rounds):
            middle = (low + high) / 2
            stays = same_label(bases[todo] + middle[:, None] * along)
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
class CrossingEstimate:
    """A rough estimate of the normal at a boundary point, from a few slopes."""

    new_part: float
    """Length of the unit normal's part outside the span found so far, 0 to 1."""
    known_part: Tensor
    """Components of the unit normal along the directions found so far."""
    score: float
    """Larger is better: a large new part, and a search line that is not tangential to the boundary."""


def estimate_crossing(
    same_label: SameLabel, point: Tensor, along: Tensor, new: Tensor, known: Tensor, *, step: float
) -> CrossingEstimate | None:
    """Estimate the normal at a boundary point; None where a height is not found.

    ``new`` holds a few random unit rows outside the span found so far and orthogonal to ``along``. ``known`` is the
    basis of that span.
    """
    directions = torch.cat([new, known])
    zero = torch.zeros(len(directions), dtype=torch.float64)
    rise, found = heights(same_label, point + step * directions, along, zero, zero + 4 * step, step / 32)
    if not bool(found.all()):
        return None
    slopes = rise / step
    steepness = float(slopes[: len(new)].square().mean().sqrt())
    outside = 1 + (len(point) - len(known) - 1) * steepness**2
    inside = slopes[len(new) :]
    length = math.sqrt(outside + float(inside.square().sum()))
    new_part = math.sqrt(outside) / length
    return CrossingEstimate(new_part, inside / length, new_part / (1 + steepness))


def normal_at(
    same_label: SameLabel,
    point: Tensor,
    along: Tensor,
    directions: Tensor,
    *,
    step: float,
    resolution: float,
    generator: torch.Generator,
) -> Normal | None:
    """The unit normal at ``point`` within the span of ``along`` and ``directions`` (orthonormal rows).

    It comes from central differences of the height along ``along``. None where a height is not found.
    """
    mixing = torch.randn(_CHECKS, len(directions), generator=generator, dtype=torch.float64)
    mixing = mixing / mixing.norm(dim=1, keepdim=True)
    lines = torch.cat([directions, mixing @ directions])
    slopes = torch.empty(len(lines), dtype=torch.float64)
    bends = torch.empty(len(lines), dtype=torch.float64)
    tilt, bend = 4.0, 4 * step  # brackets, in steps: for the height at +e, and for how far -e differs from it
    for part in torch.arange(len(lines)).tensor_split([_PILOTS]):
        if len(part) == 0:
            continue
        bases, full = lines[part] * step, torch.full((len(part),), step, dtype=torch.float64)
        up, found_up = heights(
            same_label, point + bases, along, torch.zeros(len(part), dtype=torch.float64), tilt * full, resolution
        )
        down, found_down = heights(same_label, point - bases, along, -up, bend * full, resolution)
        if not bool((found_up & found_down).all()):
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
