"""Derivatives of a trained network's weights in one of its training rows, for a group of rows at once.

theta(z) is what training on D_- plus z leads to. Training is deterministic and differentiable. With every step's
activations kept, J = d theta / d z can be multiplied from either side by one sweep over the steps: forwards in time
for J dz, backwards for J^T r. Both need, at each step, the derivative of the step's gradient along a direction
(``_tangent``). It costs about as much as the step itself, because the large products are made in the coordinates of
``divulge.training.batched.model_group``. Plain and momentum descent, weight decay, full or mini-batches are covered.
For ReLU, theta(z) jumps wherever a row crosses a kink at some step; the sweeps give the average slope of those jumps
(``activation_derivatives``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from divulge.core.errors import UnsupportedModel
from divulge.core.progress import tick
from divulge.training.batched.model_group import ModelGroup
from divulge.training.batched.parameter_layout import flat, unflat
from divulge.training.batched.shared_setup import Batch, SharedSetup

Layers = list[tuple[Tensor, Tensor | None]]


@dataclass
class _Step:
    """The values of one training step that a sweep needs."""

    batch: Batch
    hidden: list[Tensor]
    prediction: Tensor
    layers: Layers
    own: Tensor
    """q before the step [B, h]."""
    first: Tensor | None
    """W1 before the step [B, h, d + 1], where the step holds the unknown row."""


@dataclass(frozen=True)
class Sample:
    """A sample of the known rows that estimates J.

    The known rows' response to a changed row is a sum over them. The sum is estimated by importance sampling: rows with
    larger deltas in the reference run are drawn more often and weighted down.
    """

    rows: Tensor
    """Indices of the sampled rows."""
    U: Tensor
    """Their coordinates [rows, r]."""
    targets: Tensor
    """Their encoded targets [k, rows]."""
    counts: Tensor
    """The weight of each sampled row, and 1 for the unknown row [rows + 1]."""

    @classmethod
    def of(cls, setup: SharedSetup, size: int) -> Sample:
        pull = torch.stack([delta.norm(dim=0) for delta in setup.deltas]).mean(dim=0).to(torch.float64)
        chance = 0.5 / setup.n + 0.5 * pull / pull.sum()
        chance = (size * chance).clamp(max=1.0)
        generator = torch.Generator().manual_seed(setup.recipe.seed)
        rows = torch.nonzero(torch.rand(setup.n, generator=generator, dtype=torch.float64) < chance)[:, 0]
        counts = torch.cat([1 / chance[rows], torch.ones(1, dtype=torch.float64)]).to(setup.dtype)
        return cls(rows, setup.U[rows], setup.targets[:, rows], counts)


class Run:
    """One training run for each row of ``Z``, kept for sweeps.

    ``theta`` is the difference to the reference run [B, P].
    """

    def __init__(self, setup: SharedSetup, Z: Tensor, targets: Tensor, sample: Sample | None = None) -> None:
        if setup.V is None:
            raise UnsupportedModel("Sweeps through training need plain or momentum descent, not Adam.")
        self.setup, self.sample = setup, sample
        self.group = ModelGroup(setup, Z, targets)
        self.steps: list[_Step] = []
        group = self.group
        for batch in setup.batches():
            tick()
            layers = [(W.clone(), None if b is None else b.clone()) for W, b in group.layers]
            first = group.first_layer() if batch.unknown else None
            own = group.parameters[1].clone()
            gradient, values = group.gradient(batch)
            hidden, prediction = [self._kept(part) for part in values.hidden], self._kept(values.prediction)
            self.steps.append(_Step(batch, hidden, prediction, layers, own, first))
            group.step(gradient, batch.size)
        self.theta = group.final()

    @property
    def share(self) -> float:
        """The cost of a product with J, in training runs."""
        return 1.0 if self.sample is None else len(self.sample.rows) / self.setup.n

    def _kept(self, rows: Tensor) -> Tensor:
        """The part of values over all rows of a step [..., rows] that the sweeps use."""
        return rows if self.sample is None else torch.cat([rows[..., self.sample.rows], rows[..., -1:]], dim=-1)

    def forward(self, dZ: Tensor) -> Tensor:
        """J dz for each row: [B, P]."""
        setup, group = self.setup, self.group
        assert setup.V is not None
        dz = torch.cat([dZ.to(setup.dtype), dZ.new_zeros(len(dZ), 1).to(setup.dtype)], dim=1)
        turned = dz @ setup.V
        overlap = (group.Z * dz).sum(dim=1, keepdim=True)
        state = [torch.zeros_like(part) for part in group.parameters]
        moments = [torch.zeros_like(part) for part in group.parameters]
        for step in self.steps:
            tick()
            Q, q = state[:2]
            shift = Q + q[:, :, None] * group.coordinates[:, None, :] + step.own[:, :, None] * turned[:, None, :]
            row = None
            if step.first is not None:
                row = _times(Q, group.coordinates) + q * group.size[:, None] + step.own * overlap
                row += _times(step.first, dz)
            change = self._tangent(step, shift, row, self._paired(state[2:]))
            self._descend(state, moments, [change.Q, change.q, *change.rest], step.batch.size)
        first = state[0] @ setup.V.T + state[1][:, :, None] * group.Z[:, None, :]
        first += group.parameters[1][:, :, None] * dz[:, None, :]
        return flat([first, *state[2:]], first_bias=setup.recipe.bias != "none")

    def backward(self, residual: Tensor) -> Tensor:
        """J^T r for each row: [B, d]."""
        setup, group, recipe = self.setup, self.group, self.setup.recipe
        assert setup.V is not None
        R, *rest = unflat(setup, residual.to(setup.dtype))
        RV, Rz = R @ setup.V, _times(R, group.Z)
        # adjoints of W1 are kept as alpha R + P V^T + p z^T
        alpha, alpha_v = 1.0, 0.0
        state = [torch.zeros_like(part) for part in group.parameters[:2]] + [part.clone() for part in rest]
        moments = [torch.zeros_like(part) for part in state]
        from_R, from_V = torch.zeros_like(group.parameters[1]), torch.zeros_like(group.coordinates)
        direct = torch.zeros_like(group.Z)
        rate, momentum, decay = float(recipe.learning_rate), float(recipe.momentum), float(recipe.weight_decay)
        for step in reversed(self.steps):
            tick()
            alpha_v -= rate * alpha
            for moment, part in zip(moments, state, strict=True):
                moment.sub_(part, alpha=rate)
            P, p = moments[:2]
            shift = P + alpha_v * RV + p[:, :, None] * group.coordinates[:, None, :]
            row = None
            if step.first is not None:
                row = alpha_v * Rz + _times(P, group.coordinates) + p * group.size[:, None]
            change = self._tangent(step, shift, row, self._paired(moments[2:]))
            share = 1 / step.batch.size
            if step.first is not None and change.delta is not None:
                from_R.add_(change.delta, alpha=alpha_v * share)
                from_V.add_((P.transpose(1, 2) @ change.delta[:, :, None])[:, :, 0], alpha=share)
                direct.add_((p * change.delta).sum(dim=1, keepdim=True) * group.Z, alpha=share)
                direct.add_((step.first.transpose(1, 2) @ change.q[:, :, None])[:, :, 0], alpha=share)
            for part, moved, moment in zip(state, [change.Q, change.q, *change.rest], moments, strict=True):
                part.add_(moved, alpha=share).add_(moment, alpha=decay)
                moment.mul_(momentum)
            alpha += decay * alpha_v
            alpha_v *= momentum
        direct += (R.transpose(1, 2) @ from_R[:, :, None])[:, :, 0] + from_V @ setup.V.T
        return direct[:, :-1]

    def replace(self, rows: Tensor, other: Run, chosen: Tensor) -> None:
        """Put the chosen runs of ``other`` into the given places of this group."""
        for mine, theirs in zip(self.steps, other.steps, strict=True):
            pairs = [(mine.prediction, theirs.prediction), (mine.own, theirs.own)]
            pairs += list(zip(mine.hidden, theirs.hidden, strict=True))
            if mine.first is not None and theirs.first is not None:
                pairs.append((mine.first, theirs.first))
            for (W, b), (V, c) in zip(mine.layers, theirs.layers, strict=True):
                pairs.append((W, V))
                if b is not None and c is not None:
                    pairs.append((b, c))
            for old, new in pairs:
                old[rows] = new[chosen]
        group, given = self.group, other.group
        for old, new in [
            (group.Z, given.Z), (group.coordinates, given.coordinates), (group.size, given.size),
            *zip(group.parameters, given.parameters, strict=True), (self.theta, other.theta),
        ]:  # fmt: skip
            old[rows] = new[chosen]

    def _paired(self, rest: list[Tensor]) -> Layers:
        parts = iter(rest)
        return [
            (next(parts), next(parts) if self.setup.biased(layer) else None)
            for layer in range(1, len(self.setup.widths) - 1)
        ]

    def _descend(self, state: list[Tensor], moments: list[Tensor], gradient: list[Tensor], size: int) -> None:
        recipe = self.setup.recipe
        for part, moment, change in zip(state, moments, gradient, strict=True):
            moment.mul_(float(recipe.momentum)).add_(change, alpha=1 / size)
            if recipe.weight_decay:
                moment.add_(part, alpha=float(recipe.weight_decay))
            part.sub_(moment, alpha=float(recipe.learning_rate))

    def _tangent(self, step: _Step, shift: Tensor, row: Tensor | None, moved: Layers) -> _GradientTangent:
        """The derivative of the step's gradient (a sum over its rows) along a direction.

        Layer one's pre-activations move by ``shift`` U^T on the known rows and by ``row`` on the unknown one. The
        later layers' weights move by ``moved``.
        """
        activation, setup = self.group.activation, self.setup
        U, known = setup.rows(step.batch) if self.sample is None else (self.sample.U, self.sample.targets)
        count, h, _ = shift.shape
        da = shift.new_empty(count, h, len(U) + step.batch.unknown)
        da[:, :, : len(U)] = (shift.reshape(-1, shift.shape[2]) @ U.T).view(count, h, len(U))
        if row is not None:
            da[:, :, -1] = row
        slopes = [activation.slope(value) for value in step.hidden]
        das, dhs = [da], []
        for (W, _), (dW, db), value, slope in zip(step.layers, moved, step.hidden, slopes, strict=True):
            dhs.append(slope * das[-1])
            onward = torch.baddbmm(dW @ value, W, dhs[-1])
            das.append(onward if db is None else onward.add_(db))
        delta = step.prediction - self.group.with_own_targets(known, step.batch)
        ddelta = _prediction_tangent(setup.recipe.loss, step.prediction, das[-1])
        if self.sample is not None:
            delta, ddelta = delta * self.sample.counts, ddelta * self.sample.counts
        rest: list[Tensor] = []
        for layer in reversed(range(len(step.layers))):
            (W, b), (dW, _) = step.layers[layer], moved[layer]
            value, slope = step.hidden[layer], slopes[layer]
            if b is not None:
                rest.append(ddelta.sum(dim=2, keepdim=True))
            rest.append(torch.baddbmm(ddelta @ value.transpose(1, 2), delta, dhs[layer].transpose(1, 2)))
            below = W.transpose(1, 2) @ delta
            ddelta = torch.baddbmm(dW.transpose(1, 2) @ delta, W.transpose(1, 2), ddelta).mul_(slope)
            ddelta.addcmul_(below * das[layer], activation.curvature(value, slope))
            delta = below.mul_(slope)
        known = ddelta[:, :, : len(U)].reshape(-1, len(U))
        own = ddelta[:, :, -1] if step.batch.unknown else ddelta.new_zeros(count, h)
        Q = (known @ U).view(count, h, -1)
        return _GradientTangent(Q, own.contiguous(), rest[::-1], delta[:, :, -1] if step.batch.unknown else None)


@dataclass
class _GradientTangent:
    """The derivative of a step's gradient in coordinates, and the unknown row's layer-one delta."""

    Q: Tensor
    q: Tensor
    rest: list[Tensor]
    delta: Tensor | None


def _prediction_tangent(loss: str, prediction: Tensor, da: Tensor) -> Tensor:
    if loss == "cross-entropy":
        moved = prediction * da
        return moved - prediction * moved.sum(dim=1, keepdim=True)
    return prediction * (1 - prediction) * da if loss == "logistic" else da


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    """[B, m, k] times [B, k] is [B, m]."""
    return (matrices @ vectors[:, :, None])[:, :, 0]
