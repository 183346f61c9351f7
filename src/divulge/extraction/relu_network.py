"""The network as far as an attack knows it: f(x) = W relu(A x + b) + P x + q, in float64.

Every exact attack works on a ``NetworkEstimate``: it adds the neurons that it finds, merges those on one hyperplane and
refits what is imprecise. ``model()`` gives the ``divulge.models.ReluNetwork`` that a result hands out.

The affine part P x + q holds what kinks cannot tell. A neuron's sign is free, because relu(z) = relu(-z) + z, and the
difference goes into the affine part (Milli 2019 recovers the signs separately, in Algorithm 1b).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from divulge.models import ReluNetwork

Array = NDArray[Any]
SAME_HYPERPLANE = 1 - 1e-6
"""Hyperplanes whose cosine is larger than this are those of one neuron, found twice."""
FITTED_EQUATIONS = 1500
"""Most equations that ``with_fitted_offsets`` solves."""


@dataclass(frozen=True)
class NetworkEstimate:
    """W relu(A x + b) + P x + q with rows of A of unit length; a frozen value, every method returns a new one."""

    A: Tensor  # [h, d]
    b: Tensor  # [h]
    W: Tensor  # [k, h]
    P: Tensor  # [k, d]
    q: Tensor  # [k]
    offset_error: Tensor  # [h] how far each b may be off, times the length of the neuron's column of W

    # -- construction -------------------------------------------------------------------------------------------------

    @staticmethod
    def of(A: Any, b: Any, W: Any, P: Any, q: Any, offset_error: Any = None) -> NetworkEstimate:
        """An estimate from tensors or arrays; without ``offset_error`` the offsets count as known."""
        b = _tensor(b)
        error = torch.zeros_like(b) if offset_error is None else _tensor(offset_error)
        return NetworkEstimate(_tensor(A), b, _tensor(W), _tensor(P), _tensor(q), error)

    @staticmethod
    def zero(inputs: int, outputs: int) -> NetworkEstimate:
        """The zero function, without neurons."""
        return NetworkEstimate.affine(np.zeros((outputs, inputs)), np.zeros(outputs))

    @staticmethod
    def affine(P: Any, q: Any) -> NetworkEstimate:
        """P x + q, without neurons."""
        P, q = _tensor(P), _tensor(q)
        outputs, inputs = P.shape
        none = P.new_zeros(0)
        return NetworkEstimate(none.reshape(0, inputs), none, none.reshape(outputs, 0), P, q, none)

    @staticmethod
    def affine_at(point: Any, gradient: Any, value: Any) -> NetworkEstimate:
        """The affine function with this gradient [k, d] and value [k] at a point."""
        return NetworkEstimate.affine(gradient, value - gradient @ point)

    # -- the function -------------------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        return len(self.b)

    @property
    def inputs(self) -> int:
        return self.P.shape[1]

    @property
    def outputs(self) -> int:
        return len(self.q)

    @property
    def strength(self) -> Tensor:
        """Length of each neuron's column of W [h]: how much it changes the slope."""
        length: Tensor = self.W.norm(dim=0)
        return length

    def arrays(self) -> tuple[Array, Array, Array, Array, Array]:
        """A, b, W, P and q as numpy arrays that share the memory."""
        return self.A.numpy(), self.b.numpy(), self.W.numpy(), self.P.numpy(), self.q.numpy()

    def __call__(self, rows: Array) -> Array:
        """Outputs [n, k] at the rows of a numpy array."""
        return np.asarray(self.value(torch.from_numpy(np.ascontiguousarray(rows))).numpy())

    def preactivation(self, X: Tensor) -> Tensor:
        """Signed distance of each row to each hyperplane [n, h]."""
        return X @ self.A.T + self.b

    def value(self, X: Tensor) -> Tensor:
        """Outputs [n, k]."""
        return torch.relu(self.preactivation(X)) @ self.W.T + X @ self.P.T + self.q

    def value_and_gradient(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [n, k] and gradients [n, k, d]."""
        before = self.preactivation(X)
        active = (before > 0).to(X.dtype)
        gradients = [(active * row) @ self.A + slope for row, slope in zip(self.W, self.P, strict=True)]
        value = (active * before) @ self.W.T + X @ self.P.T + self.q
        return value, torch.stack(gradients, dim=1)

    # -- neurons ------------------------------------------------------------------------------------------------------

    def keep(self, which: Tensor) -> NetworkEstimate:
        """The affine part and the chosen neurons."""
        return replace(
            self, A=self.A[which], b=self.b[which], W=self.W[:, which], offset_error=self.offset_error[which]
        )

    def with_neurons(self, *others: NetworkEstimate) -> NetworkEstimate:
        """The neurons of the others added; their affine parts are ignored."""
        every = (self, *others)
        return replace(
            self,
            A=torch.cat([one.A for one in every]),
            b=torch.cat([one.b for one in every]),
            W=torch.cat([one.W for one in every], dim=1),
            offset_error=torch.cat([one.offset_error for one in every]),
        )

    def distinct(self, closeness: float) -> NetworkEstimate:
        """One neuron of each hyperplane, the most precise; hyperplanes nearer than ``closeness`` count as one."""
        if not self.width:
            return self
        leader, _ = _leaders(self, closeness, torch.ones_like(self.b))
        return self.keep(leader == torch.arange(len(leader)))

    def plus(self, other: NetworkEstimate, tolerance: float) -> NetworkEstimate:
        """The sum of two functions: neurons on one hyperplane are merged, and those that cancel are dropped."""
        return replace(self, P=self.P + other.P, q=self.q + other.q).with_neurons(other).merged(tolerance)

    def merged(self, tolerance: float) -> NetworkEstimate:
        """The same function with one neuron for each hyperplane, and none of weight zero.

        Two neurons share a hyperplane if exchanging them changes the affine map by no more than ``tolerance``.
        """
        if not self.width:
            return self
        leader, sign = _leaders(self, tolerance, self.strength)
        W = torch.zeros_like(self.W).index_add_(1, leader, self.W)
        turned = sign < 0  # relu(-z) = relu(z) - z
        P = self.P - self.W[:, turned] @ self.A[leader[turned]]
        q = self.q - self.W[:, turned] @ self.b[leader[turned]]
        return replace(self, W=W, P=P, q=q).keep(W.norm(dim=0) > tolerance)

    def without(self, index: int) -> NetworkEstimate:
        """One neuron fewer; half of its affine function stays, which is its mean over both sides."""
        return self._without(torch.arange(self.width) == index)

    def without_faint(self, least: float) -> NetworkEstimate:
        """Without neurons that change no output by more than ``least`` at inputs N(0, I), as rounding makes them."""
        return self._without(self.strength * (self.inputs**0.5 + self.b.abs()) < least)

    def _without(self, gone: Tensor) -> NetworkEstimate:
        half = 0.5 * self.W[:, gone]
        return replace(self, P=self.P + half @ self.A[gone], q=self.q + half @ self.b[gone]).keep(~gone)

    def _plane_cosines(self) -> Tensor:
        """Cosines [h, h] between hyperplanes; those with themselves are zero."""
        planes = torch.cat([self.A, self.b[:, None]], dim=1)
        planes = planes / planes.norm(dim=1, keepdim=True)
        cosines: Tensor = (planes @ planes.T).fill_diagonal_(0.0)
        return cosines

    def has_duplicates(self) -> bool:
        """Whether two neurons lie on all but the same hyperplane."""
        return self.width > 1 and float(self._plane_cosines().abs().max()) > SAME_HYPERPLANE

    def closest_merged(self) -> NetworkEstimate:
        """The two neurons whose hyperplanes differ least become one, on the hyperplane of the stronger."""
        if self.width < 2:
            return self
        cosine = self._plane_cosines()
        i, j = divmod(int(cosine.abs().argmax()), self.width)
        kept, gone = (i, j) if self.strength[i] >= self.strength[j] else (j, i)
        W, P, q = self.W.clone(), self.P, self.q
        W[:, kept] += W[:, gone]
        if float(cosine[i, j]) < 0:  # relu(-z) = relu(z) - z
            P = P + torch.outer(self.W[:, gone], self.A[gone])
            q = q + self.W[:, gone] * self.b[gone]
        return replace(self, W=W, P=P, q=q).keep(torch.arange(self.width) != gone)

    # -- fits ---------------------------------------------------------------------------------------------------------

    def anchored(self, point: Array, gradient: Array, value: Array) -> NetworkEstimate:
        """The same neurons with the affine part that gives this gradient [k, d] and value [k] at ``point`` [d]."""
        x = torch.from_numpy(point)[None]
        P = self.P + torch.from_numpy(gradient) - self.value_and_gradient(x)[1][0]
        moved = replace(self, P=P)
        return replace(moved, q=moved.q + torch.from_numpy(value) - moved.value(x)[0])

    def with_fitted_offsets(self, X: Tensor, truth: Tensor, noise: float) -> NetworkEstimate:
        """Offsets and constants moved, each within its error, to meet the truth [n, k] at the rows of ``X``.

        That is linear least squares with a Gaussian prior, solved in the space of the rows, which are few.
        """
        found, outputs = self, self.outputs
        rows = max(1, FITTED_EQUATIONS // outputs)
        X, truth = X[:rows], truth[:rows]
        prior = torch.cat([self.offset_error, self.offset_error.sum() + 1e3 * noise + torch.zeros(outputs)])
        tiny = torch.finfo(torch.float64).tiny
        length = self.strength.clamp_min(tiny)
        unit = self.W / length
        constant = torch.eye(outputs, dtype=X.dtype).expand(len(X), -1, -1)
        for _ in range(2):
            active = (found.preactivation(X) > 0).to(X)
            design = torch.cat([torch.einsum("nh,kh->nkh", active, unit), constant], dim=2) * prior
            design = design.flatten(0, 1)  # [n k, h + k]
            off = (truth - found.value(X)).flatten()
            if not bool(off.any()):
                break
            system = design @ design.T
            system.diagonal().add_(noise**2)
            change = prior * (design.T @ torch.linalg.solve(system, off))
            found = replace(found, b=found.b + change[: self.width] / length, q=found.q + change[self.width :])
        return found

    # -- changes of coordinates ---------------------------------------------------------------------------------------

    def from_subspace(self, basis: Array) -> NetworkEstimate:
        """The estimate as a function of full inputs, if it is one of their coordinates in ``basis`` [k, d]."""
        rows = torch.from_numpy(np.ascontiguousarray(basis))
        return replace(self, A=self.A @ rows, P=self.P @ rows)

    def model(self) -> ReluNetwork:
        return ReluNetwork(self.A, self.b, self.W, self.P, self.q).eval()


def neurons_from_jumps(
    gradient: Tensor, constant: Tensor, along: Tensor, smallest: float, offset_error: Tensor
) -> NetworkEstimate:
    """Neurons from the jumps of the affine map across kinks on one line, with a zero affine part.

    ``gradient`` [h, k, d] and ``constant`` [h, k] are each a weight times (normal, offset), a matrix of rank one. Jumps
    of at most ``smallest`` give no neuron. The line runs along ``along`` [d]; each neuron is turned so that it switches
    on in that direction, which makes the affine map at the line's left end the affine part of the whole.
    """
    outputs, inputs = gradient.shape[1:]
    if outputs == 1:
        direction = gradient.new_ones(len(gradient), 1)
    else:
        direction = torch.linalg.eigh(gradient @ gradient.transpose(1, 2)).eigenvectors[:, :, -1]  # [h, k]
    normal = torch.einsum("hk,hkd->hd", direction, gradient)
    offset = (direction * constant).sum(dim=1)
    size = normal.norm(dim=1)
    real = size > smallest
    normal, offset, size, direction = normal[real], offset[real], size[real], direction[real]
    sign = torch.where(normal @ along >= 0, 1.0, -1.0).to(size)
    scale = sign / size
    W = (direction * (size * sign)[:, None]).T
    zero = NetworkEstimate.zero(inputs, outputs)
    return replace(zero, A=normal * scale[:, None], b=offset * scale, W=W, offset_error=offset_error[real])


def neuron_between(near: Array, far: Array, point: Array, direction: Array) -> NetworkEstimate:
    """The neuron that turns gradient ``near`` [k, d] into ``far``, off on the near side of its hyperplane.

    ``direction`` crosses the hyperplane at ``point``.
    """
    jump = far - near
    if len(jump) == 1:
        a = jump[0] / max(float(np.linalg.norm(jump)), np.finfo(float).tiny)
    else:
        a = np.linalg.svd(jump, full_matrices=False)[2][0]
    if a @ direction < 0:
        a = -a
    affine = np.zeros_like(jump)
    return NetworkEstimate.of(a[None], np.array([-float(a @ point)]), (jump @ a)[:, None], affine, affine[:, 0])


def _leaders(network: NetworkEstimate, tolerance: float, size: Tensor) -> tuple[Tensor, Tensor]:
    """For each neuron the most precise one on its hyperplane, and whether the two face the same way (1) or not (-1).

    Neurons are sorted along a random direction, in which those of one hyperplane are neighbours. Distances between
    hyperplanes count times ``size`` [h].
    """
    rows = torch.cat([network.A, network.b[:, None]], dim=1)
    key = rows @ torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(0), dtype=rows.dtype)
    facing = torch.where(key >= 0, 1.0, -1.0).to(rows)
    order = (key * facing).argsort()
    sorted_rows = (rows * facing[:, None])[order]
    apart = sorted_rows.diff(dim=0).norm(dim=1) * torch.minimum(size[order][1:], size[order][:-1])
    group = torch.cat([torch.zeros(1, dtype=torch.long), (apart > tolerance).long().cumsum(0)])
    best = torch.full((int(group[-1]) + 1,), torch.inf, dtype=rows.dtype).scatter_reduce(
        0, group, network.offset_error[order], "amin"
    )
    chosen = torch.empty(len(best), dtype=torch.long)
    certain = network.offset_error[order] == best[group]
    chosen[group[certain]] = order[certain]
    leader = torch.empty_like(order)
    leader[order] = chosen[group]
    return leader, facing * facing[leader]


def _tensor(part: Any) -> Tensor:
    if isinstance(part, Tensor):
        return part.to(torch.float64)
    return torch.from_numpy(np.array(part, dtype=np.float64))
