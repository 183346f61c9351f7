"""The last layer in an audit: found where there are many outputs, claimed nowhere else; and tokens without data."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import divulge
from divulge.auditing.opening import open_target
from divulge.auditing.options import AuditOptions
from divulge.auditing.probes import last_layer, learned_copy

TOKENS, LENGTH, WIDTH = 2000, 8, 24
[PROBE] = last_layer.PROBES


class SmallTransformer(nn.Module):
    """One layer of attention over token ids, and 2,000 logits for the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 4, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.last = nn.Linear(WIDTH, TOKENS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(self.embedding(ids))[:, -1])


@pytest.fixture(scope="module")
def transformer():
    torch.manual_seed(3)
    return SmallTransformer().eval()


def opened(model, **options):
    return open_target(model, None, AuditOptions(**options))


def test_a_transformer_with_2000_tokens_gives_its_last_layer_without_data(transformer, only_probes):
    only_probes("last-layer")
    report = divulge.audit(transformer, input_shape=(LENGTH,), time=60)
    [finding] = report.findings
    assert (finding.outcome, finding.severity) == ("partly", "medium")
    assert finding.measures["width_found"] == finding.measures["true_width"] == WIDTH
    assert finding.measures["missed"] < 1e-3
    assert finding.ledger.value <= 4 * 128
    assert "2,000 outputs are a linear function of 24 numbers" in finding.title
    assert report.verdict[0] == "Anyone who may ask for predictions can compute its last layer."


def test_a_network_on_data_whose_last_layer_is_narrow_gives_it(only_probes):
    only_probes("last-layer")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 100))
    rows = torch.randn(300, 10)
    found = {
        access: divulge.audit(net, None, unseen=rows, access=access, time=60).findings[0]
        for access in ("value", "gradient")
    }
    assert {finding.measures["width_found"] for finding in found.values()} == {12}
    behind = divulge.audit(net, None, unseen=rows, guard="top:5", time=60).findings[0]
    assert (behind.outcome, behind.severity) == ("failed", "none")


def test_no_claim_where_the_layer_is_as_wide_as_the_outputs(only_probes):
    only_probes("last-layer")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 40)).double()
    [finding] = divulge.audit(net, None, unseen=torch.randn(200, 20), time=60).findings
    assert (finding.outcome, finding.measures["width_found"]) == ("failed", 0)


def test_what_has_few_outputs_or_no_last_layer_is_not_asked():
    rows = torch.randn(2000, 4, dtype=torch.float64)
    labels = torch.arange(2000) % 40
    tree = DecisionTreeClassifier(max_depth=4).fit(rows, labels)
    logistic = LogisticRegression(max_iter=20).fit(rows, labels)
    assert "no last layer" in PROBE.obstacle(opened(tree, unseen=rows))
    assert "exact extraction does better" in PROBE.obstacle(opened(logistic, unseen=rows))
    assert "10 outputs" in PROBE.obstacle(opened(nn.Linear(4, 10)))
    assert "does not include values" in PROBE.obstacle(opened(nn.Linear(4, 50), access="label"))
    assert "too few" in PROBE.obstacle(opened(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 50)), budget=20))


def test_a_text_model_without_data_is_asked_random_tokens(only_probes, monkeypatch):
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.last = nn.Embedding(50, 8), nn.Linear(8, 3)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return 5 * self.last(self.words(ids).mean(dim=1))

    monkeypatch.setattr(learned_copy, "QUERIES", (100,))
    monkeypatch.setattr(learned_copy, "LONGER", 1e9)  # no further point at the end of the inputs
    only_probes("copy-by-learning", "copy-by-learning-from-labels")
    torch.manual_seed(0)
    report = divulge.audit(Words(), time=20)
    assert report.target["inputs"] == 16
    assert {finding.name for finding in report.findings} == {"copy-by-learning", "copy-by-learning-from-labels"}
    assert all("random tokens, which are no texts" in finding.certainty for finding in report.findings)
