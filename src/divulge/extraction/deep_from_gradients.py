"""Several hidden layers from gradients: another name of ``from_gradients``, which goes on to them by itself."""

from __future__ import annotations

from typing import Any

from divulge.extraction.from_gradients import from_gradients
from divulge.extraction.result import Extraction
from divulge.oracles.base import Oracle
from divulge.oracles.outputs import Outputs


def deep_from_gradients(
    oracle: Oracle, *, inputs: Any = None, seed: int = 0, outputs: Outputs | None = None, checks: int | None = None
) -> Extraction:
    """Rebuild a ReLU network of several hidden layers: the same as ``from_gradients``.

    Parameters
    ----------
    oracle : Oracle
        The target, with gradient access.
    inputs : array-like of shape [n, d], optional
        Rows like the target's data. By default inputs are taken to be N(0, I).
    seed : int, default 0
        Fixes every random choice.
    outputs : {"logits", "log-probabilities", "probabilities"}, optional
        What the target shows. By default the answers decide.
    checks : int, optional
        Fresh rows that verify the copy.

    Returns
    -------
    Extraction
        The copy. ``exact`` is True only if every row agrees; else ``reason`` says why not.

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
    >>> oracle = divulge.oracle(MLP([8, 4, 3, 1]).double(), access="gradient")
    >>> stolen = divulge.extraction.deep_from_gradients(oracle, checks=500)
    >>> stolen.exact, stolen.widths
    (True, [4, 3])
    """
    return from_gradients(oracle, inputs=inputs, seed=seed, outputs=outputs, checks=checks)
