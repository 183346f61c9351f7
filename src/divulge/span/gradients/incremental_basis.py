"""An orthonormal basis of the span of many rows, updated as rows arrive.

Rows come in blocks. Each block is projected onto the complement of the basis, and every residual above the tolerance
joins the basis (blocked Gram-Schmidt, orthogonalised twice). So the rank after every row is known. Only the coordinates
of the rows in the basis are stored. One small singular value decomposition of them orders the basis at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 32  # rows processed together; so small that most blocks either join completely or not at all
_PROBES = 8  # random combinations that represent a block in which nothing is new


class IncrementalBasis:
    """An orthonormal basis that grows with the rows added to it."""

    def __init__(self, dim: int, *, device: torch.device, generator: torch.Generator) -> None:
        self.dim = dim
        self.largest = 0.0  # norm of the longest row added
        self.leftover = 0.0  # largest residual that did not join
        self._generator = generator
        self._store = torch.empty(min(64, dim), dim, dtype=torch.float64, device=device)
        self._size = 0
        self._coordinates: list[Tensor] = []
        self.rows_seen = 0

    @property
    def basis(self) -> Tensor:
        return self._store[: self._size]

    @property
    def size(self) -> int:
        return self._size

    def add(self, rows: Tensor, tolerance: float) -> list[bool]:
        """Add rows [m, d] and return which of them joined: those whose residual is longer than ``tolerance``."""
        if len(rows) == 0:
            return []
        self.rows_seen += len(rows)
        self.largest = max(self.largest, float(rows.norm(dim=1).max()))
        if len(rows) > _PROBES and self._size and self._spans(rows, tolerance):
            return [False] * len(rows)
        joined: list[bool] = []
        for block in torch.split(rows, _BLOCK):
            joined += self._add_block(block, tolerance)
        return joined

    def _spans(self, rows: Tensor, tolerance: float) -> bool:
        """Whether random combinations of the rows lie in the span. If so, all rows do."""
        mixing = torch.randn(_PROBES, len(rows), generator=self._generator, dtype=torch.float64).to(rows.device)
        mixed = mixing @ rows
        coordinates, residual = self._project(mixed)
        norms = residual.norm(dim=1)
        if self._size < self.dim and bool((norms > tolerance).any()):
            return False
        self.leftover = max(self.leftover, float(norms.max()))
        self._coordinates.append(coordinates / _PROBES**0.5)
        return True

    def _project(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Coordinates in the basis, and the residual outside it (projected twice against rounding)."""
        basis = self.basis
        coordinates = rows @ basis.T
        residual = rows - coordinates @ basis
        correction = residual @ basis.T
        return coordinates + correction, residual - correction @ basis

    def _add_block(self, rows: Tensor, tolerance: float) -> list[bool]:
        before = self._size
        coordinates, residual = self._project(rows)
        joined = self._join_whole(residual, tolerance) or self._join_singly(residual, tolerance)
        fresh = self._store[before : self._size]
        self._coordinates.append(torch.cat([coordinates, residual @ fresh.T], dim=1))
        return joined

    def _join_whole(self, residual: Tensor, tolerance: float) -> list[bool] | None:
        """The common case, in one factorisation: every row adds a direction. None where that is not so."""
        if len(residual) > self.dim - self._size:
            return None
        q, r = torch.linalg.qr(residual.T)
        if bool((r.diagonal().abs() <= tolerance).any()):
            return None
        self._append(q.T)
        return [True] * len(residual)

    def _join_singly(self, residual: Tensor, tolerance: float) -> list[bool]:
        before, joined = self._size, []
        for row in residual:
            for _ in range(2):
                fresh = self._store[before : self._size]
                row = row - (fresh @ row) @ fresh
            norm = float(row.norm())
            new = norm > tolerance and self._size < self.dim
            if new:
                self._append((row / norm)[None])
            else:
                self.leftover = max(self.leftover, norm)
            joined.append(new)
        return joined

    def _append(self, directions: Tensor) -> None:
        basis = self.basis
        directions = directions - (directions @ basis.T) @ basis
        directions = directions / directions.norm(dim=1, keepdim=True)
        needed = self._size + len(directions)
        if needed > len(self._store):
            larger = self._store.new_empty(min(self.dim, max(needed, 2 * len(self._store))), self.dim)
            larger[: self._size] = basis
            self._store = larger
        self._store[self._size : needed] = directions
        self._size = needed

    def decompose(self) -> tuple[Tensor, Tensor]:
        """Singular values of the rows, largest first, and the right singular vectors [r, d] in that order."""
        if self._size == 0:
            return self._store.new_zeros(0), self._store.new_zeros(0, self.dim)
        matrix = torch.zeros(
            sum(map(len, self._coordinates)), self._size, dtype=torch.float64, device=self.basis.device
        )
        top = 0
        for block in self._coordinates:
            matrix[top : top + len(block), : block.shape[1]] = block
            top += len(block)
        if len(matrix) > 2 * self._size:
            matrix = torch.linalg.qr(matrix, mode="r").R
        _, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        vectors: Tensor = vh @ self.basis
        return s, vectors
