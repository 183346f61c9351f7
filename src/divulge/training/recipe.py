"""What a recipe is: everything that decides a trained model except the data.

A ``Recipe`` repeats its training bit for bit on the same machine. ``divulge.training.trainer`` runs it, and states the
arithmetic of a step; ``divulge.training.private.trainer`` runs a recipe with privacy.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from divulge import models
from divulge.core.errors import DivulgeError, InvalidInput
from divulge.core.losses import Loss, loss_of
from divulge.core.optim import Descent, Optimiser, Schedule, schedule_share
from divulge.core.storage import write_json
from divulge.core.validation import checked_choice, checked_number, checked_whole
from divulge.models.files import refuse_code

Activation = Literal["relu", "elu", "tanh", "softplus", "sigmoid"]
"""The activations of a multilayer perceptron."""
Precision = Literal["float32", "float64"]
"""The precisions of a recipe."""
ArrayLike = npt.ArrayLike | Tensor
"""Numbers as callers give them: a tensor, a numpy array, a table's values or nested lists."""
SEEDED = "seeded: no guarantee"
"""What is said of private training whose noise can be repeated."""
_SHUFFLING_STREAM = 0x9E3779B9  # separates the shuffling's random stream from that of the initial weights


class TrainingDiverged(DivulgeError):
    """The loss became NaN or infinite."""

    exit_code = 3


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Differentially private training (DP-SGD).

    Each example's gradient is clipped to norm ``clip``. The clipped gradients of a batch are summed, and Gaussian noise
    of standard deviation ``noise_multiplier * clip`` is added to the sum.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise over ``clip``; 0 clips without noise.
    clip : float, default 1.0
        The largest norm of one example's gradient.
    noise_seed : int, optional
        Seed of the noise and of the sampled batches. None, the default, takes both from the operating system. With a
        seed the training can be repeated, and so can its noise: no epsilon is then claimed.
    delta : float, default 1e-5
        The delta for which the epsilon spent is stated.

    Raises
    ------
    InvalidInput
        ``noise_multiplier`` is negative, ``clip`` is not positive, or ``delta`` does not lie between 0 and 1.

    See Also
    --------
    divulge.protection.guarantee_of : the epsilon that a recipe or a saved model guarantees.

    Examples
    --------
    >>> from divulge.training import Privacy
    >>> Privacy(noise_multiplier=1.1)
    Privacy(noise_multiplier=1.1, clip=1.0, noise_seed=None, delta=1e-05)
    >>> Privacy(noise_multiplier=1.1, noise_seed=3).claim
    'seeded: no guarantee'
    """

    noise_multiplier: float
    clip: float = 1.0
    noise_seed: int | None = None
    delta: float = 1e-5

    def __post_init__(self) -> None:
        checked_number("noise_multiplier", self.noise_multiplier, at_least=0)
        checked_number("clip", self.clip, above=0)
        checked_number("delta", self.delta, above=0, below=1)

    @property
    def claim(self) -> str:
        """Whether a guarantee can be claimed, in words; ``as_dict`` and recipe.json carry it."""
        if self.noise_multiplier == 0:
            return "no noise: no guarantee"
        return SEEDED if self.noise_seed is not None else "noise and samples from the operating system"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a trained model except the data.

    Parameters
    ----------
    widths : sequence of int, optional
        A multilayer perceptron by its widths, from inputs to outputs. Give this or ``architecture``.
    activation : {"relu", "elu", "tanh", "softplus", "sigmoid"}, default "relu"
        The activation between the layers, with ``widths``.
    loss : {"logistic", "cross-entropy", "square"}, default "cross-entropy"
        The loss of a row; ``divulge.core.losses`` states each.
    bias : {"all", "first", "none"}, default "all"
        Which layers have a bias, with ``widths``.
    optimiser : {"sgd", "adam", "adamw", "rmsprop"}, default "sgd"
        How a step is taken.
    learning_rate : float, default 0.1
        Step size.
    momentum : float, default 0.0
        Momentum of ``sgd`` and ``rmsprop``.
    weight_decay : float, default 0.0
        Multiplies the weights and is added to the gradient, for biases too. With ``adamw`` the weights shrink by this
        share of the step size instead.
    nesterov : bool, default False
        Whether ``sgd`` looks ahead by its momentum.
    schedule : {"constant", "cosine", "linear"}, default "constant"
        How the step size falls from ``learning_rate`` to 0 over all steps, if it does.
    epochs : int, default 100
        Passes over the data.
    batch_size : int, optional
        Rows a step; None, the default, is full-batch descent.
    initial_scale : float or sequence, optional
        None for torch's initial distribution. One number is the standard deviation of the first layer's initial
        weights and bias (Haim 2022: only the first layer starts small). A sequence has a number or None for each
        layer.
    precision : {"float32", "float64"}, default "float32"
        The precision of weights and data.
    seed : int, default 0
        Seed of the initial weights and of the shuffling.
    privacy : Privacy, optional
        Trains with differential privacy.
    architecture : str or mapping, optional
        A model of ``divulge.models`` by name, its description, or "module:function".

    Raises
    ------
    InvalidInput
        A field does not make sense, or both or neither of ``widths`` and ``architecture`` are given.

    See Also
    --------
    divulge.training.evaluate : accuracy, AUC and loss of a trained model.
    divulge.protection.privacy_for : the privacy that spends a given epsilon.

    Examples
    --------
    >>> import divulge
    >>> X, y = divulge.datasets.load("iris").train
    >>> recipe = divulge.Recipe(widths=[4, 8, 3], epochs=5, seed=0)
    >>> model = recipe.train(X, y)
    >>> divulge.Recipe(**recipe.as_dict()) == recipe
    True
    """

    widths: Sequence[int] | None = None
    activation: Activation = "relu"
    loss: Loss = "cross-entropy"
    bias: models.Bias = "all"
    optimiser: Optimiser = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    schedule: Schedule = "constant"
    epochs: int = 100
    batch_size: int | None = None
    initial_scale: float | Sequence[float | None] | None = None
    precision: Precision = "float32"
    seed: int = 0
    privacy: Privacy | None = None
    architecture: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.widths is None) == (self.architecture is None):
            raise InvalidInput(
                "A recipe has either widths=[inputs, ..., outputs] or an architecture; give one of them."
            )
        for name, choices in _CHOICES.items():
            checked_choice(name, getattr(self, name), choices)
        checked_number("learning_rate", self.learning_rate, above=0)
        checked_number("momentum", self.momentum, at_least=0)
        checked_number("weight_decay", self.weight_decay, at_least=0)
        if self.nesterov and (self.optimiser != "sgd" or not self.momentum):
            raise InvalidInput("nesterov needs the optimiser sgd with a momentum above 0.")
        object.__setattr__(self, "epochs", checked_whole("epochs", self.epochs, at_least=0))
        object.__setattr__(self, "seed", checked_whole("seed", self.seed, at_least=0, at_most=2**32 - 1))
        if self.batch_size is not None:
            hint = "None takes all rows in every step."
            object.__setattr__(self, "batch_size", checked_whole("batch_size", self.batch_size, at_least=1, hint=hint))
        if self.widths is not None:
            widths = tuple(checked_whole("a width", width, at_least=1) for width in self.widths)
            object.__setattr__(self, "widths", widths)
        if self.initial_scale is not None and not isinstance(self.initial_scale, int | float):
            object.__setattr__(self, "initial_scale", tuple(self.initial_scale))
        for scale in self._scales:
            if scale is not None:
                checked_number("initial_scale", scale, above=0)
        if isinstance(self.privacy, Mapping):
            fields = {name: value for name, value in self.privacy.items() if name != "claim"}
            object.__setattr__(self, "privacy", Privacy(**fields))
        if self.widths is not None and self.loss == "logistic" and self.widths[-1] != 1:
            raise InvalidInput(f"The logistic loss needs one output; these widths end in {self.widths[-1]}.")

    # -- the pieces of a training run, for whoever repeats or rewrites it ---------------------------------------------

    @property
    def dtype(self) -> torch.dtype:
        """The precision as torch names it."""
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def spec(self) -> dict[str, Any]:
        """The description that ``divulge.models.build`` takes."""
        if self.widths is not None:
            shape = {"widths": list(self.widths), "activation": self.activation, "bias": self.bias}
            return {"architecture": "mlp", **shape}
        if isinstance(self.architecture, Mapping):
            return dict(self.architecture)
        return {"architecture": self.architecture}

    def initial_model(self) -> nn.Module:
        """The model before its first step; ``divulge.models.initialise`` draws its parameters from ``seed``."""
        return models.build(self.spec, seed=self.seed, dtype=self.dtype, scales=self._scales)

    def batches(self, n: int) -> Iterator[Tensor]:
        """The row indices of each step, over all epochs; they depend on ``seed`` and ``n`` alone.

        A full batch is all rows in order. Mini-batches are cut from a new permutation of the rows every epoch; the
        last one of an epoch may be short. Private training draws its mini-batches by Poisson sampling instead.
        """
        if self.batch_size is None or self.batch_size >= n:
            for _ in range(self.epochs):
                yield torch.arange(n)
            return
        generator = torch.Generator().manual_seed(self.seed ^ _SHUFFLING_STREAM)
        for _ in range(self.epochs):
            order = torch.randperm(n, generator=generator)
            yield from (order[first : first + self.batch_size] for first in range(0, n, self.batch_size))

    def steps(self, n: int) -> int:
        """The number of steps in ``batches``."""
        return self.epochs * (1 if self.batch_size is None else math.ceil(n / self.batch_size))

    def loss_of(self, outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """The loss of outputs [n, k] (or [n] for one output) against labels or targets, as in ``core.losses``.

        ``reduction`` is "mean", "sum" or "none". No branch depends on the data, so the function works under torch.func.
        """
        return loss_of(self.loss, outputs, targets, reduction)

    def descent(self, tensors: Iterable[Tensor]) -> Descent:
        """The optimiser: ``.step()`` moves along the tensors' ``.grad``, ``.clear()`` empties those."""
        return Descent(
            list(tensors), optimiser=self.optimiser, learning_rate=self.learning_rate, momentum=self.momentum,
            weight_decay=self.weight_decay, nesterov=self.nesterov,
        )  # fmt: skip

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of step 0, 1, ... of so many."""
        return float(self.learning_rate) * schedule_share(self.schedule, step, steps)

    def optimiser_for(self, model: nn.Module) -> torch.optim.Optimizer:
        """A torch optimiser that takes the same steps, for libraries that need one; torch.optim is slow to import."""
        parameters = list(model.parameters())
        rate, decay = float(self.learning_rate), float(self.weight_decay)
        shared: dict[str, Any] = {"lr": rate, "weight_decay": decay, "foreach": False}
        if self.optimiser == "adam":
            return torch.optim.Adam(parameters, **shared)
        if self.optimiser == "adamw":
            return torch.optim.AdamW(parameters, **shared)
        if self.optimiser == "rmsprop":
            return torch.optim.RMSprop(parameters, momentum=float(self.momentum), **shared)
        return torch.optim.SGD(parameters, momentum=float(self.momentum), nesterov=self.nesterov, **shared)

    # -- training -----------------------------------------------------------------------------------------------------

    def prepare(self, X: ArrayLike, y: ArrayLike, *, device: str | torch.device | None = None) -> tuple[Tensor, Tensor]:
        """Rows [n, ...] in this recipe's precision and their targets, checked."""
        from divulge.training import trainer

        return trainer.prepare(self, X, y, device=device)

    def train(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        start: nn.Module | None = None,
        device: str | torch.device | None = None,
    ) -> nn.Module:
        """Train a model by this recipe.

        Parameters
        ----------
        X : array [n, ...]
            Training rows.
        y : array [n] or [n, k]
            Labels or targets.
        start : nn.Module, optional
            Replaces the initial model; it is copied, not changed.
        device : str or torch.device, optional
            Where to train.

        Returns
        -------
        nn.Module
            The trained model, in evaluation mode.

        Raises
        ------
        TrainingDiverged
            The loss or the weights became NaN or infinite.
        InvalidInput
            The data does not fit the recipe.
        """
        from divulge.training import trainer

        return trainer.train(self, X, y, start=start, device=device)

    # -- on disk ------------------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; ``Recipe(**recipe.as_dict())`` is the same recipe."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=np.generic.item))
        if self.privacy is not None:
            plain["privacy"]["claim"] = self.privacy.claim
        return plain

    def save(self, path: str | Path) -> Path:
        """Write the recipe as JSON to a file, or as ``recipe.json`` into a folder."""
        return write_json(_recipe_path(path), self.as_dict())

    @classmethod
    def load(cls, path: str | Path, *, trust_code: bool = False) -> Recipe:
        """The recipe that ``save`` wrote, from its file or folder.

        A recipe whose architecture is code ("module:function") is refused unless ``trust_code`` is true, because
        training would run that code.
        """
        path = _recipe_path(path)
        try:
            recipe = cls(**json.loads(path.read_text()))
            refuse_code(recipe.spec.get("architecture"), path, trust_code=trust_code)
            return recipe
        except InvalidInput:
            raise
        except FileNotFoundError as error:
            raise InvalidInput(
                f"{path} is not there; a recipe is the recipe.json that divulge train writes."
            ) from error
        except (OSError, ValueError, TypeError) as error:
            raise InvalidInput(f"{path} does not hold a recipe: {error}.") from error

    @property
    def _scales(self) -> tuple[float | None, ...]:
        if self.initial_scale is None:
            return ()
        return (self.initial_scale,) if isinstance(self.initial_scale, int | float) else tuple(self.initial_scale)


# -- checks -----------------------------------------------------------------------------------------------------------

_CHOICES: dict[str, tuple[str, ...]] = {
    "activation": get_args(Activation),
    "loss": get_args(Loss),
    "bias": get_args(models.Bias),
    "optimiser": get_args(Optimiser),
    "schedule": get_args(Schedule),
    "precision": get_args(Precision),
}


def _recipe_path(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == ".json" else path / "recipe.json"
