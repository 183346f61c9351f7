"""Haim et al. 2022 as printed: equations 6 to 8, for any module whose only non-linearity is the ReLU.

The ReLU's derivative in the backward pass is sigmoid(alpha x) (appendix B.2), the optimiser SGD with momentum 0.9, the
labels half and half, lambda uniform on [0, 1] with L_lambda pushing it above lambda_min (printed with its arguments
swapped: max(lambda_min - lambda, 0) is meant). Where text and authors' code differ we follow the code: lambda has its
own rate, the sum over samples is divided by m, and penalties are squared. All layers are matched.
"""

from __future__ import annotations

import copy
import hashlib
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from divulge.errors import AttackFailed, InvalidInput, UnsupportedModel
from divulge.oracles.torch_model import input_shape_of
from divulge.progress import report
from divulge.reconstruction import matching
from divulge.reconstruction.result import Reconstruction


@dataclass(frozen=True)
class PaperSettings:
    """The four hyper-parameters of appendix B.2, the weights of equation 8 and the rest of the authors' run.

    The defaults are a good run of the authors' own search on MNIST.
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
    """relu forward; backward multiplies by sigmoid(alpha x), and can be differentiated again."""

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
    """A copy of the module with every ReLU's backward pass smoothed."""
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
    """Equation 8 minimised from one random start; ``samples`` is m, two for each of ``n`` training inputs by default.

    Stops after ``settings.iterations`` or ``seconds``; ``checkpoint`` names a folder from which a run that stopped or
    died goes on. All samples are returned: the paper has no way to tell which
    are real. The box prior is on x itself, as in the authors' code, whose inputs lie in [-1, 1] once centred.
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
    kept = None if checkpoint is None else _Kept(Path(checkpoint), _fingerprint(target, settings, seed, m))
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
        shape=matching.picture_shape(d) if shape is None else shape,
        notes=(f"{iterations:,} iterations of the printed method; it does not rank its samples.",),
    )  # fmt: skip


def _labels(X: Tensor, target: nn.Module) -> Tensor:
    """Half and half; with several outputs, all classes in turn."""
    with torch.no_grad():
        outputs = target(X[:1]).reshape(1, -1).shape[1]
    m = len(X)
    if outputs == 1:
        labels = torch.where(torch.arange(m, device=X.device) < (m + 1) // 2, 1.0, -1.0)
    else:
        labels = torch.arange(m, device=X.device) % outputs
    kept: Tensor = labels.to(X)
    return kept


class _Kept:
    """The state of a descent in a folder: unknowns, their momentum and the iteration, written whole or not at all."""

    def __init__(self, folder: Path, run: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"printed-{run}.safetensors"

    def read(self, optimiser: torch.optim.Optimizer) -> tuple[float, int]:
        """Put the state back; its residual, and how many iterations it has behind it."""
        if not self.path.exists():
            return 1.0, 0
        with safe_open(self.path, framework="pt") as file:
            told = file.metadata()
            for number, unknown in enumerate(_unknowns(optimiser)):
                unknown.data.copy_(file.get_tensor(f"value-{number}"))
                optimiser.state[unknown]["momentum_buffer"] = file.get_tensor(f"momentum-{number}").to(unknown)
        return float(told["residual"]), int(told["iteration"])

    def write(self, optimiser: torch.optim.Optimizer, residual: float, iteration: int) -> None:
        tensors = {}
        for number, unknown in enumerate(_unknowns(optimiser)):
            tensors[f"value-{number}"] = unknown.detach().cpu()
            tensors[f"momentum-{number}"] = optimiser.state[unknown]["momentum_buffer"].cpu()
        part = self.path.with_suffix(".part")
        save_file(tensors, part, metadata={"residual": str(residual), "iteration": str(iteration)})
        part.replace(self.path)


def _unknowns(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [unknown for group in optimiser.param_groups for unknown in group["params"]]


def _fingerprint(target: nn.Module, settings: PaperSettings, seed: int, m: int) -> str:
    """A run goes on under the same settings; only how long it goes on may change."""
    digest = hashlib.sha256(repr((replace(settings, iterations=0), seed, m)).encode())
    for parameter in target.parameters():
        digest.update(parameter.detach().double().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _descend(
    target: nn.Module, X: Tensor, multipliers: Tensor, settings: PaperSettings, seconds: float | None, started: float,
    kept: _Kept | None,
) -> tuple[float, int]:  # fmt: skip
    """Minimise equation 8 in place; the relative stationarity residual and the iterations taken."""
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
