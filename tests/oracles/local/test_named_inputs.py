"""Token ids, several inputs and dictionaries: a row of numbers is rounded, and cut into parts by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import divulge
from divulge.core.errors import AccessDenied, InvalidInput, UnsupportedModel


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(self.words(ids).mean(dim=1))


class Two(nn.Module):
    """A recommender: an item's number and a user's features."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.items, self.users = nn.Embedding(20, 4), nn.Linear(3, 4)

    def score(self, user, item):
        return (self.users(user) * self.items(item.reshape(-1))).sum(dim=1, keepdim=True)


class ByName(Two):
    def forward(self, user, item):
        return self.score(user, item)


class ByDictionary(Two):
    def forward(self, batch):
        return self.score(batch["user"], batch["item"])


class InOrder(Two):
    def forward(self, first, second):
        return self.score(first, second)


IDS = torch.randint(0, 20, (150, 5), generator=torch.Generator().manual_seed(2))


def test_token_ids_are_the_nearest_whole_numbers_that_the_embedding_knows():
    model = Bag()
    oracle = divulge.oracle(model, input_shape=(5,))
    torch.testing.assert_close(oracle.value(IDS + 0.4), model(IDS).detach())
    torch.testing.assert_close(oracle.value([[-3.0, 25.0, 1, 1, 1]]), model(torch.tensor([[0, 19, 1, 1, 1]])).detach())
    with pytest.raises(AccessDenied, match="whole numbers"):
        divulge.oracle(model, input_shape=(5,), access="gradient")
    with pytest.raises(UnsupportedModel, match=r"input_shape=\(16,\)"):
        divulge.oracle(model)


@pytest.mark.slow
def test_an_audit_takes_the_length_from_the_data():
    model = Bag()
    y = model(IDS).argmax(dim=1)
    report = divulge.audit(model, (IDS[:75].numpy(), y[:75].numpy()), unseen=IDS[75:].numpy(), time=2)
    assert (report.target["inputs"], report.target["access_granted"]) == (5, "value")
    assert not [skip for skip in report.skipped if "fault of its own" in skip.reason]


@pytest.mark.parametrize("how", [ByName, ByDictionary, InOrder])
def test_several_inputs_lie_side_by_side_by_a_named_signature(how):
    model = how()
    user, item = torch.randn(6, 3), torch.arange(6)
    oracle = divulge.oracle(model, input_shape={"user": (3,), "item": ()} if False else {"user": (3,), "item": (1,)})
    assert oracle.input_dim == 4
    rows = torch.cat([user, item[:, None].float()], dim=1)
    expected = (model.users(user) * model.items(item)).sum(dim=1, keepdim=True)
    torch.testing.assert_close(oracle.value(rows), expected.detach())


def test_several_inputs_of_real_numbers_have_gradients():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 1), nn.Linear(3, 1)

        def forward(self, x, y):
            return self.a(x) + self.b(y)

    model = Sum()
    oracle = divulge.oracle(model, access="gradient", input_shape={"x": (2,), "y": (3,)})
    gradient = oracle.gradient(torch.randn(1, 5))[1]
    torch.testing.assert_close(gradient[0], torch.cat([model.a.weight, model.b.weight], dim=1).detach())


def test_inputs_that_do_not_fit_are_one_sentence():
    with pytest.raises(InvalidInput, match="does not take the inputs user"):
        divulge.oracle(ByName(), input_shape={"user": (7,), "item": (1,)})
