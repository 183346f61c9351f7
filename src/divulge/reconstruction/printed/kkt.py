"""Haim et al. 2022 as printed: equations 6 to 8, for any module whose only non-linearity is the ReLU.

The ReLU's derivative in the backward pass is sigmoid(alpha x) (appendix B.2). The optimiser is SGD with momentum 0.9.
Half of the samples have either label. The multipliers start uniform on [0, 1], and L_lambda penalises those below
lambda_min (printed with its arguments swapped: max(lambda_min - lambda, 0) is meant). Where the text and the authors'
code differ we follow the code: the multipliers have their own learning rate, the sum over samples is divided by m, and
penalties are squared. All layers are fitted.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from divulge.core.errors import AttackFailed, InvalidInput, UnsupportedModel
from divulge.core.images import picture_shape
from divulge.core.progress import report
from divulge.core.storage import digest, write_tensors
from divulge.oracles.local.torch_module import input_shape_of
from divulge.reconstruction.result import Reconstruction

UNEXPLAINED = 0.9
"""Random weights leave a residual above this too."""


@dataclass(frozen=True)
class PaperSettings:
    """The numbers of the printed method: appendix B.2 and equation 8 of Haim et al. 2022.

    The defaults are a good run of the authors' search on MNIST.

    Parameters
    ----------
    learning_rate : float, default 0.0305
        Step size of the samples.
    initial_scale : float, default 0.035
        Standard deviation of the random starts.
    alpha : float, default 150.0
        Slope of the smoothed ReLU derivative.
    lambda_min : float, default 0.447
        The value above which multipliers are held.
    lambda_rate : float, default 1e-4
        Step size of the multipliers.
    momentum : float, default 0.9
        Momentum of SGD.
    iterations : int, default 50_000
        Iterations of SGD.
    stationary, dual, prior : float, default 1.0, 5.0 and 1.0
        Weights of the three terms of equation 8.

    Examples
    --------
    >>> from divulge.reconstruction import PaperSettings
    >>> PaperSettings(iterations=100).momentum
    0.9
    """

    learning_rate: float = 0.0305
    initial_scale: float = 0.035
    alpha: float = 150.0
    lambda_min: float = 0.447
    lambda_rate: float = 1e-4
    momentum: float = 0.9
    iterations: int = 50_000
    stationary: float = 1.0
    dual: float = 5.0
    prior: float = 1.0


class _SmoothedBackward(torch.autograd.Function):
    """ReLU whose backward pass multiplies by sigmoid(alpha x) and can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.alpha = alpha
        return torch.relu(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(ctx.alpha * x), None


class _Smoothed(nn.Module):
    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _SmoothedBackward.apply(x, self.alpha)  # type: ignore[no-untyped-call]
        return out


def smoothed(model: nn.Module, alpha: float) -> nn.Module:
    """A copy of the module with the backward pass of every ReLU smoothed."""
    changed = copy.deepcopy(model).eval()
    for name, child in list(changed.named_modules()):
        if isinstance(child, nn.modules.batchnorm._NormBase):
            raise UnsupportedModel(
                f"{name} is batch normalisation, which is not homogeneous in its weights; fold it into the layer "
                "before it first."
            )
        if isinstance(child, nn.ReLU):
            parent = changed.get_submodule(name.rpartition(".")[0]) if "." in name else changed
            setattr(parent, name.rpartition(".")[2], _Smoothed(alpha))
    if not any(isinstance(child, _Smoothed) for child in changed.modules()):
        raise UnsupportedModel(
            "The printed method smooths nn.ReLU layers, and this model has none; use ReLU modules instead of functions."
        )
    return changed


def reconstruct(
    model: nn.Module,
    *,
    seed: int = 0,
    n: int | None = None,
    mean: Tensor | None = None,
    shape: tuple[int, ...] | None = None,
    samples: int | None = None,
    seconds: float | None = None,
    settings: PaperSettings | None = None,
    checkpoint: str | Path | None = None,
    device: str | torch.device = "cpu",
) -> Reconstruction:
    """Minimise equation 8 from one random start.

    ``samples`` is m, by default two for each of ``n`` training inputs. The run stops after ``settings.iterations`` or
    ``seconds``. ``checkpoint`` names a folder from which a stopped run continues. All samples are returned, because the
    paper does not rank them. The prior keeps x itself in [-1, 1], as the authors' code does with centred inputs.
    """
    started = time.perf_counter()
    settings = settings or PaperSettings()
    if n is None and samples is None:
        raise InvalidInput("The printed method does not know how many training inputs there are; give n or samples.")
    m = samples or 2 * int(n or 0)
    reference = next(model.parameters())
    if not all(bool(torch.isfinite(p).all()) for p in model.parameters()):
        raise UnsupportedModel("The model holds NaN or infinite weights; reconstruct from a sound checkpoint.")
    target = smoothed(model, settings.alpha).to(device)
    row = input_shape_of(model)
    generator = torch.Generator().manual_seed(seed)
    X = (settings.initial_scale * torch.randn(m, *row, generator=generator, dtype=torch.float64)).to(reference)
    multipliers = torch.rand(m, generator=generator, dtype=torch.float64).to(reference)
    X, multipliers = X.to(device).requires_grad_(), multipliers.to(device).requires_grad_()
    kept = None if checkpoint is None else _Checkpoint(Path(checkpoint), _fingerprint(target, settings, seed, m))
    residual, iterations = _descend(target, X, multipliers, settings, seconds, started, kept)
    if not bool(torch.isfinite(X).all()):
        raise AttackFailed("The printed method diverged; lower its learning rate.")
    d = X[0].numel()
    return Reconstruction(
        samples=X.detach().reshape(m, d).double().cpu(), labels=(_labels(X, target) > 0).long().cpu(),
        multipliers=multipliers.detach().double().cpu(), confidence=torch.zeros(m, dtype=torch.float64),
        residual=residual, rank=n or m // 2, method="paper", seed=seed, seconds=time.perf_counter() - started,
        restarts=1, mean=None if mean is None else mean.detach().double().reshape(-1), mean_known=mean is not None,
        value_range=(0.0, 1.0) if mean is not None else None,
        shape=picture_shape(d) if shape is None else shape,
        reason=_reason(residual),
        notes=(f"{iterations:,} iterations of the printed method; it does not rank its samples.",),
    )  # fmt: skip


def _reason(residual: float) -> str:
    if residual <= UNEXPLAINED:
        return ""
    return (
        f"The run leaves {residual:.0%} of the weights unexplained, as with weights that were never trained; its "
        "samples mean nothing. Take more iterations, or search for other settings."
    )


def _labels(X: Tensor, target: nn.Module) -> Tensor:
    """Half of the samples positive and half negative; with several outputs, all classes in turn."""
    with torch.no_grad():
        outputs = target(X[:1]).reshape(1, -1).shape[1]
    m = len(X)
    if outputs == 1:
        labels = torch.where(torch.arange(m, device=X.device) < (m + 1) // 2, 1.0, -1.0)
    else:
        labels = torch.arange(m, device=X.device) % outputs
    kept: Tensor = labels.to(X)
    return kept


class _Checkpoint:
    """The state of a run in a folder: unknowns, their momentum and the iteration."""

    def __init__(self, folder: Path, run: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"printed-{run}.safetensors"

    def read(self, optimiser: torch.optim.Optimizer) -> tuple[float, int]:
        """Restore the state, and return its residual and iteration; (1, 0) where there is none."""
        if not self.path.exists():
            return 1.0, 0
        with safe_open(self.path, framework="pt") as file:
            metadata = file.metadata()
            for number, unknown in enumerate(_unknowns(optimiser)):
                unknown.data.copy_(file.get_tensor(f"value-{number}"))
                optimiser.state[unknown]["momentum_buffer"] = file.get_tensor(f"momentum-{number}").to(unknown)
        return float(metadata["residual"]), int(metadata["iteration"])

    def write(self, optimiser: torch.optim.Optimizer, residual: float, iteration: int) -> None:
        tensors = {}
        for number, unknown in enumerate(_unknowns(optimiser)):
            tensors[f"value-{number}"] = unknown
            tensors[f"momentum-{number}"] = optimiser.state[unknown]["momentum_buffer"]
        write_tensors(self.path, tensors, {"residual": str(residual), "iteration": str(iteration)})


def _unknowns(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [unknown for group in optimiser.param_groups for unknown in group["params"]]


def _fingerprint(target: nn.Module, settings: PaperSettings, seed: int, m: int) -> str:
    """The identity of a run. Only the number of iterations may change when it continues."""
    weights = (parameter.double() for parameter in target.parameters())
    return digest(repr((replace(settings, iterations=0), seed, m)), *weights)[:16]


def _descend(
    target: nn.Module, X: Tensor, multipliers: Tensor, settings: PaperSettings, seconds: float | None, started: float,
    kept: _Checkpoint | None,
) -> tuple[float, int]:  # fmt: skip
    """Minimise equation 8 in place. Returns the relative stationarity residual and the iterations taken."""
    parameters = [p for p in target.parameters() if p.requires_grad]
    labels = _labels(X, target)
    optimiser = torch.optim.SGD(
        [{"params": [X], "lr": settings.learning_rate}, {"params": [multipliers], "lr": settings.lambda_rate}],
        momentum=settings.momentum, foreach=False,
    )  # fmt: skip
    size = float(sum(p.detach().square().sum() for p in parameters))
    residual, begun = (1.0, 0) if kept is None else kept.read(optimiser)
    iteration = begun
    for iteration in range(begun + 1, settings.iterations + 1):
        out = target(X).reshape(len(X), -1)
        if out.shape[1] == 1:
            signed = labels * out[:, 0]
        else:
            own = torch.nn.functional.one_hot(labels.long(), out.shape[1]).bool()
            signed = out[own] - out.masked_fill(own, -torch.inf).amax(dim=1)
        pulled = torch.autograd.grad((multipliers * signed).sum() / len(X), parameters, create_graph=True)
        gaps = [(p.detach() - g).square().sum() for p, g in zip(parameters, pulled, strict=True)]
        stationary = torch.stack(gaps).sum()
        dual = torch.relu(settings.lambda_min - multipliers).square().sum()
        prior = (torch.relu(X - 1).square() + torch.relu(-1 - X).square()).sum()
        loss = settings.stationary * stationary + settings.dual * dual + settings.prior * prior
        optimiser.zero_grad()
        loss.backward(inputs=[X, multipliers])  # type: ignore[no-untyped-call]
        optimiser.step()
        if iteration % 50 == 0 or iteration == 1:
            residual = (float(stationary.detach()) / size) ** 0.5
            report("the printed method", iteration, settings.iterations, residual=f"{residual:.3f}")
            if residual != residual or (seconds is not None and time.perf_counter() - started > seconds):
                break
            if kept is not None and iteration % 500 == 0:
                kept.write(optimiser, residual, iteration)
    if kept is not None and optimiser.state and residual == residual:
        kept.write(optimiser, residual, iteration)
    return residual, iteration
