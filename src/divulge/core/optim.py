"""The steps of gradient descent, Adam and Levenberg-Marquardt, each written once.

``Descent`` takes the steps of torch.optim digit for digit, in plain tensor operations. torch.optim takes seconds to
start (it loads torch's compiler on first use); a small model trains in less.

Elsewhere an optimiser of another form stays where it is used: ``divulge.informed.inversion.unrolled`` needs steps that
can be differentiated, ``divulge.informed.inversion.gauss_newton`` knows its Jacobian only by products with it, and
``divulge.reconstruction.printed`` uses torch.optim.SGD as its authors do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

BETAS = (0.9, 0.999)
ADDED = 1e-8
SMOOTHING = 0.99
"""Of RMSprop's mean square."""
Optimiser = Literal["sgd", "adam", "adamw", "rmsprop"]
"""The kinds of step."""
Schedule = Literal["constant", "cosine", "linear"]
"""How the learning rate falls to 0, or that it does not."""

Point = TypeVar("Point")
State = TypeVar("State")


class Descent:
    """Steps along the gradients that ``tensors`` hold in ``.grad``, in place.

    Parameters
    ----------
    tensors : sequence of Tensor
        What is moved.
    optimiser : {"sgd", "adam", "adamw", "rmsprop"}
        The kind of step. Adam has the betas 0.9 and 0.999, RMSprop the smoothing constant 0.99.
    learning_rate : float
        The length of a step. It may be set anew between steps, as ``descent.learning_rate``.
    momentum : float, default 0.0
        Momentum of ``sgd`` and ``rmsprop``.
    weight_decay : float, default 0.0
        This multiple of each tensor is added to its gradient; with ``adamw`` the tensor shrinks by this share of the
        learning rate instead.
    nesterov : bool, default False
        Whether ``sgd`` looks ahead by its momentum.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([4.0], requires_grad=True)
    >>> descent = Descent([x], optimiser="sgd", learning_rate=0.5)
    >>> (x**2 / 2).sum().backward()
    >>> descent.step()
    >>> x.tolist()
    [2.0]
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        *,
        optimiser: Optimiser,
        learning_rate: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        self.learning_rate = float(learning_rate)
        self._tensors = list(tensors)
        self._optimiser = optimiser
        self._momentum, self._decay, self._nesterov = float(momentum), float(weight_decay), nesterov
        self._steps = 0
        self._first: dict[int, Tensor] = {}  # velocity, or Adam's mean of the gradient
        self._second: dict[int, Tensor] = {}  # the mean of its square

    def clear(self) -> None:
        """Remove the gradients."""
        for tensor in self._tensors:
            tensor.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step; a tensor without a gradient stays where it is."""
        self._steps += 1
        for number, tensor in enumerate(self._tensors):
            if tensor.grad is None:
                continue
            gradient = tensor.grad
            if self._decay and self._optimiser == "adamw":
                tensor.mul_(1 - self.learning_rate * self._decay)
            elif self._decay:
                gradient = gradient.add(tensor, alpha=self._decay)
            if self._optimiser == "rmsprop":
                self._rmsprop(number, tensor, gradient)
            elif self._optimiser == "sgd":
                self._sgd(number, tensor, gradient)
            else:
                self._adam(number, tensor, gradient)

    def _sgd(self, number: int, tensor: Tensor, gradient: Tensor) -> None:
        if self._momentum:
            if number in self._first:
                velocity = self._first[number].mul_(self._momentum).add_(gradient)
            else:
                velocity = self._first[number] = gradient.clone()
            gradient = gradient.add(velocity, alpha=self._momentum) if self._nesterov else velocity
        tensor.add_(gradient, alpha=-self.learning_rate)

    def _rmsprop(self, number: int, tensor: Tensor, gradient: Tensor) -> None:
        square = self._second.setdefault(number, torch.zeros_like(tensor))
        square.mul_(SMOOTHING).addcmul_(gradient, gradient, value=1 - SMOOTHING)
        root = square.sqrt().add_(ADDED)
        if not self._momentum:
            tensor.addcdiv_(gradient, root, value=-self.learning_rate)
            return
        velocity = self._first.setdefault(number, torch.zeros_like(tensor))
        velocity.mul_(self._momentum).addcdiv_(gradient, root)
        tensor.add_(velocity, alpha=-self.learning_rate)

    def _adam(self, number: int, tensor: Tensor, gradient: Tensor) -> None:
        if number not in self._first:
            self._first[number], self._second[number] = torch.zeros_like(tensor), torch.zeros_like(tensor)
        adam_step(tensor, gradient, self._first[number], self._second[number], self._steps, self.learning_rate)


def schedule_share(schedule: Schedule, step: int, steps: int) -> float:
    """The share of the learning rate at step 0, 1, ... of so many."""
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / steps))
    return 1 - step / steps if schedule == "linear" else 1.0


