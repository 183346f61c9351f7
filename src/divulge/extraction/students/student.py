"""Students: networks of a known or guessed shape that are fitted to a target's answers, alone or several together."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from divulge import models
from divulge.core import images
from divulge.core.errors import AttackFailed, WrongShape
from divulge.core.optim import Descent
from divulge.core.progress import report
from divulge.extraction.students.answers import Answers
from divulge.extraction.students.matching_loss import MatchingLoss, spread_of, value_error
from divulge.oracles.base import Oracle
from divulge.oracles.local.torch_module import input_shape_of

Student = str | Mapping[str, Any] | nn.Module
PAPERS_NAMES = {"1-layer": "softmax", "2-layer": "one-hidden", "vgg-11": "vgg11", "resnet-18": "resnet18"}
"""Students as Milli 2019 call them."""
NORM_MOMENTUM = 0.1
"""Of normalisation layers that follow their batches; torch's own default."""
LOOKS = 20
"""How often during a fit the held-out queries are looked at."""


@dataclass(frozen=True)
class TargetInfo:
    """All that a student must know of a target, so that it can be made where the target is not: on a worker."""

    input_shape: tuple[int, ...]
    input_dim: int
    output_dim: int
    dtype: torch.dtype
    eps: float

    @staticmethod
    def of(oracle: Oracle) -> TargetInfo:
        return TargetInfo(oracle.input_shape, oracle.input_dim, oracle.output_dim, oracle.dtype, oracle.eps)


def make_student(
    student: Student, target: TargetInfo, *, seed: int, fresh: bool, input_shape: Sequence[int] | None = None
) -> nn.Module:
    """A student in float32 that takes the target's rows and has its outputs, or WrongShape.

    By name or description it is built for the target with weights drawn from ``seed``; a module is copied, and its
    weights are a starting point unless ``fresh``.
    """
    if isinstance(student, nn.Module):
        made = copy.deepcopy(student)
        if fresh:
            redraw(made, seed)
    else:
        shape = tuple(input_shape or picture_shape(target))
        given = {} if isinstance(student, str) else dict(student)
        name = student if isinstance(student, str) else given.pop("architecture", None)
        name = PAPERS_NAMES.get(name, name) if isinstance(name, str) else name
        if name in models.names():
            given = {"shape": shape, "outputs": target.output_dim, **given}
        made = models.build({"architecture": name, **given}, seed=seed)
    made = made.to(torch.float32).eval().requires_grad_()
    _check_fit(made, target)
    return made


def redraw(module: nn.Module, seed: int) -> None:
    """Every layer's weights anew, each by the layer's own rule."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in module.modules():
            if callable(reset := getattr(layer, "reset_parameters", None)):
                reset()


def picture_shape(target: TargetInfo) -> tuple[int, ...]:
    """The shape of one input; a flat one that could be a square picture, grey or in colour, is taken for it."""
    return images.picture_shape(target.input_dim, target.input_shape) or target.input_shape


def logits_of(student: nn.Module) -> Callable[[Tensor], Tensor]:
    """The student as a function of flat rows [n, d] to outputs [n, k]."""
    shape = input_shape_of(student)

    def logits(X: Tensor) -> Tensor:
        out: Tensor = student(X.reshape(len(X), *shape))
        return out.reshape(len(X), -1)

    return logits


def _check_fit(student: nn.Module, target: TargetInfo) -> None:
    shape = input_shape_of(student)
    if math.prod(shape) != target.input_dim:
        raise WrongShape(
            f"The student takes inputs of shape {tuple(shape)}, {math.prod(shape)} numbers, and the target takes "
            f"{target.input_dim}; choose a student for the target's inputs."
        )
    try:
        with torch.no_grad():
            outputs = logits_of(student)(torch.zeros(2, target.input_dim)).shape[1]
    except RuntimeError as error:
        raise WrongShape(f"The student does not take inputs of shape {tuple(shape)}: {error}.") from error
    if outputs != target.output_dim:
        raise WrongShape(
            f"The student has {outputs} outputs and the target {target.output_dim}; give the student as many."
        )


def fit(
    student: nn.Module,
    answers: Answers,
    loss: MatchingLoss,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    generator: torch.Generator,
    held_out: Answers | None = None,
    extra: Callable[[Callable[[Tensor], Tensor]], Tensor] | None = None,
    train_norms: bool = False,
    stage: str = "learning a copy",
) -> nn.Module:
    """Fit in place by Adam, with a short warm-up and a cosine end; keep the weights that meet held-out queries best.

    ``extra`` adds a loss of its own at every step. With ``train_norms`` normalisation layers follow their
    batches.
    """
    logits = logits_of(student)
    norms = _set_norms(student, answers.X)
    parameters = [parameter for parameter in student.parameters() if parameter.requires_grad]
    descent = Descent(parameters, optimiser="adam", learning_rate=learning_rate)
    warm = max(1, steps // 20)
    best: tuple[float, dict[str, Tensor]] | None = None
    order = torch.empty(0, dtype=torch.long)
    every = max(1, steps // LOOKS)
    for step in range(steps):
        rate = min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * step / steps))
        descent.learning_rate = learning_rate * rate
        if len(order) < min(batch_size, len(answers)):
            order = torch.cat([order, torch.randperm(len(answers), generator=generator)])
        rows, order = order[:batch_size], order[batch_size:]
        descent.clear()
        _follow(norms, following=train_norms and len(rows) > 1)
        total = loss(logits, answers[rows], generator)
        if extra is not None:
            total = total + extra(logits)
        if not math.isfinite(float(total.detach())):
            raise AttackFailed(f"The fit diverged at step {step}; lower learning_rate (it is {learning_rate:g}).")
        total.backward(inputs=parameters)  # type: ignore[no-untyped-call]
        descent.step()
        _follow(norms, following=False)
        if (step + 1) % every == 0 or step + 1 == steps:
            seen = answers[:1000] if held_out is None else held_out
            error, agree = misfit(student, seen), compare(student, seen)[1]
            report(stage, step + 1, steps, agreement=f"{100 * agree:.1f} %")
            if held_out is not None and (best is None or error < best[0]):
                best = error, copy.deepcopy(student.state_dict())
    if best is not None:
        student.load_state_dict(best[1])
    return student


def compare(student: nn.Module, answers: Answers) -> tuple[float, float]:
    """Mean squared error of the (centred) logits, and how often the label is the target's."""
    with torch.no_grad():
        z = logits_of(student)(answers.X)
    error = float((answers.centred(z) - answers.logits).square().mean())
    if z.shape[1] == 1:
        yes = answers.logits > 0 if answers.shares is None else answers.shares > 0.5
        return error, float(((z > 0) == yes).to(torch.float64).mean())
    wanted = (answers.logits if answers.shares is None else answers.shares).argmax(dim=1)
    return error, float((z.argmax(dim=1) == wanted).to(torch.float64).mean())


