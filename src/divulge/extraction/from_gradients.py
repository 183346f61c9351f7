"""ReLU networks from gradients: f(x) = W relu(A x + b) + P x + q (Milli 2019, Algorithm 1), and deeper ones.

``method="paper"`` is the algorithm as printed. The default needs an order of magnitude fewer queries, no width, and
handles biases, several outputs and more neurons than inputs. Where it departs, and why:

- Several outputs tell neurons apart. If the neurons are no more than the inputs and not many times the outputs, the
  gradients at a few random points determine them all (``gradients/jacobian_factors.py``).
- Else kinks on a line are predicted from the affine maps of two cells instead of bisected. Hold-out points off the line
  check all predictions at once, instead of one query for each (``gradients/first_line.py``).
- The sign of each neuron is the sign of the slope's change along the line, and the affine map at the line's left end
  absorbs what the kinks cannot tell (relu(a) - relu(-a) = a). Algorithm 1b is not needed.
- What the first line missed (kinks far out, small neurons beside large ones, pairs that cancel) is found on further
  lines through points where the copy is wrong.
- Where one hidden layer does not explain the answers, further layers are peeled off (``layers/deep_attack.py``).
- ``exact`` is claimed only after fresh rows and every row asked agree (``verification.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from divulge.core.validation import checked_choice, checked_whole
from divulge.extraction.attack_space import attack_space
from divulge.extraction.gradients.rebuild import GradientAttack
from divulge.extraction.layers.depth import checked_depth
from divulge.extraction.result import Extraction
from divulge.extraction.verification import FEWEST_CHECKS
from divulge.oracles.base import Oracle, check_oracle_and_seed
from divulge.oracles.outputs import Outputs

Method = Literal["default", "paper"]


def from_gradients(
    oracle: Oracle,
    *,
    inputs: Any = None,
    seed: int = 0,
    width: int | None = None,
    layers: int = 8,
    widths: Sequence[int] | None = None,
    method: Method = "default",
    outputs: Outputs | None = None,
    checks: int | None = None,
    delta: float = 0.05,
) -> Extraction:
    """Rebuild a ReLU network of fully connected layers from its gradients.

    Parameters
    ----------
    oracle : Oracle
        The target, with gradient access.
    inputs : array-like of shape [n, d], optional
        Rows like the target's data. The attack asks around them, in units of their columns' standard deviations, and
        an exact copy must agree on them. By default inputs are taken to be N(0, I).
    seed : int, default 0
        Fixes every random choice.
    width : int, optional
        The number of hidden neurons. Only ``method="paper"`` needs it; by default another width is noted.
    layers : int, default 8
        The most hidden layers that are looked for.
    widths : sequence of int, optional
        The widths of the hidden layers, where they are known: no more layers are looked for, and other widths are
        noted.
    method : {"default", "paper"}, default "default"
        "paper" is Algorithm 1 of Milli 2019 as printed.
    outputs : {"logits", "log-probabilities", "probabilities"}, optional
        What the target shows. By default the answers decide.
    checks : int, default 6000, or 20000 for several hidden layers
        Fresh rows (values, not gradients) that verify the copy; the claim in ``facts["verification"]`` and
        ``smallest_gap`` follow from their number. With several hidden layers half as many more lie farther out.
    delta : float, default 0.05
        Failure probability of ``method="paper"``.

    Returns
    -------
    Extraction
        The copy. ``exact`` is True only if every row agrees; else ``reason`` says why not. ``widths`` lists its hidden
        layers. For several of them ``facts["queries"]`` tells what each part cost, and ``facts["unseen_entries"]`` how
        many weights no answer has shown; such a copy is not called exact. ``facts["entries_without_effect"]`` counts
        weights that need not be known: mixed-integer programs show that they act at no input up to 30 times as large as
        typical ones, or only in sums that the answers determine. Where no copy is exact, the model is the one that is
        wrong on fewest rows; where no deeper copy was made, ``facts["layers_found"]`` lists the widths of the layers
        found.

    Raises
    ------
    InvalidInput
        If a parameter makes no sense.
    AccessDenied
        If the oracle does not grant gradients.
    BudgetExhausted
        If the oracle's budget ends first; ``partial`` holds the copy so far.

    Examples
    --------
    >>> import torch, divulge
    >>> from divulge.models import MLP
    >>> _ = torch.manual_seed(0)
    >>> oracle = divulge.oracle(MLP([8, 4, 1]).double(), access="gradient")
    >>> stolen = divulge.extraction.from_gradients(oracle, seed=0, checks=500)
    >>> stolen.exact, stolen.width
    (True, 4)
    """
    seed = check_oracle_and_seed(oracle, seed)
    checked_choice("method", method, ("default", "paper"))
    if width is not None:
        checked_whole("width", width, at_least=0)
    if checks is not None:
        checked_whole("checks", checks, at_least=FEWEST_CHECKS)
    if method == "paper":
        from divulge.extraction.printed.milli_gradients import learn_model

        return learn_model(oracle, seed=seed, width=width, delta=delta, checks=checks or 1000)
    space = attack_space(oracle, inputs=inputs, outputs=outputs, seed=seed)
    attack = GradientAttack(space, seed=seed, width=width, checks=checks, depth=checked_depth(layers, widths))
    return attack.run(find_outputs=outputs is None)
