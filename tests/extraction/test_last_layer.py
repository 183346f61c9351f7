"""The last layer from logits: the width and the space of its columns, and no claim where there is none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import divulge
from divulge.core.errors import AttackFailed, InvalidInput
from divulge.oracles.guards import guard

TOKENS, LENGTH, WIDTH = 2000, 8, 24


class SmallTransformer(nn.Module):
    """One layer of attention over token ids, and 2,000 logits for the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 4, 48, dropout=0.0, batch_first=True)
        self.last = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(self.embedding(ids.round().long().clamp(0, TOKENS - 1)))[:, -1])


@pytest.fixture(scope="module")
def transformer():
    torch.manual_seed(0)
    return SmallTransformer().eval()


@pytest.fixture(scope="module")
def prompts():
    return torch.randint(TOKENS, (160, LENGTH), generator=torch.Generator().manual_seed(1)).double()


def test_a_transformer_with_2000_tokens_gives_its_last_layer(transformer, prompts):
    def ask(ids):
        with torch.no_grad():
            return transformer(torch.as_tensor(ids))

    found = divulge.extraction.last_layer(divulge.oracle(ask, input_shape=(LENGTH,)), prompts)
    # the layer norm before the last layer takes one direction away: its outputs have mean zero
    assert found.width == WIDTH - 1
    inside = transformer.last.weight - transformer.last.weight.mean(dim=1, keepdim=True)
    assert found.distance(inside) < 1e-4
    assert found.queries == 160


def test_a_transformer_behind_top_k_with_a_logit_bias_gives_its_last_layer_too(transformer, prompts):
    def ask(ids):
        with torch.no_grad():
            return transformer(torch.as_tensor(ids))

    endpoint = guard("logit-bias:100")(divulge.oracle(ask, input_shape=(LENGTH,)))
    found = divulge.extraction.last_layer(endpoint, prompts[:72])
    assert found.success, found.reason
    assert found.width == WIDTH - 1
    weights = transformer.last.weight - transformer.last.weight.mean(dim=1, keepdim=True)
    assert found.distance(weights - weights.mean(dim=0, keepdim=True)) < 1e-4
    assert found.queries == 72 * 21  # 1,999 outputs, 99 at a time


def test_the_top_outputs_alone_show_no_last_layer(transformer, prompts):
    def ask(ids):
        with torch.no_grad():
            return transformer(torch.as_tensor(ids))

    assert not divulge.extraction.last_layer(
        guard("top:20")(divulge.oracle(ask, input_shape=(LENGTH,))), prompts
    ).success


def test_a_bias_that_is_too_small_is_said():
    net = nn.Linear(6, 30).double()
    nn.init.normal_(net.weight, std=200)
    with pytest.raises(AttackFailed, match="bias of 100"):
        divulge.extraction.last_layer(guard("logit-bias:4")(divulge.oracle(net)))


@pytest.mark.parametrize("output", ["logits", "probabilities"])
def test_networks_of_every_kind(output):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 30), nn.GELU(), nn.Linear(30, 7), nn.Tanh(), nn.Linear(7, 60)).double()
    found = divulge.extraction.last_layer(divulge.oracle(net, output=output))
    assert found.success, found.reason
    assert found.width == 7
    weights = net[-1].weight
    true = weights if output == "logits" else weights - weights.mean(dim=0, keepdim=True)
    assert found.distance(true) < 1e-6


def test_there_is_no_claim_where_the_layer_is_wide_or_not_linear():
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 20)).double()
    bent = nn.Sequential(nn.Linear(40, 6), nn.Tanh(), nn.Linear(6, 50), nn.Sigmoid()).double()
    for model in (wide, bent):
        found = divulge.extraction.last_layer(divulge.oracle(model))
        assert not found.success
        assert found.width == 0


def test_too_few_queries_are_said():
    net = nn.Sequential(nn.Linear(90, 80), nn.Tanh(), nn.Linear(80, 300)).double()
    found = divulge.extraction.last_layer(divulge.oracle(net), queries=60)
    assert "ask more" in found.reason
    with pytest.raises(InvalidInput, match="at least 3 outputs"):
        divulge.extraction.last_layer(divulge.oracle(nn.Linear(3, 2)))


def test_noise_hides_the_width_and_rounding_is_known():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 6), nn.Tanh(), nn.Linear(6, 40)).double()
    assert not divulge.extraction.last_layer(guard("noise:0.3", seed=0)(divulge.oracle(net))).success
    rounded = divulge.extraction.last_layer(guard("round:4")(divulge.oracle(net)))
    assert rounded.width in (0, 6)


def test_outputs_that_an_endpoint_hides_are_no_evidence():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 100)).double()
    assert divulge.extraction.last_layer(divulge.oracle(net)).width == 12
    behind = divulge.extraction.last_layer(guard("top:5")(divulge.oracle(net)))
    assert not behind.success
