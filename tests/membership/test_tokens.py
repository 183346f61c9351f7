"""Membership of texts: models that take the numbers of tokens, asked by values, by labels and through their weights."""

from __future__ import annotations

import pytest
import torch

import divulge
from divulge.core.errors import AccessDenied
from divulge.membership.label_only import _replaced


class Tokens(torch.nn.Module):
    """A small transformer that remembers the texts it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(300, 16)
        self.block = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.last = torch.nn.Linear(16, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(self.words(ids)).mean(dim=1))


@pytest.fixture(scope="module")
def texts():
    torch.manual_seed(0)
    X, y = torch.randint(300, (400, 10)), torch.randint(3, (400,))
    model = Tokens()
    descent = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(100):
        descent.zero_grad()
        torch.nn.functional.cross_entropy(model(X[:200]), y[:200]).backward()
        descent.step()
    return model.eval(), (X[:200].double(), y[:200].numpy()), (X[200:].double(), y[200:].numpy())


@pytest.mark.parametrize(("method", "access"), [("auto", None), ("label", "label"), ("gradient", "weights")])
def test_members_among_texts_are_found_by_values_labels_and_gradients_of_the_embedding(texts, method, access):
    risk = divulge.membership.attack(*texts, method=method, access=access)
    assert risk.success, risk.reason
    assert risk.auc_interval[0] > 0.7


def test_texts_are_moved_by_other_tokens_and_never_between_them(texts):
    model, members, _ = texts
    view = divulge.oracle(model, access="label", input_shape=(10,))
    generator = torch.Generator().manual_seed(0)
    moved = _replaced(members[0], 0.2, view.vocabulary, generator)
    assert view.vocabulary == 300
    assert torch.equal(moved, moved.round())
    assert float(moved.min()) >= 0
    assert float(moved.max()) < 300
    assert bool(((moved != members[0]).sum(dim=1) <= 2).all())


def test_weights_of_a_text_model_are_handed_out_and_gradients_of_its_inputs_are_not(texts):
    model, members, _ = texts
    view = divulge.oracle(model, access="weights", input_shape=(10,))
    assert len(list(view.weights().parameters())) == len(list(model.parameters()))
    with pytest.raises(AccessDenied, match="whole numbers"):
        view.gradient(members[0][:2])
