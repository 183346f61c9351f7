"""Inverting training itself: the unknown row without a single shadow model.

The released weights are theta(z) = A(D_- + z) with A deterministic, differentiable and known, so z solves an equation,
and Gauss-Newton through training finds it. Balle 2022 poses the attack as inversion (section IV-A) and then learns the
inverse from shadow models. Solving the equation directly takes about a hundred training runs a record instead of tens
of thousands, and ends several orders of magnitude closer. With ``access="logits"`` the equation is for the released
model's answers on probe rows instead of its weights.

The label comes from comparing the unknown row's effect on the model with the effects of known rows (``similar_rows``).
Where those cannot be computed without training (logits, convolutions), the effects of the class means take their place.
A first layer of one unit is trained with each known row doubled (``doubled_rows``). Where labels come close, a trial
search with each decides. A search that ends far off is repeated from other starts, and under the next labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack, overload

import torch
from torch import Tensor, nn

from divulge.core.errors import InvalidInput
from divulge.core.progress import report
from divulge.core.validation import checked_choice, checked_seed
from divulge.informed import checks
from divulge.informed.inversion import gauss_newton, row_covariance
from divulge.informed.inversion.label_guess import LabelGuess
from divulge.informed.inversion.search import TRIAL_RUNS, Search, starting_rows
from divulge.informed.inversion.training_function import training_function
from divulge.informed.inversion.unused_inputs import UnusedInputs
from divulge.informed.released_view import Access, probe_rows, released_view
from divulge.informed.result import Record
from divulge.oracles import Oracle
from divulge.training import Recipe
from divulge.training.recipe import ArrayLike

Released = nn.Module | Tensor | Oracle | Callable[[Tensor], Any]
"""A released model: a module, its flat weights, or (for logits) an oracle or a function that answers rows."""
Start = Literal["guess", "mean", "noise"] | ArrayLike | Record | Sequence[Record]
"""Where a search starts."""
_ONE_UNIT = "the first layer has a single unit, with which rows of another label may explain the model as well"
_LIMITS = "; more runs may help; an unknown shuffling seed, initial model or noise limits this attack"


class Options(TypedDict, total=False):
    """The optional parameters of ``direct``, which documents them."""

    labels: ArrayLike | None
    start: Start
    runs: float
    bounds: tuple[float, float] | None
    access: Access
    probes: int | ArrayLike
    noise: float | None
    position: int | None
    initial: nn.Module | None
    precision: str | None
    seed: int


@overload
def direct(
    recipe: Recipe, released: Sequence[Released], known_X: ArrayLike, known_y: ArrayLike, **options: Unpack[Options]
) -> list[Record]: ...
@overload
def direct(
    recipe: Recipe, released: Released, known_X: ArrayLike, known_y: ArrayLike, **options: Unpack[Options]
) -> Record: ...
def direct(
    recipe: Recipe,
    released: Released | Sequence[Released],
    known_X: ArrayLike,
    known_y: ArrayLike,
    *,
    labels: ArrayLike | None = None,
    start: Start = "guess",
    runs: float = 90,
    bounds: tuple[float, float] | None = (0.0, 1.0),
    access: Access = "weights",
    probes: int | ArrayLike = 200,
    noise: float | None = None,
    position: int | None = None,
    initial: nn.Module | None = None,
    precision: str | None = None,
    seed: int = 0,
) -> Record | list[Record]:
    """Rebuild the row that a network was trained on besides the known rows, by inverting its training.

    Parameters
    ----------
    recipe : Recipe
        How the released model was trained, with its seed.
    released : nn.Module, Tensor, Oracle, callable, or a list of them
        The released model, or its flat weights [P]. With ``access="logits"`` also an oracle or a function. A list of
        models, each with one unknown row of its own, is attacked together.
    known_X : array [n, d]
        All training rows but one.
    known_y : array [n]
        Their labels.
    labels : array [models], optional
        The unknown rows' labels, where they are known. By default the attack finds them.
    start : {"guess", "mean", "noise"}, rows, Record or list of Record, default "guess"
        Where the search starts: at the mean of the label's known rows with the most similar effect, at the mean of
        all of that label's rows, at random, or at given rows such as a reconstructor's.
    runs : float, default 90
        The budget of one search in training runs.
    bounds : (float, float) or None, default (0.0, 1.0)
        The range of a feature; None for no limits.
    access : {"weights", "logits"}, default "weights"
        What is visible of the released model.
    probes : int or array [m, d], default 200
        The rows whose logits are visible, or how many of the known rows to use.
    noise : float, optional
        Standard deviation of noise on the released weights. The search then looks for the most probable row under a
        Gaussian prior estimated from the known rows. A recipe with privacy implies its own noise.
    position : int, optional
        The unknown row's index in the training set (last by default). It matters for mini-batches only.
    initial : nn.Module, optional
        The model that training started from, where it was not the recipe's own.
    precision : {"float32", "float64"}, optional
        The precision of the search; the recipe's by default.
    seed : int, default 0
        Seed of ``start="noise"``.

    Returns
    -------
    Record or list of Record
        The rebuilt row; a list where ``released`` is a list. ``trusted`` is False where the attack can tell that it
        did not find the row. Errors are mean squared errors in the units of ``known_X``, so that a column in small
        units counts for most: bring columns to one scale, as the training of a network needs anyway.

    Raises
    ------
    NotReproduced
        The recipe and the known rows do not lead near the released weights.
    AttackFailed
        The known rows alone lead to exactly these weights.
    InvalidInput
        An argument does not make sense, or the training cannot be inverted.

    Examples
    --------
    >>> import divulge
    >>> X, y = divulge.datasets.load("iris").train
    >>> recipe = divulge.Recipe(widths=[4, 5, 3], activation="tanh", learning_rate=0.3, epochs=30, precision="float64")
    >>> released = recipe.train(X, y)
    >>> record = divulge.informed.direct(recipe, released, X[:-1], y[:-1], bounds=None)
    >>> record.trusted, record.error(X[-1]) < 1e-9
    (True, True)
    """
    started, seed = time.perf_counter(), checked_seed(seed)
    models = list(released) if isinstance(released, Sequence) else [released]
    if not models:
        raise InvalidInput("There is no released model to attack.")
    checked_choice("access", access, ("weights", "logits"))
    X, y = checks.known(recipe, known_X, known_y)
    search, target = _prepare(
        recipe, models, X, y, bounds=bounds, probes=probe_rows(probes, X) if access == "logits" else None, noise=noise,
        position=position, initial=initial, precision=precision or recipe.precision,
    )  # fmt: skip
    cost = torch.zeros(len(models))
    if labels is not None:
        places = search.guess.places_of(labels, len(models))
    else:
        places, z, cost = search.find_labels(target, runs)
    if labels is not None or not (isinstance(start, str) and start == "guess"):
        z = starting_rows(start, search, target, places, seed).to(target.dtype)
    guessed = isinstance(start, str) and start == "guess"
    restart = (guessed or search.one_unit) and search.prior is None and runs >= 2 * TRIAL_RUNS
    found: list[Record] = []
    for first in range(0, len(models), search.training.together):
        part = slice(first, first + search.training.together)
        report("attacking", first, len(models))
        result = search(target[part], z[part], places[part], runs)
        if restart:
            cost[part] += search.restart(result, target[part], z[part], places[part], runs)
            if labels is None:
                cost[part] += search.other_labels(result, target[part], places[part], runs)
        unrecovered, spent = search.unrecovered_error(result, z[part], places[part])
        cost[part] += spent
        found += _records(search, result, unrecovered, target[part], places[part], X, seed, known=labels is not None)
    shared, seconds = search.guess.runs / len(found), (time.perf_counter() - started) / len(found)
    found = [
        replace(record, seconds=seconds, training_runs=record.training_runs + shared + float(extra))
        for record, extra in zip(found, cost, strict=True)
    ]
    return found if isinstance(released, Sequence) else found[0]


def _prepare(
    recipe: Recipe, models: list[Released], X: Tensor, y: Tensor, *, bounds: tuple[float, float] | None,
    probes: Tensor | None, noise: float | None, position: int | None, initial: nn.Module | None, precision: str,
) -> tuple[Search, Tensor]:  # fmt: skip
    """The search, and what the unknown rows did to the view of each model [B, F]."""
    dtype = torch.float64 if precision == "float64" else torch.float32
    training = training_function(recipe, X, y, dtype=dtype, position=position, start=initial)
    if training.outputs == 1 and recipe.loss == "square":
        raise InvalidInput("The direct attack needs class labels; for a linear regression use the closed form, glm.")
    view = released_view(recipe, training.reference, probes=probes)
    target = torch.stack([view.of(model) for model in models]).to(dtype)
    noise = _noise(recipe, len(X) + 1, noise, probes)
    guess = LabelGuess.of(training, view, X, y, noisy=noise is not None)
    shape = tuple(getattr(view.model, "input_shape", ()))
    prior = None if noise is None else row_covariance.prior(X, y, noise, dtype)
    unused = UnusedInputs.of(training, X) if probes is None and prior is None else None
    search = Search(training, view, guess, bounds, row_covariance.metric(X, shape, dtype), prior, unused)
    checks.reproduces(training, view, X, y, search.seen(target), guess.theta, initial, noise or 0.0)
    return search, target


def _records(
    search: Search,
    result: gauss_newton.Inversion,
    unrecovered: Tensor,
    target: Tensor,
    places: Tensor,
    X: Tensor,
    seed: int,
    *,
    known: bool,
) -> list[Record]:
    """One record for each target; ``known`` says that the labels were given."""
    records = []
    anyway = checks.nearest(X)
    guessed = search.one_unit and not known
    sizes = search.seen(target).norm(dim=1)
    for row in range(len(target)):
        left = float(result.misfit[row] / sizes[row])
        curvature = result.weakest[row] if search.one_unit else result.curvature[row]
        expected = result.misfit[row].square() / curvature + unrecovered[row]
        predicted = float(expected) / search.training.inputs
        if left > search.near and search.prior is None:  # with noise, what is left over is noise for the most part
            predicted = max(predicted, anyway)
        doubt = checks.doubt(predicted, anyway, left) or (_ONE_UNIT if guessed and left > search.near else "")
        reason = doubt and doubt + _LIMITS
        x, label = result.z[row].to(torch.float64), search.guess.names[int(places[row])]
        records.append(
            Record(
                x, label, predicted, not reason, method="direct", seed=seed, reason=reason,
                training_runs=result.runs, notes=checks.notes(X, x), facts={"misfit": left},
            )
        )  # fmt: skip
    return records


def _noise(recipe: Recipe, n: int, noise: float | None, probes: Tensor | None) -> float | None:
    """The standard deviation of the noise on each released weight; None for none.

    Private training's own noise is computed as if nothing pulled the weights back.
    """
    if noise is not None:
        if noise <= 0:
            raise InvalidInput(f"noise is a positive standard deviation; got {noise!r}.")
        return float(noise)
    if recipe.privacy is None or recipe.privacy.noise_multiplier == 0:
        return None
    if probes is not None:
        raise InvalidInput("Against private training the direct attack needs the weights.")
    if recipe.optimiser != "sgd" or recipe.nesterov or recipe.schedule != "constant":
        raise InvalidInput("How much noise this optimiser leaves on a weight is not known; give noise=.")
    reach = torch.cumsum(float(recipe.momentum) ** torch.arange(recipe.steps(n), dtype=torch.float64), dim=0)
    each = recipe.privacy.noise_multiplier * recipe.privacy.clip / n
    return float(recipe.learning_rate) * each * float(reach.square().sum().sqrt())
