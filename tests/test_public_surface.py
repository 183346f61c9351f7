"""Every line of the public surface, on small models: the calls, and the attributes that their results promise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

import divulge
from divulge import serving
from divulge.auditing import registry
from divulge.oracles.onnx.export import export_onnx


def network(seed: int = 0, inputs: int = 6, hidden: int = 4, outputs: int = 1) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(inputs, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, outputs))
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return model.double()


def test_an_oracle_takes_everything_that_is_named_and_counts(tmp_path: Path) -> None:
    X, y = (part.numpy() for part in divulge.datasets.load("iris").train)
    model = network()
    oracle = divulge.oracle(model, access="gradient", budget=20_000)
    rows = torch.randn(3, 6, dtype=torch.float64)
    assert oracle.value(rows).shape == (3, 1)
    values, gradients = oracle.gradient(rows)
    assert (values.shape, gradients.shape, oracle.label(rows).shape) == ((3, 1), (3, 1, 6), (3,))
    spent = oracle.ledger
    assert (spent.value, spent.gradient, spent.label, spent.total) == (3, 3, 3, 9)
    assert (spent.requests, oracle.input_dim, oracle.output_dim) == (0, 6, 1)  # nothing went over a network
    assert divulge.oracle(DecisionTreeClassifier(max_depth=2).fit(X, y)).label(X[:2]).shape == (2,)
    assert divulge.oracle(lambda Z: Z @ np.ones((4, 2)), input_shape=(4,)).value(X[:2]).shape == (2, 2)
    export_onnx(model, tmp_path / "model.onnx")
    assert divulge.oracle(str(tmp_path / "model.onnx")).value(rows).shape == (3, 1)
    with serving.running(model) as url:
        remote = divulge.oracle(url)
        assert (remote.value(rows).shape, remote.ledger.requests) == ((3, 1), 1)


@pytest.mark.parametrize("attack", ["from_gradients", "from_values", "worst_case"])
def test_copies(attack: str) -> None:
    options = {"epsilon": 1e-3} if attack == "worst_case" else {"seed": 0}
    stolen = getattr(divulge.extraction, attack)(divulge.oracle(network(), access="gradient"), **options)
    assert isinstance(stolen.model, torch.nn.Module)
    assert (list(stolen.widths), stolen.width, stolen.exact, stolen.reason) == ([4], 4, True, "")
    assert stolen.queries > 0
    assert stolen.seconds > 0
    assert stolen.check(divulge.oracle(network()), 100) < 1e-6


@pytest.mark.slow
def test_copies_from_labels_and_by_training() -> None:
    linear = torch.nn.Linear(4, 1).double()
    stolen = divulge.extraction.from_labels(divulge.oracle(linear, access="label"), seed=0)
    assert (stolen.agreement > 0.99, stolen.equivalent, stolen.model is not None) == (True, True, True)
    X = torch.randn(40, 6, dtype=torch.float64)
    learned = divulge.extraction.by_training(
        divulge.oracle(network(), access="gradient"), network(1), X, match="gradients"
    )
    assert isinstance(learned.model, torch.nn.Module)
    assert learned.queries == 40


@pytest.mark.slow
def test_spans() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(12, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).double()
    for span in (
        divulge.span.from_gradients(divulge.oracle(model, access="gradient")),
        divulge.span.from_labels(divulge.oracle(model, access="label"), rank=None),
    ):
        assert (span.basis.shape, span.rank) == ((3, 12), 3)
        torch.testing.assert_close(span.basis @ span.basis.T, torch.eye(3, dtype=span.basis.dtype))
        assert span.queries > 0
    x = torch.randn(2, 12, dtype=torch.float64)
    noisy = divulge.span.obfuscate(x, span, scale=10.0)
    assert float((noisy - x).norm()) > 1
    torch.testing.assert_close(model(noisy), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_training_and_reconstruction(tmp_path: Path) -> None:
    digits = divulge.datasets.load("digits").binary().subset(6)
    X, y = digits.train
    recipe = divulge.Recipe(
        widths=[64, 32, 1], activation="relu", loss="logistic", seed=0, epochs=300, batch_size=None, learning_rate=1.0,
        momentum=0.9, initial_scale=0.01, precision="float64",
    )  # fmt: skip
    model = recipe.train(X, y)
    found = divulge.reconstruction.from_weights(model, seed=0)
    assert found.samples.shape[1:] == (64,)
    assert len(found.labels) == len(found.multipliers) == len(found.confidence) == len(found.samples)
    assert found.residual >= 0
    match = found.match(X, unseen=digits.test.X[:50])
    assert (len(match.ssim), len(match.correlation)) == (6, 6)
    assert match.pairs is not None
    assert match.control is not None
    match.picture(tmp_path / "pairs.png")
    assert (tmp_path / "pairs.png").stat().st_size > 500


@pytest.mark.slow
def test_informed_adversaries() -> None:
    X, y = divulge.datasets.load("breast-cancer").train
    rows, labels = X[:60].double().numpy(), y[:60].numpy()
    estimator = LogisticRegression(tol=1e-12, max_iter=10_000).fit(rows, labels)
    record = divulge.informed.glm(estimator, rows[1:], labels[1:])
    assert float(np.abs(record.x - rows[0]).max()) < 1e-3
    assert record.y == labels[0]
    assert record.predicted_error >= 0
    recipe = divulge.Recipe(widths=[30, 2], epochs=20, batch_size=None, learning_rate=0.5, precision="float64")
    released = recipe.train(X[:20], y[:20])
    assert divulge.informed.direct(recipe, released, X[1:20], y[1:20]).x.shape == (30,)
    attack = divulge.informed.reconstructor(recipe, X[1:20], y[1:20], X[20:120], y[20:120], method="ridge")
    assert attack(released).x.shape == (30,)


@pytest.mark.slow
def test_membership_and_attributes() -> None:
    X, y = (part.numpy() for part in divulge.datasets.load("breast-cancer").train)
    model = DecisionTreeClassifier(random_state=0).fit(X[:200], y[:200])
    for train in (
        None,
        DecisionTreeClassifier(),
        lambda A, b, seed: DecisionTreeClassifier(random_state=seed).fit(A, b),
    ):
        risk = divulge.membership.attack(
            model, members=(X[:200], y[:200]), non_members=(X[200:], y[200:]), train=train, seed=0
        )
        assert 0 <= risk.auc <= 1
    rate, low, high = risk.tpr(0.01)
    assert low <= rate <= high
    assert (risk.scores.shape, len(risk.worst(10))) == ((200,), 10)
    assert risk.epsilon is not None
    table = np.column_stack([X[:200], (X[:200, 0] > np.median(X[:200, 0]))])
    model = DecisionTreeClassifier(random_state=0).fit(table, y[:200])
    risk = divulge.attributes.attack(model, table, y[:200], column=30, seed=0)
    assert 0 <= float(risk.accuracy) <= 1
    assert 0 <= float(risk.baseline) <= 1
    assert risk.advantage.low <= float(risk.advantage) <= risk.advantage.high


@pytest.mark.slow
def test_protection_and_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = divulge.protection.reconstruction_bound
    for spent in ({"epsilon": 8.0}, {"rdp": (2.0, 1.0)}, {"zcdp": 0.5}, {"gaussian": 1.0}):
        assert 1e-3 < bound(kappa=1e-3, **spent) <= 1  # type: ignore[arg-type]
    X = torch.randn(20, 6, dtype=torch.float64)
    only = [probe for probe in registry.available_probes() if probe.name == "copy-from-values"]
    monkeypatch.setattr(registry, "available_probes", lambda: only)
    report = divulge.audit(network(), training_data=(X, (X[:, 0] > 0).long()), time=60)
    assert [finding.severity for finding in report.findings] == ["high"]
    for name in ("report.html", "report.pdf", "report.md", "report.json"):
        assert report.save(str(tmp_path / name)).stat().st_size > 1000
