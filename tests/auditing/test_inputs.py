"""What people have goes in: pictures as flat rows, votes without scores, tokens, and several inputs."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_iris
from sklearn.ensemble import VotingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import divulge
from divulge.auditing.opening import open_target
from divulge.auditing.options import AuditOptions
from divulge.auditing.probes import exact_copy, label_copy, span
from divulge.auditing.probes.probe import Probe
from divulge.auditing.schedule import run_all
from divulge.auditing.sentences.copies import TOKENS
from divulge.auditing.students import learned, plan_for
from divulge.core.hints import for_command_line
from divulge.datasets.provenance import data_of_model
from divulge.errors import InvalidInput


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.last = nn.Conv2d(1, 2, 3, stride=3), nn.Linear(2 * 81, 3)

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.silu(self.convolution(X)).flatten(1))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return 5 * self.last(self.words(ids).mean(dim=1))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(3, 2)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.a(left) + self.b(right)


@pytest.fixture
def words():
    torch.manual_seed(0)
    ids = torch.randint(50, (1500, 6), generator=torch.Generator().manual_seed(1))
    return open_target(Words(), None, AuditOptions(unseen=ids))


@pytest.mark.parametrize("shape", [(784,), (1, 28, 28)])
def test_pictures_come_as_pictures_or_as_flat_rows(shape):
    target = open_target(Convolutional(), None, AuditOptions(unseen=torch.rand(70, *shape)))
    assert target.input_shape == target.shape == (1, 28, 28)
    assert plan_for(target, target.unseen, "value").kind == "convolutions"


def test_a_vote_without_scores_is_audited_by_its_labels():
    X = np.random.default_rng(0).standard_normal((80, 3))
    vote = VotingClassifier([("a", LogisticRegression()), ("b", DecisionTreeClassifier(max_depth=2))])
    target = open_target(vote.fit(X, X[:, 0] > 0), (X, (X[:, 0] > 0).astype(int)), AuditOptions())
    assert (target.access, target.answers) == ("label", "labels")


@pytest.mark.parametrize("where", ["training data", "unseen rows"])
def test_the_data_says_what_a_function_takes(where):
    rows = np.random.default_rng(0).standard_normal((80, 3))
    given = (rows, (rows[:, 0] > 0).astype(int)) if where == "training data" else None
    target = open_target(lambda X: X @ np.ones(3), given, AuditOptions(unseen=None if given else rows))
    assert (target.input_shape, target.output_dim) == ((3,), 1)


def test_a_function_without_data_is_asked_for_the_shape_of_its_inputs():
    with pytest.raises(InvalidInput, match="input_shape"):
        open_target(lambda X: X @ np.ones(3), None, AuditOptions())


@pytest.mark.slow
def test_tokens_are_learned_by_an_embedding(words):
    assert (words.kind, words.kind_is_known, words.vocabulary, words.access) == ("unknown", False, 50, "value")
    pool, rest = words.unseen[:1000], words.unseen[1000:]
    plan = plan_for(words, pool, "value")
    assert plan.kind == "tokens"
    copy = learned(plan, words.oracle("value"), "value", pool, 200, 0)
    same = divulge.oracle(copy).label(rest) == words.oracle("label").label(rest)
    assert float(same.double().mean()) > 0.7


def test_attacks_that_move_an_input_by_a_little_do_not_fit_tokens(words):
    probes = [*exact_copy.PROBES, *label_copy.PROBES, *span.PROBES]
    assert {probe.obstacle(words) for probe in probes if "gradient" not in probe.name} == {TOKENS}


def test_several_inputs_are_asked_for_by_name_in_the_syntax_of_the_user():
    with pytest.raises(InvalidInput) as refused:
        divulge.oracle(Two())
    assert 'input_shape={"left": (3,), "right": (3,)}' in str(refused.value)
    shown = for_command_line(str(refused.value), ["audit", "two.pt"])
    assert "--input-shape 'left=3;right=3'" in shown


def test_an_output_of_an_onnx_graph_is_chosen_by_its_name(tmp_path):
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 2)

        def forward(self, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.a(X), self.b(X)

    torch.manual_seed(0)
    model, path = Several(), str(tmp_path / "several.onnx")
    torch.onnx.export(
        model, (torch.zeros(1, 4),), path, input_names=["x"], output_names=["first", "second"], dynamo=False,
        dynamic_axes={"x": {0: "batch"}},
    )  # fmt: skip
    X = torch.randn(5, 4)
    for name, layer in (("first", model.a), ("second", model.b)):
        target = open_target(path, None, AuditOptions(output=name))
        torch.testing.assert_close(target.oracle("value").value(X), layer(X).detach())
        assert target.options.output == name  # the commands of the report repeat it


def test_an_obstacle_that_breaks_down_does_not_end_the_audit():
    def broken(target):
        raise AttributeError("no such thing")

    probes = [Probe("broken", "Broken", broken, lambda target, seconds: None), exact_copy.PROBES[0]]
    target = open_target(nn.Linear(3, 2).double(), None, AuditOptions())
    results = run_all(probes, target, time.perf_counter() + 20, None)
    assert [(skip.name, skip.ending) for skip in results.skipped] == [("broken", "unfinished")]
    assert "fault of its own (AttributeError" in results.skipped[0].reason
    assert [found.name for found in results.findings] == ["copy-from-values"]


def test_token_ids_of_an_onnx_graph_stay_inside_its_table_of_embeddings(tmp_path):
    torch.manual_seed(0)
    model, path = Words().eval(), str(tmp_path / "words.onnx")
    torch.onnx.export(
        model, (torch.zeros(1, 6, dtype=torch.long),), path, input_names=["ids"], dynamic_axes={"ids": {0: "rows"}},
        dynamo=False,
    )  # fmt: skip
    ids = torch.randint(50, (200, 6), generator=torch.Generator().manual_seed(1))
    target = open_target(path, None, AuditOptions(unseen=ids))
    assert (target.vocabulary, target.kind, target.access) == (50, "unknown", "value")
    assert plan_for(target, target.unseen, "value").kind == "tokens"
    beyond = target.oracle("value").value(torch.full((1, 6), 400.0))
    with torch.no_grad():
        torch.testing.assert_close(beyond, model(torch.full((1, 6), 49)))


def test_a_file_without_some_classes_is_judged_by_the_numbers_that_it_says(tmp_path) -> None:
    X, y = load_digits(return_X_y=True)
    kept = y % 2 == 1
    np.savez(tmp_path / "odd.npz", X=X[kept], y=y[kept])
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    target = open_target(model, data_of_model("", str(tmp_path / "odd.npz")), AuditOptions())
    assert target.labels.tolist() == y[kept].tolist()


def test_labels_are_places_among_the_classes_of_an_estimator(tmp_path) -> None:
    X, y = load_iris(return_X_y=True)
    estimator = LogisticRegression(max_iter=1000).fit(X, y + 1)
    np.savez(tmp_path / "some.npz", X=X[y > 0], y=y[y > 0] + 1)
    from_file = open_target(estimator, data_of_model("", str(tmp_path / "some.npz")), AuditOptions())
    assert from_file.labels.tolist() == y[y > 0].tolist()
    by_call = open_target(estimator, (X, y + 1), AuditOptions(unseen=(X[:9] + 0.01, y[:9] + 1)))
    assert (by_call.make_oracle("label").label(X) == by_call.labels).double().mean() > 0.9
    assert by_call.unseen_labels.tolist() == [0] * 9
    with pytest.raises(InvalidInput, match="label that the model was not fitted with"):
        open_target(estimator, (X, y), AuditOptions())
