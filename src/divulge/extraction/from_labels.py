"""A ReLU network from its decisions alone: hard labels, without scores.

The decision boundary of a ReLU network is piecewise linear, and it bends exactly where a hidden neuron switches. Lowd
and Meek 2005 find a linear boundary by line searches. Carlini et al. 2020 (section 4) read neurons off the kinks of
values. Chen et al. 2024 carry that to hard labels, at about 1,300 labels a parameter, for up to four hidden neurons.
The steps here:

1. In random 2-planes the boundary is a polygon. It is followed from corner to corner (``labels/walk.py``).
2. The whole hyperplane of an edge's facet is measured by bisections around it (``labels/facets.py``).
3. Two facets that meet at a corner leave one number of the neuron open. Corners elsewhere give it, and must agree on it
   (``labels/pencils.py``). Past a known neuron one point gives the next facet (``labels/discovery.py``).
4. Every boundary point is a linear equation in the output layer (``labels/output_layer.py``), and all parameters are
   polished on all facets and points together (``labels/polish.py``).
5. Where the neurons found span all facets' normals and there are other bends, there is a second hidden layer. In the
   outputs of the first it is a network with one hidden layer fewer, and found by the same steps; so is a third, where
   the boundary meets rows at which all neurons below are on (``labels/deeper``).
6. The copy's own boundary is asked from both sides. Where the target disagrees a neuron is missing, and the next slice
   goes there. A copy is ``equivalent`` after fresh rows, near the boundary and far from it, contradict nothing
   (``labels/verification.py``).

Labels cannot show a positive factor of all logits, nor a term common to all classes, nor a neuron whose hyperplane the
boundary does not meet in the region.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from divulge.core.errors import InvalidInput, WrongShape
from divulge.core.validation import checked_number, checked_rows, checked_whole
from divulge.extraction.label_result import LabelCopy
from divulge.extraction.labels.attack import LabelAttack
from divulge.extraction.labels.tolerances import REACH, Domain
from divulge.oracles.base import Oracle, check_oracle_and_seed
from divulge.oracles.region import Region

CHECKS = 2000
FEWEST_CHECKS = 100
PRECISION = 1e-13
"""Of a boundary point, relative to the length of a typical input: a label for each further bit of every parameter."""
NARROWEST = 0.2
"""A box must be this many standard deviations wide, or there is nothing to follow inside it."""


def from_labels(
    oracle: Oracle,
    *,
    inputs: Any = None,
    seed: int = 0,
    scale: Any = None,
    center: Any = None,
    bounds: tuple[Any, Any] | None = None,
    checks: int = CHECKS,
    beside: int = 1,
) -> LabelCopy:
    """Rebuild a ReLU network from its decisions.

    Linear and softmax regression are networks without hidden neurons. One hidden layer may have any width and two
    classes or many. Several hidden layers are tried without ``bounds``, each no wider than its input. Of a network that
    is not rebuilt whole, the lowest layers that were found are in ``hidden_layers``.

    Parameters
    ----------
    oracle : Oracle
        The target. Only its labels are asked.
    inputs : array-like of shape [n, d], optional
        Rows like the target's data. They set ``center`` and ``scale``, and an equivalent copy must agree on them.
    seed : int, default 0
        Fixes every random choice.
    scale : float or array-like of shape [d], optional
        Standard deviation of the inputs around ``center``; by default that of ``inputs``, or 1. The boundary is
        searched for among Gaussian inputs of this size and followed to 30 times their length.
    center : array-like of shape [d], optional
        By default the mean of ``inputs``, or 0.
    bounds : tuple of two floats or arrays, optional
        The smallest and the largest input that may be asked, such as (0, 1) for pixels. By default there is no limit.
    checks : int, default 2000
        Fresh rows that verify the copy, ten times as many for several hidden layers. A tenth as many are asked at each
        distance from the boundary.
    beside : int, default 1
        Corners that are measured side by side. More of them need fewer requests and some more labels.

    Returns
    -------
    LabelCopy
        The copy. ``equivalent`` is True only if nothing contradicts it; else ``reason`` says why not.

    Raises
    ------
    InvalidInput
        If a parameter makes no sense.
    BudgetExhausted
        If the oracle's budget ends first; ``partial`` holds the copy so far.

    Examples
    --------
    >>> import torch, divulge
    >>> from divulge.models import MLP
    >>> _ = torch.manual_seed(0)
    >>> oracle = divulge.oracle(MLP([6, 3, 1]).double(), access="label")
    >>> stolen = divulge.extraction.from_labels(oracle, seed=0)
    >>> stolen.equivalent, stolen.widths, stolen.agreement
    (True, [3], 1.0)
    """
    seed = check_oracle_and_seed(oracle, seed)
    checks = checked_whole("checks", checks, at_least=FEWEST_CHECKS)
    beside = checked_whole("beside", beside, at_least=1)
    if oracle.input_dim < 2:
        raise InvalidInput("The boundary is followed in planes, and this model takes a single number.")
    region = _region(oracle, inputs, scale, center, bounds)
    domain = _domain(oracle.input_dim, region, bounds)
    own = None if region.rows is None else region.standardised(region.rows).numpy()
    attack = LabelAttack(oracle, region, domain, own, seed=seed, checks=checks, beside=beside, precision=PRECISION)
    return attack.run()


def _region(oracle: Oracle, inputs: Any, scale: Any, center: Any, bounds: tuple[Any, Any] | None) -> Region:
    """The region of the user's rows, center and scale; without any of them, that of the bounds."""
    d = oracle.input_dim
    rows = None if inputs is None else checked_rows(inputs, what="inputs", width=d)
    region = Region.of(rows, oracle)
    low, high = _bounds(bounds, d)
    if inputs is None and bounds is not None and bool(np.isfinite(low).all() and np.isfinite(high).all()):
        # a box without data: its middle, and standard deviations that fit inside
        region = Region(torch.from_numpy((low + high) / 2), torch.from_numpy((high - low) / 8))
    if scale is not None:
        scale = _column("scale", scale, d)
        if bool((scale <= 0).any()):
            raise InvalidInput(f"scale is a positive number for each input; got {float(scale.min())}.")
        region = Region(region.center, scale, region.rows)
    if center is not None:
        region = Region(_column("center", center, d), region.scale, region.rows)
    return region


