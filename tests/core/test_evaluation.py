"""Balanced accuracy and AUC beside accuracy, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import nn

from divulge.training import evaluate


@pytest.mark.parametrize("outputs", [1, 4])
def test_they_are_scikit_learns(outputs: int) -> None:
    rng = np.random.default_rng(outputs)
    X = rng.integers(0, 4, (300, 3)).astype(np.float32)  # few values, so that scores are tied
    y = rng.choice(max(2, outputs), 300, p=[0.9, 0.1] if outputs == 1 else [0.7, 0.1, 0.1, 0.1])
    model = nn.Linear(3, outputs)
    found = evaluate(model, X, y)
    with torch.no_grad():
        scores = model(torch.from_numpy(X)).double()
    labels = (scores[:, 0] > 0).long() if outputs == 1 else scores.argmax(dim=1)
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(y, labels))
    shares = scores[:, 0] if outputs == 1 else scores.softmax(dim=1)
    assert found.auc == pytest.approx(roc_auc_score(y, shares, multi_class="ovr"), abs=1e-6)


def test_one_class_alone_has_no_auc_and_a_quantity_has_neither() -> None:
    X = torch.randn(10, 3)
    assert evaluate(nn.Linear(3, 1), X, torch.zeros(10, dtype=torch.long)).auc is None
    quantity = evaluate(nn.Linear(3, 1), X, torch.randn(10), loss="square")
    assert quantity.auc is None
    assert quantity.balanced_accuracy is None
