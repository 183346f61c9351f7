"""The stationarity equation of Haim et al. 2022 (equation 2) solved inside the row space, many restarts at once.

Unknown are m inputs x_i = z_i V, their multipliers lambda_i and, with several classes, which runner-up each one holds
off. Only the first layer is matched: it alone is a product of inputs. Departures from the paper, each measured to
matter: the search runs in r instead of d dimensions; labels are the model's own at the random start and multipliers
start at their non-negative least squares, instead of half-and-half and uniform; weak singular directions weigh more
(sigma^(-1/4)); the gradients are written out by hand, so one backward pass replaces a double one; and Adam with large
steps that shrink to nothing moves the samples about before they settle.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from divulge.reconstruction.network import Network
from divulge.reconstruction.separation import differences
from divulge.reconstruction.subspace import RowSpace

Watch = Callable[[int, int, Tensor], None]
COLUMNS = 192
"""Columns of the inputs that one step holds to their range."""
DIFFERENCES = 1500
"""Differences between pixels that one step looks at."""


@dataclass(frozen=True)
class Prior:
    """What is known of the inputs: entries of x + mean lie in [low, high]. An unknown mean is fitted."""

    low: Tensor | float
    high: Tensor | float
    mean: Tensor | None


@dataclass(frozen=True)
class Settings:
    """The search's numbers; the defaults are the ones used everywhere unless a call says otherwise."""

    steps: int = 600
    learning_rate: float = 0.2
    sharpness: Sequence[tuple[float, float]] = ((20.0, 60.0),)
    """Slope of the smoothed ReLU derivative at the first and the last step; restarts take turns."""
    spread: float = 12.0
    """Size of the random starts."""
    box: float = 10.0
    margin: float = 0.03
    """Weight of equal margins; 0 for models trained with weight decay or a square loss."""
    whitening: float = 0.125
    sparse: float = 6.0
    """Weight of sparse differences between neighbouring pixels, for pictures."""


SEPARATED = Settings(steps=200, learning_rate=0.05)
"""For starts that separation has brought near to pictures."""
FEW_SEPARATED = replace(SEPARATED, sparse=2.0)
"""The same, of few pictures."""


@dataclass(frozen=True)
class Candidates:
    """What R restarts found: inputs [R, m, d], classes and multipliers [R, m], residuals and steps taken [R]."""

    inputs: Tensor
    labels: Tensor
    multipliers: Tensor
    residual: Tensor
    steps: Tensor
    mean: Tensor | None = None
    """The fitted mean of each restart, [R, d]."""


