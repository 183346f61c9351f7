"""What the released model is compared with to find the unknown row's label and a row to start the search from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from divulge.core.errors import InvalidInput, WrongShape
from divulge.informed.inversion.doubled_rows import DoubledRows
from divulge.informed.inversion.similar_rows import SimilarRows
from divulge.informed.inversion.training_function import MlpTraining, TrainingFunction
from divulge.informed.released_view import ReleasedView
from divulge.training.batched.shared_setup import encode

_CLOSE = 0.7  # labels at least this much as similar as the best are tried
_UNSURE = 0.5  # difference of the scores of two labels below which both are tried, where the first layer has one unit
_CANDIDATES = 3  # labels tried, at most


@dataclass(frozen=True)
class LabelGuess:
    """The mean row and a known row of each label, with what they do to the model."""

    names: list[Any]
    """The labels, sorted."""
    means: Tensor
    """The mean known row of each label [labels, d]."""
    encoded: Tensor
    """The encoded target of each label [labels, k]."""
    theta: Tensor
    """What each mean row does to the view of the model [labels, F]."""
    examples: Tensor
    """One known row of each label [labels, d]."""
    similar: SimilarRows | DoubledRows | None
    """What the known rows would do, where that needs no training run or the first layer has one unit."""

    @classmethod
    def of(cls, training: TrainingFunction, view: ReleasedView, X: Tensor, y: Tensor, *, noisy: bool) -> LabelGuess:
        """From the known rows; ``noisy`` says that the released weights carry noise, which hides similar rows."""
        names = sorted(set(y.tolist()))
        flat = X.reshape(len(X), -1).to(training.dtype)
        means = torch.stack([flat[y == name].mean(dim=0) for name in names])
        encoded = encode(training.recipe, torch.tensor(names), training.outputs).T.to(training.dtype)
        theta = view.image(training.train(means, encoded))
        examples = torch.stack([flat[y == name][0] for name in names])
        similar: SimilarRows | DoubledRows | None = None
        if isinstance(training, MlpTraining) and view.probes is None and not noisy:
            owner = torch.tensor([names.index(label) for label in y.tolist()])
            if training.setup.widths[1] == 1:
                similar = DoubledRows.of(training, view, X, owner, encoded)
            else:
                similar = SimilarRows.of(training.setup, X, owner)
        return cls(names, means, encoded, theta, examples, similar)

    def candidates(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """The index of each target's most similar label [B], and which labels are worth a trial search [B, labels].

        Those are the labels nearly as similar as the best, and the one whose mean row has the most similar effect.
        """
        means, similarity = self._means(target), self.similarity(target)
        best = similarity.topk(min(_CANDIDATES, similarity.shape[1]), dim=1)
        if isinstance(self.similar, DoubledRows):
            two, close = best.indices[:, :2], best.values[:, :2] > best.values[:, :1] - _UNSURE
            return two[:, 0], torch.zeros_like(similarity, dtype=torch.bool).scatter(1, two, close)
        close = best.values >= best.values[:, :1] - (1 - _CLOSE) * best.values[:, :1].abs()
        tried = torch.zeros_like(similarity, dtype=torch.bool).scatter(1, best.indices, close)
        return best.indices[:, 0], tried.scatter(1, means.argmax(dim=1, keepdim=True), value=True)

    def similarity(self, target: Tensor) -> Tensor:
        """How similar each label's effect on the model is to the unknown row's [B, labels]."""
        return self._means(target) if self.similar is None else self.similar.similarity(target)

    def _means(self, target: Tensor) -> Tensor:
        """The cosine of each label's mean row's effect with the unknown row's [B, labels]."""
        return normalize(target, dim=1) @ normalize(self.theta, dim=1).T

    @property
    def runs(self) -> int:
        """Training runs that the comparison took, for all targets together."""
        return len(self.names) + (self.similar.runs if isinstance(self.similar, DoubledRows) else 0)

    def start(self, target: Tensor, places: Tensor) -> Tensor:
        """The row to start from under each label [B, d]."""
        return self.means[places] if self.similar is None else self.similar.start(target, places).to(self.means)

    def other_starts(self) -> list[Callable[[Tensor, Tensor], Tensor]]:
        """Where else a search may start, as functions of targets and the places of their labels."""
        starts: list[Callable[[Tensor, Tensor], Tensor]] = [lambda _, places: self.means[places]]
        if isinstance(self.similar, DoubledRows):
            starts.insert(0, self.similar.nearest)
        return starts

    def places_of(self, labels: Any, count: int) -> Tensor:
        """The indices of labels that the caller knows."""
        values = torch.as_tensor(labels).reshape(-1).tolist()
        if len(values) != count:
            raise WrongShape(f"There are {count} released models but {len(values)} labels.")
        missing = [value for value in values if value not in self.names]
        if missing:
            raise InvalidInput(f"No known row has the label {missing[0]!r}; labels are {self.names}.")
        return torch.tensor([self.names.index(value) for value in values])