def adam_step(tensor: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, count: int, rate: float) -> None:
    """Step number ``count`` of Adam (Kingma and Ba 2015), in place on the tensor and its two means."""
    mean.lerp_(gradient, 1 - BETAS[0])
    square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    root = (square.sqrt() / (1 - BETAS[1] ** count) ** 0.5).add_(ADDED)
    tensor.addcdiv_(mean, root, value=-rate / (1 - BETAS[0] ** count))


class AnnealedAdam:
    """Adam with a learning rate for each tensor, a shared schedule and a short memory for squares (beta 0.99).

    Its square is averaged by ``lerp_``, which rounds otherwise than ``adam_step``: the reconstruction from weights
    amplifies the last digit of a step, and its measured figures are those of this form.
    """

    def __init__(self, rates: Sequence[tuple[Tensor, float]]) -> None:
        self._state = [(tensor, rate, torch.zeros_like(tensor), torch.zeros_like(tensor)) for tensor, rate in rates]
        self._steps = 0

    @torch.no_grad()
    def step(self, share: float) -> None:
        """One step at a ``share`` of each learning rate. It clears the gradients."""
        self._steps += 1
        for tensor, rate, mean, square in self._state:
            assert tensor.grad is not None
            mean.lerp_(tensor.grad, 1 - 0.9)
            square.lerp_(tensor.grad.square(), 1 - 0.99)
            size = (square / (1 - 0.99**self._steps)).sqrt_().add_(ADDED)
            tensor.addcdiv_(mean, size, value=-rate * share / (1 - 0.9**self._steps))
            tensor.grad = None


@dataclass(frozen=True)
class Fit(Generic[Point, State]):
    """Where ``levenberg_marquardt`` ended."""

    point: Point
    state: State
    """What ``evaluate`` gave beside the cost of the point."""
    cost: float
    start_cost: float
    """The cost of the point that the search began with."""
    steps: int
    """How many proposals were taken."""


def levenberg_marquardt(
    start: Point,
    evaluate: Callable[[Point], tuple[float, State]],
    propose: Callable[[Point, State, float], Point | None],
    *,
    damping: float,
    eased: Callable[[float], float],
    raised: Callable[[float], float],
    proposals: int | None = None,
    steps: int | None = None,
    tries: int | None = None,
    most_damping: float = float("inf"),
    settled: float = 0.0,
    level: float = 0.0,
) -> Fit[Point, State]:
    """Minimise a cost by steps that are damped more after a failure and less after a success.

    ``scipy.optimize.least_squares`` builds the whole Jacobian anew for every step and has a damping of its own. The
    fits here have Jacobians with structure, or solve for hundreds of parameters from thousands of rows.

    Parameters
    ----------
    start : Point
        Where to begin.
    evaluate : callable
        Gives a point's cost, and what ``propose`` needs to know about the point. A cost that is not finite is never
        taken.
    propose : callable
        Gives another point from a point, its state and the damping; None where the damping is too small to solve for
        one, which counts as a failure.
    damping : float
        The damping at the start.
    eased, raised : callable
        The damping after a success and after a failure.
    proposals, steps, tries : int, optional
        The most proposals in all, the most that are taken, and the most failures in a row.
    most_damping : float, default infinity
        A failure above this damping ends the search.
    settled : float, default 0.0
        A step that lowers the cost by less than this share of it is the last.
    level : float, default 0.0
        So is a failure that raises the cost by less than this share of it: more damping makes the step only shorter.

    Returns
    -------
    Fit

    Examples
    --------
    >>> def evaluate(x):
    ...     return (x**2 - 2) ** 2, None
    >>> def propose(x, _, damping):
    ...     return x - (x**2 - 2) * 2 * x / (4 * x**2 + damping)
    >>> fit = levenberg_marquardt(
    ...     1.0, evaluate, propose, damping=1.0, eased=lambda d: d / 5, raised=lambda d: d * 5, proposals=30)
    >>> round(fit.point, 6)
    1.414214
    """
    point = start
    cost, state = evaluate(point)
    start_cost = cost
    proposed = taken = failed = 0
    while (
        (proposals is None or proposed < proposals)
        and (steps is None or taken < steps)
        and (tries is None or failed < tries)
    ):
        proposed += 1
        trial = propose(point, state, damping)
        new, there = (float("inf"), state) if trial is None else evaluate(trial)
        if trial is not None and new < cost:
            done = cost - new < settled * cost
            point, state, cost, damping = trial, there, new, eased(damping)
            taken, failed = taken + 1, 0
            if done:
                break
        elif damping > most_damping or new - cost < level * cost:
            break
        else:
            damping, failed = raised(damping), failed + 1
    return Fit(point, state, cost, start_cost, taken)
