"""The stationarity equation of Haim et al. 2022 (equation 2) solved inside the row space, for many restarts at once.

The unknowns are m inputs x_i = z_i V, their multipliers lambda_i and, with several classes, the weights of the rival
classes of each input. Only the first layer is fitted, because only it is a product of inputs. Departures from the
paper, each of which improved the results:

- The search has r dimensions instead of d.
- Labels are those of the model at the random start, instead of half and half.
- Multipliers start at a non-negative least-squares fit, instead of uniform.
- Weak singular directions have larger weights, sigma^(-1/4).
- Gradients are written out, so that one backward pass replaces a double one.
- Adam takes large steps that shrink to zero.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from divulge.core.optim import AnnealedAdam
from divulge.models.weight_matrices import Network
from divulge.reconstruction.ica import differences
from divulge.reconstruction.row_space import RowSpace
from divulge.reconstruction.value_bounds import ValueBounds

Watch = Callable[[int, int, Tensor], None]
COLUMNS = 192
"""Columns of the inputs whose range one step enforces."""
DIFFERENCES = 1500
"""Differences between pixels that one step uses."""


@dataclass(frozen=True)
class Settings:
    """The numbers of the row-space method.

    Parameters
    ----------
    steps : int, default 600
        Steps of Adam.
    learning_rate : float, default 0.2
        Its first step size, which a cosine schedule reduces to zero.
    sharpness : sequence of (float, float), default ((20.0, 60.0),)
        Slope of the smoothed ReLU derivative at the first and the last step. Restarts take the pairs in turn.
    spread : float, default 12.0
        Size of the random starts.
    box : float, default 10.0
        Weight of the value range.
    margin : float, default 0.03
        Weight of equal margins; 0 for models trained with weight decay or a square loss.
    whitening : float, default 0.125
        Exponent of the weights of singular directions: the squared singular value to minus this power.
    sparse : float, default 6.0
        Weight of sparse differences between neighbouring pixels, for images.

    Examples
    --------
    >>> from divulge.reconstruction import Settings
    >>> Settings(steps=100).learning_rate
    0.2
    """

    steps: int = 600
    learning_rate: float = 0.2
    sharpness: Sequence[tuple[float, float]] = ((20.0, 60.0),)
    spread: float = 12.0
    box: float = 10.0
    margin: float = 0.03
    whitening: float = 0.125
    sparse: float = 6.0


SEPARATED = Settings(steps=200, learning_rate=0.05)
"""For starts from separated images."""
FEW_SEPARATED = replace(SEPARATED, sparse=2.0)
"""For starts from few separated images."""
SEVERAL_CLASSES = Settings(sharpness=((5.0, 60.0),))
"""For random starts on a network of several outputs. Of 20 digits in ten classes 17.3 were found with it, and 15.3 with
a slope of 20 at the first step (three sets, 16 restarts)."""


@dataclass(frozen=True)
class Candidates:
    """The samples of R restarts, wrong ones included."""

    inputs: Tensor
    """[R, m, d]."""
    labels: Tensor
    """Classes, [R, m]."""
    multipliers: Tensor
    """[R, m]."""
    residual: Tensor
    """Relative residual of the stationarity equation, [R]."""
    steps: Tensor
    """Steps taken, [R]."""
    mean: Tensor | None = None
    """The fitted mean of each restart, [R, d]."""


class StationarityProblem:
    """The stationarity equation of one network in its row space."""

    def __init__(
        self, network: Network, space: RowSpace, bounds: ValueBounds | None, settings: Settings,
        shape: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        reference = network.weights[0]
        self.shape = shape
        self.space = space.to(reference.dtype, reference.device)
        self.upper = network.upper()
        self.bounds, self.settings = bounds, settings
        self.classes = network.output_dim
        self.weights = (self.space.singular.square() + space.noise_edge**2) ** -settings.whitening  # [r]
        self.size = (self.space.coordinates * self.weights).square().sum()

    def evaluate(self, z: Tensor, sharpness: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The model's outputs [R, m, k] at z [R, m, r], and the pre-activations of all hidden layers."""
        Z = z @ self.space.coordinates.T
        hidden, out = self.upper.forward(torch.relu(Z))
        return out, [Z, *hidden]

    def deltas(self, hidden: list[Tensor], signal: Tensor, sharpness: Tensor) -> Tensor:
        """The gradient of <signal, output> with respect to the first pre-activation, with smoothed ReLU derivatives."""

        def gate(Z: Tensor) -> Tensor:
            return torch.sigmoid(sharpness * Z / Z.detach().square().mean().sqrt().clamp_min(1e-30))

        first, *others = hidden
        D = self.upper.backward(others, signal, gate)[0] if others else signal
        return (D @ self.upper.weights[0]) * gate(first)

    def solve(self, starts: Tensor, watch: Watch | None = None, *, seconds: float = math.inf) -> Candidates:
        """Solve from coordinates ``starts`` [R, m, r - 1 (or r)], with fewer steps where ``seconds`` is short.

        The number of restarts is reduced so that each has time for a quarter of its steps.
        """
        begun = time.perf_counter()
        if math.isfinite(seconds):
            quarter = self.settings.steps / 4 * self.pace(starts[:1])
            starts = starts[: max(1, int(seconds / quarter))]
        return _Descent(self, starts).run(watch, begun + seconds)

    def pace(self, starts: Tensor) -> float:
        """Seconds of one step from ``starts``: the shortest of three after a first one."""
        trial, seconds = _Descent(self, starts), list[float]()
        for _ in range(4):
            begun = time.perf_counter()
            trial.step(0, 0.0)
            seconds.append(time.perf_counter() - begun)
        return min(seconds[1:])