def _domain(d: int, region: Region, bounds: tuple[Any, Any] | None) -> Domain:
    low, high = _bounds(bounds, d)
    center, scale = region.center.numpy(), region.scale.numpy()
    low, high = (low - center) / scale, (high - center) / scale
    if bool((high - low < NARROWEST).any()):
        raise InvalidInput(
            "The bounds are narrower than a fifth of the inputs' standard deviation; give a smaller scale."
        )
    return Domain(low, high, REACH * float(np.sqrt(d)))


def _bounds(bounds: tuple[Any, Any] | None, d: int) -> tuple[np.ndarray, np.ndarray]:
    if bounds is None:
        return np.full(d, -np.inf), np.full(d, np.inf)
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise InvalidInput("bounds are two: the smallest input and the largest, such as (0, 1).")
    low, high = (_column("bounds", bound, d).numpy() for bound in bounds)
    if bool((low >= high).any()):
        raise InvalidInput("The smallest input in bounds must be below the largest.")
    return low, high


def _column(name: str, value: Any, d: int) -> torch.Tensor:
    """A number for each input, from one number or from d."""
    if np.ndim(value) == 0:
        return torch.full((d,), checked_number(name, value), dtype=torch.float64)
    column = torch.as_tensor(np.asarray(value, dtype=np.float64)).reshape(-1)
    if len(column) != d:
        raise WrongShape(f"{name} has {len(column)} numbers, and the model takes {d}.")
    if not bool(torch.isfinite(column).all()):
        raise InvalidInput(f"{name} must be finite.")
    return column
