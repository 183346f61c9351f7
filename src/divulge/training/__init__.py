"""How a model is trained: recipes, training to a margin, and training with differential privacy.

Everything here is loaded on first use, because ``divulge bound`` needs the accounting but not torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from divulge.core.losses import Evaluation, Loss, evaluate, labels_of, loss_of, shaped
    from divulge.core.optim import Optimiser, Schedule
    from divulge.training.kkt_diagnosis import Diagnosis, diagnose
    from divulge.training.margin import Trained, to_margin
    from divulge.training.recipe import Activation, Precision, Privacy, Recipe, TrainingDiverged

_HOME = {
    **dict.fromkeys(("Evaluation", "Loss", "evaluate", "labels_of", "loss_of", "shaped"), "divulge.core.losses"),
    **dict.fromkeys(("Diagnosis", "diagnose"), "divulge.training.kkt_diagnosis"),
    **dict.fromkeys(("Trained", "to_margin"), "divulge.training.margin"),
    **dict.fromkeys(("Optimiser", "Schedule"), "divulge.core.optim"),
    **dict.fromkeys(("Activation", "Precision", "Privacy", "Recipe", "TrainingDiverged"), "divulge.training.recipe"),
}

__all__ = [
    "Activation", "Diagnosis", "Evaluation", "Loss", "Optimiser", "Precision", "Privacy", "Recipe", "Schedule",
    "Trained", "TrainingDiverged", "diagnose", "evaluate", "labels_of", "loss_of", "shaped", "to_margin",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'divulge.training' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
