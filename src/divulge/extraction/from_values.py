"""A ReLU network from its values alone, to the last bits of the oracle's precision.

Milli 2019, Algorithm 1-MQ, estimates every gradient that Algorithm 1 asks for by d values, about 40 d values for each
neuron in all (``printed/milli_values.py``). The default here asks close to one value for each unknown parameter:

1. All kinks on one random line are found from scalar samples (``values/line_scan.py``).
2. One gradient is measured in every cell between them (``values/cell_gradients.py``). Neighbouring cells differ by
   exactly one neuron, weight and bias included. Its sign does not matter, because relu(z) = relu(-z) + z and the affine
   part takes up the difference; Algorithm 1b and its linear programme are not needed.
3. Cells too narrow to measure well are crossed on another path, off the line (``values/narrow_cells.py``).
4. The copy is compared on hold-out points. Neurons that the line did not cross are found in the residual, on further
   lines (``values/line_network.py``).
5. A copy that agrees is verified on many fresh rows and on every row asked (``verification.py``) before it is exact.

Where one hidden layer does not explain the answers, further layers are peeled off (``layers/deep_attack.py``).

Values of several outputs share their kinks, and one row answers for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from divulge.core.memory import claim
from divulge.core.validation import checked_choice, checked_whole
from divulge.extraction.attack_space import attack_space
from divulge.extraction.layers.depth import checked_depth
from divulge.extraction.printed import milli_values
from divulge.extraction.result import Extraction
from divulge.extraction.values.cell_gradients import basis_of
from divulge.extraction.values.rebuild import ValueAttack
from divulge.extraction.verification import FEWEST_CHECKS
from divulge.oracles.base import Oracle, check_oracle_and_seed
from divulge.oracles.outputs import Outputs


def from_values(
    oracle: Oracle,
    *,
    inputs: Any = None,
    seed: int = 0,
    width: int | None = None,
    layers: int = 8,
    widths: Sequence[int] | None = None,
    method: Literal["default", "paper"] = "default",
    span: Any = "auto",
    outputs: Outputs | None = None,
    checks: int | None = None,
    delta: float = 0.1,
) -> Extraction:
    """Rebuild the ReLU network of fully connected layers behind an oracle from its values.

    Parameters
    ----------
    oracle : Oracle
        The target, with value access or more.
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
        "paper" is Algorithm 1-MQ of Milli 2019 as printed.
    span : "auto", None, array-like of shape [k, d] or a result of ``divulge.span``, default "auto"
        Rows that span the inputs that the model depends on: the attack then works in k dimensions. With "auto" a first
        layer of low rank is noticed on the way.
    outputs : {"logits", "log-probabilities", "probabilities"}, optional
        What the target shows. By default the answers decide.
    checks : int, default 6000, or 20000 for several hidden layers
        Fresh rows that verify the copy; the claim in ``facts["verification"]`` follows from their number. With several
        hidden layers half as many more lie farther out.
    delta : float, default 0.1
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
    BudgetExhausted
        If the oracle's budget ends first; ``partial`` holds the copy so far.

    Examples
    --------
    >>> import torch, divulge
    >>> from divulge.models import MLP
    >>> _ = torch.manual_seed(0)
    >>> oracle = divulge.oracle(MLP([8, 4, 1]).double(), access="value")
    >>> stolen = divulge.extraction.from_values(oracle, seed=0, checks=500)
    >>> stolen.exact, stolen.width
    (True, 4)
    """
    seed = check_oracle_and_seed(oracle, seed)
    checked_choice("method", method, ("default", "paper"))
    if method == "paper":
        return milli_values.learn_model(oracle, seed=seed, width=width, delta=delta)
    if width is not None:
        checked_whole("width", width, at_least=0)
    if checks is not None:
        checked_whole("checks", checks, at_least=FEWEST_CHECKS)
    basis_of(span, oracle.input_dim)  # refuse nonsense before anything is asked
    if span is None or isinstance(span, str):
        claim(oracle.input_dim**2, "A matrix of the inputs by the inputs")
    space = attack_space(oracle, inputs=inputs, outputs=outputs, seed=seed, selects=True)
    depth = checked_depth(layers, widths)
    attack = ValueAttack(space, seed=seed, width=width, span=span, checks=checks, depth=depth)
    return attack.run(find_outputs=outputs is None)
