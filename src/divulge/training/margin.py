"""Training to a KKT point of the margin problem.

Gradient descent on the logistic loss converges in direction to a KKT point (Haim et al. 2022, Theorem 3.1). It slows
down as it does, because the gradient shrinks with the loss. We keep the direction of the gradient and normalise its
length: each sample has its share of the loss gradient, computed in the log domain against underflow, and the step is
bounded by the steepest sample. This is gradient flow with another time scale, so the limit is the same.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from divulge.core.errors import AttackFailed, InvalidInput, NonFiniteInput, WrongShape
from divulge.core.progress import report
from divulge.models import MLP, Bias
from divulge.models.weight_matrices import Network, read


@dataclass(frozen=True)
class Trained:
    """A model trained towards a KKT point. ``to_margin`` returns it."""

    model: nn.Module
    """The trained network, in evaluation mode."""
    loss: float
    """Mean loss on the training set."""
    margin: float
    """Smallest margin divided by |theta|^L for L layers, the quantity that training maximises."""
    epochs: int
    """Steps of full-batch descent."""
    seconds: float
    """How long training took."""
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
    """An untrained network as in Haim et al. 2022: a small Gaussian first layer, torch's initial weights above it.

    Parameters
    ----------
    widths : sequence of int
        Inputs, hidden units of each layer, outputs.
    first_scale : float, default 1e-4
        Standard deviation of the first layer.
    balanced : bool, default False
        Give each hidden unit an outgoing weight as large as the norm of its incoming ones. Gradient flow keeps this
        balance. For one hidden layer and one output only.
    bias : {"all", "first", "none"}, default "first"
        Which layers have a bias.
    seed : int, default 0
        Fixes the weights.
    dtype : torch.dtype, default torch.float64
        The number format of the weights.

    Returns
    -------
    MLP
        The untrained network.

    Raises
    ------
    InvalidInput
        ``balanced`` with more than one hidden layer or output.

    Examples
    --------
    >>> from divulge.training import margin
    >>> margin.network([4, 8, 1], seed=0)[0].weight.shape
    torch.Size([8, 4])
    """
    generator = torch.Generator().manual_seed(seed)
    model = MLP(widths, bias=bias).to(torch.float64)
    linears = [layer for layer in model if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for depth, layer in enumerate(linears):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator, dtype=torch.float64) * first_scale)
            if depth:  # the initial weights of nn.Linear, as in the authors' code
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
    """Train a network with full batches and loss-normalised steps to a very small loss.

    Parameters
    ----------
    model : nn.Module
        A ReLU network of linear layers. It is not changed.
    X : Tensor
        Training inputs [n, d].
    y : Tensor
        Labels [n]: -1 and 1 or 0 and 1 for one output, 0 to k - 1 for k outputs.
    loss : float, default 1e-6
        Train until the mean loss is below this.
    epochs : int, default 100_000
        The most epochs.
    extra_epochs : int, default 0
        Epochs after the loss is reached.

    Returns
    -------
    Trained
        The trained model, its loss and its margin.

    Raises
    ------
    AttackFailed
        The loss was not reached, or training diverged. ``partial`` holds what was trained.
    InvalidInput
        The inputs or labels do not fit the network.
    UnsupportedModel
        The model is not a plain ReLU network.

    Examples
    --------
    >>> import torch
    >>> from divulge.training import margin
    >>> X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> trained = margin.to_margin(margin.network([6, 20, 1]), X, torch.tensor([0, 1, 0, 1]), loss=1e-3)
    >>> trained.loss < 1e-3
    True
    """
    start = time.perf_counter()
    net = read(model)
    dtype = next(model.parameters()).dtype
    X, y = check_data(net, X, y)
    initial = net.weights[0]
    Q, R = torch.linalg.qr(X.T)  # training changes the first layer in the span of the inputs only, so work in it
    X, net = R.T.to(dtype), Network((initial @ Q, *net.weights[1:]), net.biases).to(dtype)
    log_target, usual = math.log(loss), math.inf  # usual: the recent log loss, smoothed
    rate, epoch, left = 1.0, 0, extra_epochs
    history: list[tuple[int, float]] = []
    while True:
        hidden, out = net.forward(X)
        log_loss, signal = loss_gradient(out, y)
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
    moved = (net.weights[0].double() - initial @ Q) @ Q.T
    net = Network(((initial + moved).to(dtype), *net.weights[1:]), net.biases)
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


def loss_gradient(out: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """The log of the mean loss, and each sample's share of the loss gradient at the output, [n, k]."""
    if out.shape[1] == 1:
        wrong = nn.functional.logsigmoid(-y[:, None] * out)[:, 0]  # log(1 - probability of the label)
    else:
        wrong = torch.logsumexp(out.scatter(1, y[:, None], -math.inf), dim=1) - torch.logsumexp(out, dim=1)
    # -log(1 - e^w) is e^w for very negative w, where it would round to zero
    log_losses = torch.where(wrong < -20, wrong, torch.log(-torch.log1p(-wrong.exp().clamp(max=1 - 1e-16))))
    share = torch.softmax(wrong, dim=0)
    return float(torch.logsumexp(log_losses, dim=0)) - math.log(len(y)), share[:, None] * margin_directions(out, y)


def margin_directions(out: Tensor, y: Tensor) -> Tensor:
    """The direction in output space of each sample's margin, [n, k]: its sign, or its class against the others."""
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


def margins(out: Tensor, y: Tensor) -> Tensor:
    """y times the output [n], or the lead of the true class over the next one."""
    if out.shape[1] == 1:
        return y * out[:, 0]
    true = out.gather(1, y[:, None])[:, 0]
    return true - out.scatter(1, y[:, None], -math.inf).amax(dim=1)


def _normalised_margin(net: Network, out: Tensor, y: Tensor) -> float:
    size = math.sqrt(sum(float(W.square().sum()) for W in net.weights) + sum(
        float(b.square().sum()) for b in net.biases if b is not None))  # fmt: skip
    return float(margins(out, y).min()) / max(size, 1e-300) ** net.depth


def check_data(net: Network, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Check training data for a network.

    Parameters
    ----------
    net : Network
        The network.
    X : Tensor
        Inputs [n, ...].
    y : Tensor
        Labels [n].

    Returns
    -------
    (Tensor, Tensor)
        Inputs as float64 [n, d], and labels as -1 and 1 for one output or 0 to k - 1 for k outputs.

    Raises
    ------
    InvalidInput
        The inputs or labels do not fit the network.

    Examples
    --------
    >>> import torch
    >>> from divulge.models.weight_matrices import read
    >>> from divulge.training import margin
    >>> margin.check_data(read(margin.network([2, 3, 1])), torch.zeros(2, 2), torch.tensor([0, 1]))[1]
    tensor([-1,  1])
    """
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
