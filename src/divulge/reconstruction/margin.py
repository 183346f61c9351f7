"""Training to a KKT point of the margin problem, and how far a trained model is from one.

Gradient descent on the logistic loss ends in the direction of a KKT point (Haim et al. 2022, Theorem 3.1), but ever
more slowly: the gradient shrinks with the loss. We keep its direction and normalise its length: each sample pulls with
its share of the loss gradient, computed in the log domain so that nothing underflows, and the step is bounded by the
steepest sample. That is plain gradient flow with time stretched, so the limit is the same and the epochs are few.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from divulge.errors import AttackFailed, InvalidInput, NonFiniteInput, WrongShape
from divulge.models import MLP, Bias
from divulge.progress import report
from divulge.reconstruction.network import Network, read, step

MOST_ROWS = 2000
"""Training rows up to which a diagnosis takes seconds."""


@dataclass(frozen=True)
class Diagnosis:
    """How close a model is to a KKT point on its training set: the closer, the more of that set its weights tell."""

    margin: float
    """Smallest y Phi(x) over the training set (of the true class over the runner-up with several classes)."""
    loss: float
    accuracy: float
    residual: float
    """|theta - sum lambda y grad Phi| / |theta| for the best lambda >= 0, all layers together."""
    layers: tuple[float, ...]
    """The same for each layer by itself, with its own best lambda. The first layer is the one that tells inputs."""
    multipliers: Tensor
    """The lambda of the first layer, [n]."""
    on_margin: int
    """Samples with a multiplier above 1 % of the largest."""

    def sentence(self) -> str:
        """The diagnosis in words."""
        if self.accuracy < 1:
            return f"The model misreads {1 - self.accuracy:.1%} of the data, so no margin exists yet; little to find."
        level = "close to" if self.layers[0] < 0.25 else "on the way to" if self.layers[0] < 0.6 else "far from"
        return (
            f"The model is {level} a KKT point (first-layer residual {self.layers[0]:.2f}, loss {self.loss:.1e}); "
            f"{self.on_margin} of {len(self.multipliers)} samples hold its weights up and may be read from them."
        )

    def as_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return {
            "margin": self.margin, "loss": self.loss, "accuracy": self.accuracy, "residual": self.residual,
            "layers": list(self.layers), "on_margin": self.on_margin, "sentence": self.sentence(),
        }  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """A model trained towards a KKT point."""

    model: nn.Module
    loss: float
    margin: float
    """Smallest margin divided by |theta|^L, the quantity that training maximises."""
    epochs: int
    seconds: float
    history: list[tuple[int, float]] = field(default_factory=list, repr=False)
    """(epoch, log10 of the mean loss)."""


def network(
    widths: Sequence[int],
    *,
    first_scale: float = 1e-4,
    balanced: bool = False,
    bias: Bias = "first",
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> MLP:
    """An untrained MLP of Haim et al. 2022: a small Gaussian first layer, torch's own start above it.

    ``balanced`` (one hidden layer) gives each hidden unit an outgoing weight as large as its incoming ones, the
    invariant that gradient flow keeps and that an extracted copy is re-balanced to.
    """
    generator = torch.Generator().manual_seed(seed)
    model = MLP(widths, bias=bias).to(torch.float64)
    linears = [layer for layer in model if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for depth, layer in enumerate(linears):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator, dtype=torch.float64) * first_scale)
            if depth:  # as nn.Linear starts, and as the authors' code leaves it
                bound = 1 / math.sqrt(layer.in_features)
                layer.weight.uniform_(-bound, bound, generator=generator)
            if layer.bias is not None:
                size = first_scale if depth == 0 else 0.0
                layer.bias.copy_(size * torch.randn(layer.bias.shape, generator=generator, dtype=torch.float64))
        if balanced:
            if len(linears) != 2 or widths[-1] != 1:
                raise InvalidInput("A balanced start is for one hidden layer and one output.")
            norms = read(model).first().norm(dim=1)
            linears[1].weight.copy_(torch.where(linears[1].weight < 0, -norms, norms))
    return model.to(dtype)


def to_margin(
    model: nn.Module,
    X: Tensor,
    y: Tensor,
    *,
    loss: float = 1e-6,
    epochs: int = 100_000,
    extra_epochs: int = 0,
) -> Trained:
    """Train ``model`` on X [n, d] and labels y [n] by full-batch loss-normalised steps until the mean loss is below
    ``loss``, then for ``extra_epochs`` more. One output takes labels -1/1 or 0/1, several take 0 .. k-1."""
    start = time.perf_counter()
    net = read(model)
    dtype = next(model.parameters()).dtype
    X, y = check_data(net, X, y)
    began = net.weights[0]
    Q, R = torch.linalg.qr(X.T)  # training moves the first layer in the span of the inputs only: work in it
    X, net = R.T.to(dtype), Network((began @ Q, *net.weights[1:]), net.biases).to(dtype)
    log_target, usual = math.log(loss), math.inf  # usual: the log loss of late, smoothed
    rate, epoch, left = 1.0, 0, extra_epochs
    history: list[tuple[int, float]] = []
    while True:
        hidden, out = net.forward(X)
        log_loss, signal = _pull(out, y)
        if not math.isfinite(log_loss):
            raise AttackFailed("Training diverged to NaN; scale the inputs to about one.")
        if epoch % 50 == 0:
            history.append((epoch, log_loss / math.log(10)))
            report("training to the margin", epoch, None, loss=f"{math.exp(max(log_loss, -700)):.1e}")
        reached = log_loss < log_target
        if epoch >= epochs or (reached and left <= 0):
            break
        left -= reached
        usual = log_loss if math.isinf(usual) else usual
        rate = min(rate * 1.02, 8.0) if log_loss <= usual else max(rate * 0.6, 0.2)
        usual += 0.1 * (log_loss - usual)
        net = _advance(net, X, hidden, signal, y, rate)
        epoch += 1
    moved = (net.weights[0].double() - began @ Q) @ Q.T
    net = Network(((began + moved).to(dtype), *net.weights[1:]), net.biases)
    result = Trained(
        net.module(), math.exp(max(log_loss, -700)), _normalised_margin(net, out, y), epoch,
        time.perf_counter() - start, history,
    )  # fmt: skip
    if not reached:
        raise AttackFailed(
            f"The loss is {result.loss:.2g} after {epoch:,} epochs and {loss:.2g} was asked for; allow more epochs, "
            "a wider network, or check that no two equal inputs have different labels.",
            partial=result,
        )
    return result


def _pull(out: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """The log of the mean loss, and each sample's share of the loss gradient at the output, [n, k], summing to one."""
    if out.shape[1] == 1:
        wrong = nn.functional.logsigmoid(-y[:, None] * out)[:, 0]  # log(1 - probability of the label)
    else:
        wrong = torch.logsumexp(out.scatter(1, y[:, None], -math.inf), dim=1) - torch.logsumexp(out, dim=1)
    # -log(1 - e^w) is e^w for very negative w, where it would round to nothing
    log_losses = torch.where(wrong < -20, wrong, torch.log(-torch.log1p(-wrong.exp().clamp(max=1 - 1e-16))))
    share = torch.softmax(wrong, dim=0)
    return float(torch.logsumexp(log_losses, dim=0)) - math.log(len(y)), share[:, None] * _directions(out, y)


