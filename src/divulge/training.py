"""How a model is trained, as a value: a ``Recipe`` repeats its training bit for bit on the same machine.

What happens, exactly, so that a training run can be rewritten elsewhere and compared to the last digits: a step on the
rows I lowers the *mean* over I of a loss of ``divulge.losses``. With g the gradient of that mean plus
``weight_decay`` * theta (biases too), a step of ``sgd`` is v <- momentum * v + g (v starts at the first g),
theta <- theta - learning_rate * v, as torch.optim.SGD does; ``adam`` is as torch.optim.Adam with betas 0.9 and 0.999
and 1e-8 added to the root.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from divulge import models
from divulge.descent import Descent
from divulge.errors import DivulgeError, EmptyBatch, InvalidInput, NonFiniteInput, WrongShape
from divulge.losses import Evaluation, Loss, check_labels, evaluate, labels_of, loss_of, shaped
from divulge.models.storage import refuse_code
from divulge.progress import report

if TYPE_CHECKING:
    from divulge.reconstruction.margin import to_margin

__all__ = [
    "Activation", "Evaluation", "Loss", "Optimiser", "Precision", "Privacy", "Recipe", "TrainingDiverged", "evaluate",
    "labels_of", "loss_of", "shaped", "to_margin",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """``to_margin`` is training too, but its home brings much along, so it comes when it is asked for."""
    if name == "to_margin":
        from divulge.reconstruction.margin import to_margin

        return to_margin
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


Activation = Literal["relu", "elu", "tanh", "softplus", "sigmoid"]
Optimiser = Literal["sgd", "adam"]
Precision = Literal["float32", "float64"]
_ORDER_STREAM = 0x9E3779B9  # sets the shuffling's random stream apart from the initial weights'


class TrainingDiverged(DivulgeError):
    """The loss became NaN or infinite."""

    exit_code = 3


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Differentially private training: each example's gradient is clipped to norm ``clip``, the clipped gradients of
    a batch are summed, and Gaussian noise of standard deviation ``noise_multiplier * clip`` is added to the sum.

    ``noise_seed=None`` takes the noise from the operating system: the choice for a model that will be released, and
    the only one that is not repeatable.
    """

    noise_multiplier: float
    clip: float = 1.0
    noise_seed: int | None = None

    def __post_init__(self) -> None:
        _number("noise_multiplier", self.noise_multiplier, at_least=0)
        _number("clip", self.clip, above=0)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a trained model except the data.

    ``initial_scale`` is None for torch's initial distribution, one number for the standard deviation of the first
    layer's weights and bias (Haim 2022: only the first layer starts small), or one number or None a layer.
    ``batch_size=None`` is full-batch descent. ``architecture`` names a model of ``divulge.models`` (or is its
    description) where ``widths`` does not do.
    """

    widths: Sequence[int] | None = None
    activation: Activation = "relu"
    loss: Loss = "cross-entropy"
    bias: models.Bias = "all"
    optimiser: Optimiser = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
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
            if getattr(self, name) not in choices:
                raise InvalidInput(f"{name} is one of {', '.join(choices)}; got {getattr(self, name)!r}.")
        _number("learning_rate", self.learning_rate, above=0)
        _number("momentum", self.momentum, at_least=0)
        _number("weight_decay", self.weight_decay, at_least=0)
        _whole("epochs", self.epochs, at_least=0)
        _whole("seed", self.seed, at_least=0, below=2**32)
        if self.batch_size is not None:
            _whole("batch_size", self.batch_size, at_least=1)
        if self.widths is not None:
            for width in self.widths:
                _whole("a width", width, at_least=1)
            object.__setattr__(self, "widths", tuple(int(width) for width in self.widths))
        if self.initial_scale is not None and not isinstance(self.initial_scale, int | float):
            object.__setattr__(self, "initial_scale", tuple(self.initial_scale))
        for scale in self._scales:
            if scale is not None:
                _number("initial_scale", scale, above=0)
        if isinstance(self.privacy, Mapping):
            object.__setattr__(self, "privacy", Privacy(**self.privacy))
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
        """The model before its first step: parameters as ``divulge.models.initialise`` draws them from ``seed``."""
        return models.build(self.spec, seed=self.seed, dtype=self.dtype, scales=self._scales)

    def batches(self, n: int) -> Iterator[Tensor]:
        """The row numbers of each step, over all epochs: a function of ``seed`` and ``n`` alone.

        A full batch is all rows in order. Mini-batches cut a fresh permutation of the rows every epoch; the last one
        of an epoch may be short.
        """
        if self.batch_size is None or self.batch_size >= n:
            for _ in range(self.epochs):
                yield torch.arange(n)
            return
        generator = torch.Generator().manual_seed(self.seed ^ _ORDER_STREAM)
        for _ in range(self.epochs):
            order = torch.randperm(n, generator=generator)
            yield from (order[first : first + self.batch_size] for first in range(0, n, self.batch_size))

    def steps(self, n: int) -> int:
        """How many steps ``batches`` makes."""
        return self.epochs * (1 if self.batch_size is None else math.ceil(n / self.batch_size))

    def loss_of(self, outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """The loss of outputs [n, k] (or [n] for one output) against labels or targets, as ``divulge.losses`` says.

        ``reduction`` is "mean", "sum" or "none". No branch depends on the data, so it runs under torch.func.
        """
        return loss_of(self.loss, outputs, targets, reduction)

    def descent(self, tensors: Iterable[Tensor]) -> Descent:
        """What takes the steps: ``.step()`` along the tensors' ``.grad``, ``.clear()`` before the next."""
        return Descent(
            list(tensors), optimiser=self.optimiser, learning_rate=self.learning_rate, momentum=self.momentum,
            weight_decay=self.weight_decay,
        )  # fmt: skip

    def optimiser_for(self, model: nn.Module) -> torch.optim.Optimizer:
        """A torch optimiser that takes the same steps, for libraries that ask for one; it is slow to start."""
        parameters = list(model.parameters())
        rate, decay = float(self.learning_rate), float(self.weight_decay)
        if self.optimiser == "adam":
            return torch.optim.Adam(parameters, lr=rate, weight_decay=decay, foreach=False)
        return torch.optim.SGD(parameters, lr=rate, momentum=float(self.momentum), weight_decay=decay, foreach=False)

    def prepare(self, X: Any, y: Any, *, device: str | torch.device | None = None) -> tuple[Tensor, Tensor]:
        """Rows [n, ...] in this recipe's precision and their targets, checked."""
        try:
            rows = torch.as_tensor(X, device=device).to(self.dtype)
            targets = torch.as_tensor(y, device=rows.device)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"Training data are arrays of numbers; these are not: {error}") from error
        if rows.ndim < 2:
            raise WrongShape(f"Training rows come as [n, width]; got shape {tuple(rows.shape)}.")
        if len(rows) == 0:
            raise EmptyBatch("There are no rows to train on.")
        if targets.ndim == 0 or len(targets) != len(rows):
            raise WrongShape(f"There are {len(rows)} rows but targets of shape {tuple(targets.shape)}.")
        if not bool(rows.isfinite().all()) or not bool(targets.isfinite().all()):
            raise NonFiniteInput("The training data holds NaN or infinite values; remove or fill those rows first.")
        if self.loss == "logistic":
            values = sorted(set(targets.flatten().tolist()))
            if not (set(values) <= {0, 1} or set(values) <= {-1, 1}):
                raise InvalidInput(f"The logistic loss takes labels 0 and 1, or -1 and 1; got {values[:5]}.")
        if targets.is_floating_point():
            targets = targets.to(self.dtype)
        elif self.loss == "cross-entropy":
            targets = targets.long()
        return rows, targets

    # -- training -----------------------------------------------------------------------------------------------------

    def train(
        self, X: Any, y: Any, *, start: nn.Module | None = None, device: str | torch.device | None = None
    ) -> nn.Module:
        """The trained model, in evaluation mode. ``start`` replaces the initial model (it is copied, not changed)."""
        if self.privacy is not None:
            from divulge.protection import private_training

            if device is not None and torch.device(device).type != "cpu":
                raise InvalidInput("Private training runs on the CPU; leave device out.")
            return private_training.train(self, X, y, start=start)
        rows, targets = self.prepare(X, y, device=device)
        model = self.initial_model() if start is None else copy.deepcopy(start).to(self.dtype)
        model.to(rows.device).train()
        rows = shaped(rows, model)
        check_outputs(self.loss, model, rows, targets)
        if self.batch_size is not None and len(rows) % self.batch_size == 1 and _normalises(model):
            raise InvalidInput(
                f"Batches of {self.batch_size} leave one row over of {len(rows)}, which batch normalisation cannot "
                "take; choose another batch_size."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)  # for dropout and the like in models of the user's own
            self._descend(model, rows, targets)
        return model.eval()

    def _descend(self, model: nn.Module, rows: Tensor, targets: Tensor) -> None:
        descent = self.descent(model.parameters())
        total = self.steps(len(rows))
        whole = self.batch_size is None or self.batch_size >= len(rows)
        for step, index in enumerate(self.batches(len(rows)), start=1):
            descent.clear()
            loss = self.loss_of(model(rows if whole else rows[index]), targets if whole else targets[index])
            loss.backward()  # type: ignore[no-untyped-call]
            descent.step()
            value = float(loss.detach())
            if not math.isfinite(value):
                raise TrainingDiverged(
                    f"The loss became {value} at step {step} of {total}; "
                    f"try a learning rate below {self.learning_rate:g}."
                )
            report("training", step, total, loss=f"{value:.3g}")
        if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
            raise TrainingDiverged(f"The weights are no longer finite; try a rate below {self.learning_rate:g}.")

    # -- on disk ------------------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; ``Recipe(**recipe.as_dict())`` is the same recipe."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=np.generic.item))
        return plain

    def save(self, path: str | Path) -> Path:
        """Write the recipe as JSON to a file, or as ``recipe.json`` into a folder."""
        path = _recipe_path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.as_dict(), indent=2) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path, *, trust_code: bool = False) -> Recipe:
        """The recipe that ``save`` wrote, from its file or folder.

        One whose architecture is code ("module:function") is refused unless ``trust_code``: training runs that code.
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
    "precision": get_args(Precision),
}


def _normalises(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def check_outputs(loss: Loss, model: nn.Module, rows: Tensor, targets: Tensor) -> None:
    """Refuse targets that do not fit the model's outputs before the first step is taken."""
    model.eval()
    try:
        with torch.no_grad():
            outputs = model(rows[:1])
    except RuntimeError as error:
        raise WrongShape(
            f"The model does not take rows of shape {tuple(rows.shape[1:])}: {str(error).splitlines()[0]} A model of "
            "your own may say what it takes in an attribute input_shape."
        ) from error
    model.train()
    if outputs.ndim != 2:
        raise WrongShape(f"A model answers rows of outputs [n, k]; this one answered {tuple(outputs.shape)} for n = 1.")
    check_labels(loss, outputs, targets)


def _number(name: str, value: Any, *, at_least: float | None = None, above: float | None = None) -> None:
    ok = isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or (at_least is not None and value < at_least) or (above is not None and value <= above):
        bound = f"at least {at_least:g}" if at_least is not None else f"above {above:g}"
        raise InvalidInput(f"{name} is a number {bound}; got {value!r}.")


def _whole(name: str, value: Any, *, at_least: int, below: int | None = None) -> None:
    ok = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= at_least
    if not ok or (below is not None and value >= below):
        limit = f" and below {below}" if below is not None else ""
        raise InvalidInput(f"{name} is a whole number of at least {at_least}{limit}; got {value!r}.")


def _recipe_path(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == ".json" else path / "recipe.json"