def misfit(student: nn.Module, answers: Answers) -> float:
    """How far the student is off in values, also where logits are hidden, in the units of these answers."""
    with torch.no_grad():
        z = logits_of(student)(answers.X)
    return float(value_error(z, answers, spread_of(answers)))


def set_level(student: nn.Module, answers: Answers) -> bool:
    """Move the last layer's bias so that the values fit best: what gradients alone leave open. False if it has none."""
    last = [layer for layer in student.modules() if isinstance(layer, nn.Linear)][-1:]
    if not last or last[0].bias is None or last[0].out_features != answers.logits.shape[1]:
        return False
    with torch.no_grad():
        z = logits_of(student)(answers.X)
        last[0].bias.add_((answers.logits - answers.centred(z)).mean(dim=0))
    return True


def _follow(norms: Sequence[nn.Module], *, following: bool) -> None:
    """Let normalisation layers use and keep the statistics of their batches, or those that they have."""
    for layer in norms:
        layer.train(following)


def _set_norms(student: nn.Module, X: Tensor) -> Sequence[nn.Module]:
    """Batch statistics from the queries, once; then they stand still, so that a row's gradient is its own."""
    norms = [layer for layer in student.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    if norms and len(X) > 1:
        for layer in norms:
            layer.reset_running_stats()
            layer.momentum = None
        student.train()
        with torch.no_grad():
            for rows in torch.split(X[:1000], 250):
                if len(rows) > 1:
                    logits_of(student)(rows)
        for layer in norms:
            layer.momentum = NORM_MOMENTUM
    student.eval()
    return norms


def soft_labels(
    teacher: Callable[[Tensor], Tensor], X: Tensor, *, confident: float, rows_at_once: int = 2000
) -> tuple[Tensor, Tensor]:
    """Of the rows X those that the teacher is surest of, in equal share of every label it gives, and its logits."""
    with torch.no_grad():
        z = torch.cat([teacher(part) for part in torch.split(X, rows_at_once)])
    top = z.topk(2, dim=1).values
    margin = top[:, 0] - top[:, 1]
    label = z.argmax(dim=1)
    keep = torch.zeros(len(X), dtype=torch.bool)
    for number in label.unique():  # type: ignore[no-untyped-call]
        members = (label == number).nonzero()[:, 0]
        surest = margin[members].argsort(descending=True)[: max(1, math.ceil(confident * len(members)))]
        keep[members[surest]] = True
    return X[keep], z[keep]


def distillation(
    X: Tensor, wanted: Tensor, *, weight: float, batch_size: int, scale: float, generator: torch.Generator
) -> Callable[[Callable[[Tensor], Tensor]], Tensor]:
    """A loss on unlabelled rows: the student's logits against the teacher's, in units of ``scale``."""

    def loss(logits: Callable[[Tensor], Tensor]) -> Tensor:
        rows = torch.randint(len(X), (min(batch_size, len(X)),), generator=generator)
        z = logits(X[rows])
        return weight * (
            functional.mse_loss(z, wanted[rows]) / scale + functional.cross_entropy(z, wanted[rows].argmax(dim=1))
        )

    return loss