class Problem:
    """One target's equation in its row space, ready to be solved from any number of starts."""

    def __init__(
        self, network: Network, space: RowSpace, prior: Prior | None, settings: Settings,
        shape: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        reference = network.weights[0]
        self.shape = shape
        self.space = space.to(reference.dtype, reference.device)
        self.upper = network.upper()
        self.prior, self.settings = prior, settings
        self.classes = network.output_dim
        self.weights = (self.space.singular.square() + space.noise**2) ** -settings.whitening  # [r]
        self.size = (self.space.coordinates * self.weights).square().sum()

    def evaluate(self, z: Tensor, sharpness: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The model's outputs [R, m, k] at z, and the pre-activations of all hidden layers."""
        Z = z @ self.space.coordinates.T
        hidden, out = self.upper.forward(torch.relu(Z))
        return out, [Z, *hidden]

    def deltas(self, hidden: list[Tensor], signal: Tensor, sharpness: Tensor) -> Tensor:
        """The gradient of <signal, output> by the first pre-activation, with smoothed ReLU derivatives."""

        def gate(Z: Tensor) -> Tensor:
            return torch.sigmoid(sharpness * Z / Z.detach().square().mean().sqrt().clamp_min(1e-30))

        first, *others = hidden
        D = self.upper.backward(others, signal, gate)[0] if others else signal
        return (D @ self.upper.weights[0]) * gate(first)

    def solve(self, starts: Tensor, watch: Watch | None = None, *, seconds: float = math.inf) -> Candidates:
        """Descend from coordinates ``starts`` [R, m, r - 1 (or r)], in fewer steps where ``seconds`` allow no more.

        Restarts that would have less than a quarter of their steps in that time are given up for the others' sake.
        """
        begun = time.perf_counter()
        if math.isfinite(seconds):
            enough = self.settings.steps / 4 * self.pace(starts[:1])
            starts = starts[: max(1, int(seconds / enough))]
        return _Descent(self, starts).run(watch, begun + seconds)

    def pace(self, starts: Tensor) -> float:
        """Seconds that one step from ``starts`` takes: the quickest of three after a first one that warms up."""
        trial, seconds = _Descent(self, starts), list[float]()
        for _ in range(4):
            begun = time.perf_counter()
            trial.step(0, 0.0)
            seconds.append(time.perf_counter() - begun)
        return min(seconds[1:])


@dataclass(frozen=True)
class _Columns:
    """Some columns of the inputs: their numbers, their part of the row space's basis and their bounds."""

    number: Tensor
    basis: Tensor  # [r, columns]
    low: Tensor
    high: Tensor


class _Adam:
    """Kingma and Ba 2015 by hand: torch's takes two seconds to import what it never uses here."""

    def __init__(self, rates: list[tuple[Tensor, float]]) -> None:
        self.state = [(unknown, rate, torch.zeros_like(unknown), torch.zeros_like(unknown)) for unknown, rate in rates]
        self.count = 0

    @torch.no_grad()
    def step(self, share: float) -> None:
        """One step at a ``share`` of each rate; gradients are used up."""
        self.count += 1
        for unknown, rate, mean, square in self.state:
            assert unknown.grad is not None
            mean.lerp_(unknown.grad, 1 - 0.9)
            square.lerp_(unknown.grad.square(), 1 - 0.99)
            size = (square / (1 - 0.99**self.count)).sqrt_().add_(1e-8)
            unknown.addcdiv_(mean, size, value=-rate * share / (1 - 0.9**self.count))
            unknown.grad = None


class _Descent:
    """The unknowns of all restarts and the optimiser that moves them."""

    def __init__(self, problem: Problem, starts: Tensor) -> None:
        self.problem = problem
        settings = problem.settings
        self.a = starts.clone().requires_grad_()
        pairs = [settings.sharpness[i % len(settings.sharpness)] for i in range(len(starts))]
        self.sharp = torch.tensor(pairs, dtype=starts.dtype, device=starts.device)[:, None, None, :]  # [R, 1, 1, 2]
        with torch.no_grad():
            z = problem.space.points(starts)
            out, hidden = problem.evaluate(z, self._sharpness(0.0))
            self.labels = (out[..., 0] > 0).long() if problem.classes == 1 else out.argmax(dim=-1)
            self.rivals = self._rival_start(out).requires_grad_() if problem.classes > 2 else None
            multipliers = self._first_multipliers(z, hidden)
        self.log_multipliers = multipliers.log().requires_grad_()
        scale = settings.spread / math.sqrt(problem.space.rank)
        rates = [(self.a, settings.learning_rate * scale), (self.log_multipliers, settings.learning_rate)]
        if self.rivals is not None:
            rates.append((self.rivals, settings.learning_rate))
        self.mean = self._mean_start()
        self.columns = self._columns()
        self.differences = self._differences()
        if self.mean is not None and self.mean.requires_grad:
            rates.append((self.mean, 0.1 * settings.learning_rate))
        self.optimiser = _Adam(rates)

    # -- starts -------------------------------------------------------------------------------------------------------

    def _rival_start(self, out: Tensor) -> Tensor:
        """Scores of the runner-up classes: how strongly each one is held off."""
        spread = out.std().clamp_min(1e-30)
        return (out / spread).detach().clone()

    def _mean_start(self) -> Tensor | None:
        prior = self.problem.prior
        if prior is None:
            return None
        if prior.mean is not None:
            return prior.mean.to(self.a)
        middle = (torch.as_tensor(prior.low) + torch.as_tensor(prior.high)).to(self.a) / 2
        x = self.problem.space.inputs(self.problem.space.origin)
        return (middle + torch.zeros(len(self.a), 1, x.shape[-1]).to(self.a)).requires_grad_()

    def _columns(self) -> list[_Columns]:
        """The input's columns in random parts, one of which each step looks at: the box is most of a step's work."""
        prior, space = self.problem.prior, self.problem.space
        if prior is None:
            return []
        basis = space.inputs(torch.eye(space.rank).to(space.V))  # [r, d]
        d = basis.shape[1]
        low, high = (torch.as_tensor(bound).to(basis).reshape(-1).expand(d) for bound in (prior.low, prior.high))
        order = torch.randperm(d, generator=torch.Generator().manual_seed(0)).to(basis.device)
        return [_Columns(part, basis[:, part], low[part], high[part]) for part in order.chunk(max(1, d // COLUMNS))]

    def _differences(self) -> list[Tensor]:
        """Parts of the row space's basis as differences between pixels, [r, N] each; none where there is no picture."""
        shape, space = self.problem.shape, self.problem.space
        if shape is None or not self.problem.settings.sparse:
            return []
        basis = differences(space.inputs(torch.eye(space.rank).to(space.V)), shape).flatten(1)
        order = torch.randperm(basis.shape[1], generator=torch.Generator().manual_seed(0)).to(basis.device)
        return [basis[:, part] for part in order.chunk(max(1, len(order) // DIFFERENCES))]

    def _first_multipliers(self, z: Tensor, hidden: list[Tensor]) -> Tensor:
        """Non-negative least squares for lambda at the start, by accelerated projected gradients."""
        D = self.problem.deltas(hidden, self._directions(), self._sharpness(0.0))
        gram = (D @ D.transpose(1, 2)) * (z @ z.transpose(1, 2))  # [R, m, m]
        link = ((D @ self.problem.space.coordinates) * z).sum(-1)  # [R, m]
        size = gram.diagonal(dim1=1, dim2=2).clamp_min(1e-30).sqrt()
        gram = gram / size[:, :, None] / size[:, None, :]
        link = link / size
        steepest = torch.linalg.matrix_norm(gram, ord=float("inf"))[:, None]
        x = y = torch.zeros_like(link)
        momentum = 1.0
        for _ in range(300):
            new = torch.relu(y - ((gram @ y[..., None])[..., 0] - link) / steepest)
            following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            y, x, momentum = new + (momentum - 1) / following * (new - x), new, following
        x = x / size
        return torch.maximum(x, 0.1 * x.mean(dim=1, keepdim=True)).clamp_min(1e-12)

    # -- the loss -----------------------------------------------------------------------------------------------------

    def _sharpness(self, done: float) -> Tensor:
        first, last = self.sharp[..., 0], self.sharp[..., 1]
        return first * (last / first) ** done

    def _directions(self) -> Tensor:
        """The output direction that each sample holds up, [R, m, k]: +-1, or its class against its rivals."""
        k = self.problem.classes
        if k == 1:
            return (2 * self.labels - 1).to(self.a)[..., None]
        own = torch.nn.functional.one_hot(self.labels, k).to(self.a)
        if self.rivals is None:  # two outputs: the other class is the only rival
            return 2 * own - 1
        others = torch.softmax(self.rivals.masked_fill(own > 0, -math.inf), dim=-1)
        return own - others

    def _loss(self, step: int, done: float) -> tuple[Tensor, Tensor]:
        problem, settings = self.problem, self.problem.settings
        z = problem.space.points(self.a)
        sharpness = self._sharpness(done)
        out, hidden = problem.evaluate(z, sharpness)
        multipliers = self.log_multipliers.exp()
        directions = self._directions()
        D = problem.deltas(hidden, multipliers[..., None] * directions, sharpness)
        missing = (problem.space.coordinates - D.transpose(1, 2) @ z) * problem.weights
        residual = missing.square().sum((1, 2)) / problem.size
        loss = residual + settings.box * self._outside(z, step)
        if self.differences:
            loss = loss + settings.sparse * self._crowded(z, step)
        if settings.margin and done > 0.2:
            loss = loss + settings.margin * self._unequal(out, directions, multipliers)
        return loss.sum(), residual.detach()

    def _outside(self, z: Tensor, step: int) -> Tensor | float:
        """Mean squared excess over the box, for each restart, on this step's share of the columns."""
        prior = self.problem.prior
        if prior is None or self.mean is None:
            return 0.0
        columns = self.columns[step % len(self.columns)]
        x = z @ columns.basis + self.mean[..., columns.number]
        width = (columns.high - columns.low).mean()
        return (torch.relu(x - columns.high) + torch.relu(columns.low - x)).square().mean((1, 2)) / width**2

    def _crowded(self, z: Tensor, step: int) -> Tensor:
        """How far differences between pixels are from sparse, for each restart: mean over root mean square."""
        D = z @ self.differences[step % len(self.differences)]
        power = D.square().mean(-1).clamp_min(1e-12)
        return ((D.square() + 1e-4 * power.detach()[..., None]).sqrt().mean(-1) / power.sqrt()).mean(1)

    def _unequal(self, out: Tensor, directions: Tensor, multipliers: Tensor) -> Tensor:
        """How far margins are from their common value, which the multipliers vote on."""
        margins = (out * directions).sum(-1)
        share = multipliers / multipliers.sum(1, keepdim=True)
        common = (share * margins.abs()).sum(1, keepdim=True).detach().clamp_min(1e-30)
        q = margins / common - 1
        huber = torch.where(q.abs() < 1, 0.5 * q.square(), q.abs() - 0.5)
        return (share * huber).sum(1)

    # -- the descent --------------------------------------------------------------------------------------------------

    def step(self, step: int, done: float) -> Tensor:
        """One step at a share ``done`` of the way; the squared residuals before it, [R]."""
        loss, residual = self._loss(step, done)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step(0.5 * (1 + math.cos(math.pi * done)))
        return residual

    def run(self, watch: Watch | None, end: float) -> Candidates:
        """All steps, or as many as there is time for: steps shrink to nothing either way."""
        steps, begun = self.problem.settings.steps, time.perf_counter()
        residual, taken = torch.ones(len(self.a)), 0
        for step in range(steps):
            done = max(step / steps, (time.perf_counter() - begun) / max(end - begun, 1e-9))
            if done >= 1:
                break
            residual, taken = self.step(step, done), step + 1
            if watch is not None:
                watch(step + 1, steps, residual)
        with torch.no_grad():
            inputs = self.problem.space.inputs(self.problem.space.points(self.a))
            fitted = self.mean.detach()[:, 0] if self.mean is not None and self.mean.requires_grad else None
            return Candidates(inputs, self.labels, self.log_multipliers.detach().exp(), residual.sqrt(),
                              torch.full((len(inputs),), taken), fitted)  # fmt: skip