def _directions(out: Tensor, y: Tensor) -> Tensor:
    """Where each sample pulls the outputs, [n, k]: its sign, or its class up and the others down by their weight."""
    if out.shape[1] == 1:
        return y[:, None].to(out.dtype)
    others = torch.softmax(out.scatter(1, y[:, None], -math.inf), dim=1)
    return -others.scatter(1, y[:, None], -1.0)


def _advance(net: Network, X: Tensor, hidden: list[Tensor], signal: Tensor, y: Tensor, rate: float) -> Network:
    """One step of length rate / (largest squared gradient of a sample's margin)."""
    inputs = [X, *(torch.relu(Z) for Z in hidden)]
    deltas = net.backward(hidden, signal)
    share = signal.abs().sum(dim=1).clamp_min(1e-300) / (1 if signal.shape[1] == 1 else 2)  # [n], one per sample
    steepness = X.new_zeros(len(X))
    for H, D, bias in zip(inputs, deltas, net.biases, strict=True):
        steepness += (H.square().sum(1) + (bias is not None)) * (D / share[:, None]).square().sum(1)
    eta = rate / float(steepness[share > 1e-30].max().clamp_min(1e-30))
    weights = tuple(W + eta * D.T @ H for W, D, H in zip(net.weights, deltas, inputs, strict=True))
    biases = tuple(None if b is None else b + eta * D.sum(0) for b, D in zip(net.biases, deltas, strict=True))
    return Network(weights, biases)


def _margins(out: Tensor, y: Tensor) -> Tensor:
    if out.shape[1] == 1:
        return y * out[:, 0]
    true = out.gather(1, y[:, None])[:, 0]
    return true - out.scatter(1, y[:, None], -math.inf).amax(dim=1)