@dataclass(frozen=True)
class _Columns:
    """Some columns of the inputs: their indices, their part of the row space's basis and their bounds."""

    number: Tensor
    basis: Tensor  # [r, columns]
    low: Tensor
    high: Tensor


class _Descent:
    """The unknowns of all restarts and their optimiser."""

    def __init__(self, problem: StationarityProblem, starts: Tensor) -> None:
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
        self.optimiser = AnnealedAdam(rates)

    # -- starts -------------------------------------------------------------------------------------------------------

    def _rival_start(self, out: Tensor) -> Tensor:
        """Scores of the rival classes, from which their weights follow by softmax."""
        spread = out.std().clamp_min(1e-30)
        return (out / spread).detach().clone()

    def _mean_start(self) -> Tensor | None:
        bounds = self.problem.bounds
        if bounds is None:
            return None
        if bounds.mean is not None:
            return bounds.mean.to(self.a)
        middle = (torch.as_tensor(bounds.low) + torch.as_tensor(bounds.high)).to(self.a) / 2
        x = self.problem.space.inputs(self.problem.space.origin)
        return (middle + torch.zeros(len(self.a), 1, x.shape[-1]).to(self.a)).requires_grad_()

    def _columns(self) -> list[_Columns]:
        """The inputs' columns in random parts. Each step uses one part, because the range is most of a step's work."""
        bounds, space = self.problem.bounds, self.problem.space
        if bounds is None:
            return []
        basis = space.inputs(torch.eye(space.rank).to(space.V))  # [r, d]
        d = basis.shape[1]
        low, high = (torch.as_tensor(bound).to(basis).reshape(-1).expand(d) for bound in (bounds.low, bounds.high))
        order = torch.randperm(d, generator=torch.Generator().manual_seed(0)).to(basis.device)
        return [_Columns(part, basis[:, part], low[part], high[part]) for part in order.chunk(max(1, d // COLUMNS))]

    def _differences(self) -> list[Tensor]:
        """Parts of the row space's basis as differences between pixels, [r, N] each; none without images."""
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
        """The output direction of each sample's margin, [R, m, k]: +-1, or its class against its rivals."""
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
            loss = loss + settings.sparse * self._density(z, step)
        if settings.margin and done > 0.2:
            loss = loss + settings.margin * self._unequal(out, directions, multipliers)
        return loss.sum(), residual.detach()

    def _outside(self, z: Tensor, step: int) -> Tensor | float:
        """Mean squared excess over the value range for each restart, in this step's part of the columns."""
        if self.problem.bounds is None or self.mean is None:
            return 0.0
        columns = self.columns[step % len(self.columns)]
        x = z @ columns.basis + self.mean[..., columns.number]
        width = (columns.high - columns.low).mean()
        return (torch.relu(x - columns.high) + torch.relu(columns.low - x)).square().mean((1, 2)) / width**2

    def _density(self, z: Tensor, step: int) -> Tensor:
        """Density of the differences between pixels for each restart: mean absolute value over root mean square."""
        D = z @ self.differences[step % len(self.differences)]
        power = D.square().mean(-1).clamp_min(1e-12)
        return ((D.square() + 1e-4 * power.detach()[..., None]).sqrt().mean(-1) / power.sqrt()).mean(1)

    def _unequal(self, out: Tensor, directions: Tensor, multipliers: Tensor) -> Tensor:
        """Deviation of the margins from their common value, an average weighted by the multipliers."""
        margins = (out * directions).sum(-1)
        share = multipliers / multipliers.sum(1, keepdim=True)
        common = (share * margins.abs()).sum(1, keepdim=True).detach().clamp_min(1e-30)
        q = margins / common - 1
        huber = torch.where(q.abs() < 1, 0.5 * q.square(), q.abs() - 0.5)
        return (share * huber).sum(1)

    # -- the descent --------------------------------------------------------------------------------------------------

    def step(self, step: int, done: float) -> Tensor:
        """One step at a share ``done`` of all steps. Returns the squared residuals before it, [R]."""
        loss, residual = self._loss(step, done)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step(0.5 * (1 + math.cos(math.pi * done)))
        return residual

    def run(self, watch: Watch | None, end: float) -> Candidates:
        """All steps, or as many as there is time for. The step size reaches zero in both cases."""
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