def _normalised_margin(net: Network, out: Tensor, y: Tensor) -> float:
    size = math.sqrt(sum(float(W.square().sum()) for W in net.weights) + sum(
        float(b.square().sum()) for b in net.biases if b is not None))  # fmt: skip
    return float(_margins(out, y).min()) / max(size, 1e-300) ** net.depth


def check_data(net: Network, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as float64 [n, d] and labels as the network takes them, or a sentence on what is wrong."""
    X = torch.as_tensor(X)
    y = torch.as_tensor(y)
    if len(X) == 0 or len(X) != len(y):
        raise WrongShape(f"There are {len(X)} inputs and {len(y)} labels; give one label for each of at least one.")
    X = X.detach().reshape(len(X), -1).to(torch.float64)
    if X.shape[1] != net.input_dim:
        raise WrongShape(f"The inputs have {X.shape[1]} columns, and this model takes {net.input_dim}.")
    if not bool(torch.isfinite(X).all()):
        raise NonFiniteInput("The inputs hold NaN or infinity; every entry must be finite.")
    if y.is_floating_point() and bool((y != y.round()).any()):
        raise InvalidInput("The labels are quantities; a margin is between classes.")
    y = y.reshape(-1).long()
    if net.output_dim > 1:
        if int(y.min()) < 0 or int(y.max()) >= net.output_dim:
            raise InvalidInput(f"A model with {net.output_dim} outputs takes labels 0 to {net.output_dim - 1}.")
        return X, y
    values = set(y.tolist())
    if values <= {0, 1}:
        return X, 2 * y - 1
    if values <= {-1, 1}:
        return X, y
    raise InvalidInput("A model with one output takes labels -1 and 1, or 0 and 1.")


# -- diagnosis --------------------------------------------------------------------------------------------------------


def diagnose(model: nn.Module, X: Tensor, y: Tensor) -> Diagnosis:
    """How close ``model`` is to a KKT point on (X, y): margin, loss, and the stationarity residual by NNLS."""
    net = read(model)
    X, y = check_data(net, X, y)
    if len(X) > MOST_ROWS:
        raise InvalidInput(f"A diagnosis solves for every row at once, {MOST_ROWS:,} at most; got {len(X):,}.")
    hidden, out = net.forward(X)
    log_loss, _ = _pull(out, y)
    inputs = [X, *(torch.relu(Z) for Z in hidden)]
    deltas = net.backward(hidden, _directions(out, y), step)
    grams, links, sizes = [], [], []
    for W, b, H, D in zip(net.weights, net.biases, inputs, deltas, strict=True):
        products = H @ H.T + (b is not None)
        grams.append(products * (D @ D.T))
        links.append(((D @ W) * H).sum(1) + (0 if b is None else D @ b))
        sizes.append(float(W.square().sum()) + (0.0 if b is None else float(b.square().sum())))
    layers = [solve_multipliers(g, c, s) for g, c, s in zip(grams, links, sizes, strict=True)]
    _, whole = solve_multipliers(sum(grams[1:], grams[0]), sum(links[1:], links[0]), sum(sizes))
    first = layers[0][0]
    margins = _margins(out, y)
    return Diagnosis(
        margin=float(margins.min()),
        loss=math.exp(max(log_loss, -700)),
        accuracy=float((margins > 0).double().mean()),
        residual=whole,
        layers=tuple(residual for _, residual in layers),
        multipliers=first,
        on_margin=int((first > 0.01 * first.max()).sum()) if bool(first.any()) else 0,
    )


def solve_multipliers(gram: Tensor, link: Tensor, size: float) -> tuple[Tensor, float]:
    """min over lambda >= 0 of |theta - sum lambda_i g_i|, from <g_i, g_j>, <theta, g_i> and |theta|^2; the relative
    residual with it."""
    values, vectors = torch.linalg.eigh(gram.double())
    keep = values > values.max().clamp_min(1e-300) * 1e-12
    root = (values[keep].sqrt()[:, None] * vectors[:, keep].T).numpy()
    right = ((vectors[:, keep].T @ link.double()) / values[keep].sqrt()).numpy()
    if root.size == 0:
        return torch.zeros(len(link), dtype=torch.float64), 1.0
    solution, short = nnls(root, right, maxiter=30 * len(link))
    squared = size - float(np.square(right).sum()) + float(short) ** 2
    return torch.from_numpy(solution), math.sqrt(max(squared, 0.0) / max(size, 1e-300))
