"""The audit: picks what fits, says why the rest does not, keeps to its time, survives stops, and judges honestly."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from torch import nn

import divulge
from divulge import datasets
from divulge.auditing import registry
from divulge.auditing.kinds import kind_by_asking
from divulge.auditing.probes import probe as probing
from divulge.core import progress
from divulge.core.errors import AttackFailed, DivulgeError, InvalidInput, WrongShape
from divulge.report import schema
from divulge.report.findings import Finding


def relu_network(d: int = 8, h: int = 4, seed: int = 0) -> nn.Module:
    return divulge.Recipe(widths=[d, h, 1], loss="logistic", precision="float64", seed=seed).initial_model()


def names(report: Any) -> dict[str, str]:
    return {finding.name: finding.outcome for finding in report.findings}


def only(monkeypatch: pytest.MonkeyPatch, *probes: probing.Probe) -> None:
    monkeypatch.setattr(registry, "available_probes", lambda: list(probes))


def made_up(name: str, run: Any = None) -> probing.Probe:
    def default(target: Any, seconds: float) -> Finding:
        return Finding(name, "copy", "prediction client", name, "succeeded", "high", "m", "c")

    return probing.Probe(name, name, lambda target: "", run or default)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_relu_network_is_copied_by_both_clients_and_its_span_is_found(seed: int) -> None:
    report = divulge.audit(relu_network(seed=seed), access="gradient", time=60, seed=seed, price=2.0)
    assert names(report)["copy-from-values"] == "succeeded"
    assert names(report)["copy-from-gradients"] == "succeeded"
    assert names(report)["span-from-gradients"] == "succeeded"
    copied = next(f for f in report.findings if f.name == "copy-from-values")
    assert copied.measures["worst_difference"] < 1e-8
    assert copied.ledger.value > 0
    assert report.money(copied) == pytest.approx(2.0 * copied.ledger.total / 1000, abs=1e-3)
    assert {"data-from-weights", "informed-linear", "protection-needed"} <= {s.name for s in report.skipped}
    jsonschema.validate(json.loads(report.json()), schema())


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_two_hidden_layers_are_copied_from_explanations(known: bool, only_probes: Any) -> None:
    only_probes("copy-from-gradients")
    model = divulge.Recipe(widths=[20, 8, 8, 1], loss="logistic", precision="float64", seed=3).initial_model()
    report = divulge.audit(model, access="weights" if known else "gradient", time=60)
    copied = next(f for f in report.findings if f.name == "copy-from-gradients")
    assert copied.outcome == "succeeded", copied.certainty
    assert copied.measures["worst_difference"] < 1e-8 * copied.measures["output_spread"]
    assert copied.ledger.gradient > 0


@pytest.mark.slow
def test_a_table_gives_up_its_records_one_by_one(only_probes: Any) -> None:
    from sklearn.linear_model import Ridge

    only_probes("informed-linear", "protection-needed")

    table = datasets.load("diabetes")
    model = Ridge(alpha=0.1).fit(table.train.X.double().numpy(), table.train.y.double().numpy())
    report = divulge.audit(model, training_data=table, time=60)
    rebuilt = next(f for f in report.findings if f.name == "informed-linear")
    assert rebuilt.outcome == "succeeded"
    assert rebuilt.severity == "high"
    assert rebuilt.measures["median_error_mse"] < 1e-12
    assert [row[0] for row in rebuilt.tables[1].rows] == list(table.columns)
    assert "protection-needed" in names(report)
    assert "informed-linear" in report.html()


def test_a_record_is_not_claimed_when_the_model_does_not_hold_it(only_probes: Any) -> None:
    from sklearn.linear_model import Ridge

    only_probes("informed-linear")

    table = datasets.load("diabetes")
    rng = np.random.default_rng(0)
    model = Ridge(alpha=0.1).fit(rng.random((300, 10)), rng.random(300))  # trained on something else
    report = divulge.audit(model, training_data=table, time=60)
    assert names(report).get("informed-linear", "failed") == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_smooth_network_is_recognised_from_outside_and_listened_to(seed: int, only_probes: Any) -> None:
    only_probes("span-from-labels", "copy-from-labels")
    model = divulge.Recipe(widths=[6, 3, 1], activation="tanh", loss="logistic", precision="float64", seed=seed)
    report = divulge.audit(model.initial_model(), access="label", time=60, seed=seed)
    assert names(report)["span-from-labels"] == "succeeded"
    assert names(report).get("copy-from-labels", "failed") == "failed"  # which is for ReLU networks
    assert kind_by_asking(divulge.oracle(model.initial_model(), access="value")) == "smooth"


@pytest.mark.slow
def test_an_onnx_graph_that_cannot_be_read_is_asked_for_values(tmp_path: Path, only_probes: Any) -> None:
    only_probes("span-from-values")
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make, numbers = onnx.helper, onnx.numpy_helper
    rng = np.random.default_rng(0)
    kind = onnx.TensorProto.DOUBLE
    nodes = [make.make_node("MatMul", ["x", "W"], ["a"]), make.make_node("Sin", ["a"], ["b"]),
             make.make_node("MatMul", ["b", "v"], ["y"])]  # fmt: skip
    weights = [
        numbers.from_array(rng.standard_normal((4, 2)), "W"),
        numbers.from_array(rng.standard_normal((2, 1)), "v"),
    ]
    graph = make.make_graph(nodes, "g", [make.make_tensor_value_info("x", kind, ["n", 4])],
                            [make.make_tensor_value_info("y", kind, ["n", 1])], weights)  # fmt: skip
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.save(model, tmp_path / "sine.onnx")
    report = divulge.audit(tmp_path / "sine.onnx", time=30)
    assert report.target["access_granted"] == "value"
    assert next(f for f in report.findings if f.name == "span-from-values").measures["directions_seen"] == 2
    with pytest.raises(DivulgeError, match="Sin"):
        divulge.audit(tmp_path / "sine.onnx", access="weights", time=30)


@pytest.mark.slow
def test_records_are_rebuilt_on_worker_processes_as_they_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    from divulge.auditing.probes import informed

    only(monkeypatch, informed.PROBES[1])
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(12, 5, generator=generator, dtype=torch.float64)
    recipe = divulge.Recipe(
        widths=[5, 8, 1], activation="tanh", loss="logistic", epochs=15, precision="float64", seed=2
    )
    y = (X.sum(dim=1) > 2.5).long()
    model = recipe.train(X, y)
    here, there = (
        divulge.audit(model, training_data=(X, y), recipe=recipe, time=240, workers=workers).findings[0]
        for workers in (None, 2)
    )
    assert here.measures["records_rebuilt"] == "5 of 5"
    assert [row[1] for row in there.tables[0].rows] == pytest.approx([row[1] for row in here.tables[0].rows])


@pytest.mark.slow
def test_where_nothing_fits_there_is_a_page_that_says_so() -> None:
    report = divulge.audit(relu_network(), access="label", guard="label", time=10)
    assert "span-from-labels" in {s.name for s in report.skipped} | set(names(report))
    quiet = divulge.audit(lambda X: X[:, :1] * X[:, 1:2] > 0, access="label", input_shape=(3,), time=5)
    assert quiet.severity in ("none", "low", "medium")
    assert "What was not tried" in quiet.html()


def test_a_stopped_audit_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def counting(name: str, stop: bool = False) -> probing.Probe:
        def run(target: Any, seconds: float) -> Finding:
            ran.append(name)
            if stop:
                raise KeyboardInterrupt
            return replace(made_up(name).run(target, seconds), seconds=1000.0)

        return made_up(name, run)

    only(monkeypatch, counting("one"), counting("two", stop=True), counting("three"))
    first = divulge.audit(relu_network(), time=30, out=tmp_path)
    assert not first.finished
    assert names(first) == {"one": "succeeded"}
    assert {s.name for s in first.skipped} == {"two", "three"}
    only(monkeypatch, counting("one"), counting("two"), counting("three"))
    second = divulge.audit(relu_network(), time=30, out=tmp_path)
    assert second.finished
    assert ran == ["one", "two", "two", "three"]
    assert 1000 < second.seconds < 2000  # its own time and that of the finding which it kept
    with pytest.raises(InvalidInput, match="another audit"):
        divulge.audit(relu_network(d=9), time=30, out=tmp_path, resume=True)
    with pytest.raises(InvalidInput, match="no audit"):
        divulge.audit(relu_network(), time=30, out=tmp_path / "empty", resume=True)
    divulge.audit(relu_network(seed=1), time=30, out=tmp_path)  # other weights of the same shape: nothing is reused
    assert ran == ["one", "two", "two", "three", "one", "two", "three"]


def test_a_finding_survives_the_disk_with_its_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from divulge.oracles.ledger import Spent
    from divulge.report.findings import Picture, Table

    rich = Finding(
        "rich", "copy", "prediction client", "t", "succeeded", "high", "m", "c", {"a": 1.5}, Spent(1, 2, 3, 4), 1.0, 2,
        ("r",), ("u",), "cmd", (Picture(b"png", "alt", "cap", wide=False),), (Table("t", ("a",), ((1,),)),), ("n",),
    )  # fmt: skip
    only(monkeypatch, made_up("rich", lambda target, seconds: rich))
    divulge.audit(relu_network(), time=10, out=tmp_path)
    only(monkeypatch, made_up("rich", lambda target, seconds: pytest.fail("ran again")))
    assert divulge.audit(relu_network(), time=10, out=tmp_path).findings == [rich]


def test_an_attack_that_dies_does_not_end_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(target: Any, seconds: float) -> Finding:
        raise AttackFailed("the target went away")

    only(monkeypatch, made_up("dies", dies), made_up("lives"))
    report = divulge.audit(relu_network(), time=10)
    assert names(report) == {"lives": "succeeded"}
    assert "went away" in report.skipped[0].reason


def test_a_target_that_stops_answering_is_said_and_what_was_found_is_kept() -> None:
    weights, left = np.arange(1.0, 5.0), [9000]

    def dying(X: Any) -> Any:
        left[0] -= len(X)
        if left[0] < 0:
            raise ConnectionError("gone")
        return np.maximum(np.asarray(X), 0) @ weights

    report = divulge.audit(dying, input_shape=(4,), time=30)
    assert names(report)["copy-from-values"] == "succeeded"
    assert report.target_failed
    assert any(s.tried and "gone" in s.reason for s in report.skipped)
    assert "stopped answering" in report.html()
    assert "stopped answering" in report.markdown()
    jsonschema.validate(json.loads(report.json()), schema())


def test_an_attack_is_stopped_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(target: Any, seconds: float) -> Finding:
        with probing.deadline(seconds):
            while True:
                time.sleep(0.01)
                progress.report("going on")

    heard: list[str] = []
    only(monkeypatch, made_up("endless", endless), made_up("next"))
    started = time.perf_counter()
    with progress.listening(lambda step: heard.append(step.stage)):
        report = divulge.audit(relu_network(), time=4)
    assert time.perf_counter() - started < 8
    assert names(report) == {"next": "succeeded"}
    assert "seconds" in report.skipped[0].reason
    assert {"audit", "going on"} <= set(heard)
    late = divulge.audit(relu_network(), time=0.5)
    assert late.findings == []
    assert "time was used up" in late.skipped[0].reason


def test_what_does_not_belong_together_is_said() -> None:
    model = relu_network()
    for arguments, kind, sentence in [
        ({"training_data": (torch.zeros(5, 3), torch.zeros(5))}, WrongShape, "8 are expected"),
        ({"training_data": (torch.zeros(5, 8), torch.zeros(4))}, InvalidInput, "5 rows and 4 labels"),
        ({"training_data": (torch.full((5, 8), torch.nan), torch.zeros(5))}, InvalidInput, "NaN"),
        ({"training_data": (torch.zeros(3, 8), ["a", "b", "c"])}, InvalidInput, "numbers for labels"),
        ({"training_data": ([["a"] * 8], [0])}, InvalidInput, "rows of numbers"),
        ({"time": 0}, InvalidInput, "time"),
        ({"time": "5m"}, InvalidInput, "seconds"),
        ({"seed": -1}, InvalidInput, "seed"),
        ({"price": -1}, InvalidInput, "price"),
        ({"access": "everything"}, DivulgeError, "everything"),
        ({"access": "weights", "guard": "round:3"}, InvalidInput, "guard"),
    ]:
        with pytest.raises(kind, match=sentence):
            divulge.audit(model, **arguments)  # type: ignore[arg-type]


@pytest.mark.slow
def test_guards_are_part_of_the_target(only_probes: Any) -> None:
    only_probes("copy-from-values")
    report = divulge.audit(relu_network(), guard="round:2", budget=1000, time=20)  # 300 are enough without the guard
    assert report.target["guards"] == "round:2"
    assert names(report).get("copy-from-values", "failed") != "succeeded"


@pytest.mark.slow
def test_a_smooth_classifier_is_learned_from_its_explanations_and_nothing_is_trained_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from divulge.auditing.probes import learned_copy

    monkeypatch.setattr(learned_copy, "QUERIES", (30,))
    monkeypatch.setattr(learned_copy, "LONGER", 1e9)  # no further point at the end of the inputs
    only(monkeypatch, next(p for p in learned_copy.PROBES if p.name == "copy-by-learning-from-gradients"))
    digits = datasets.load("digits")
    recipe = divulge.Recipe(widths=[64, 16, 10], activation="tanh", epochs=30, batch_size=64, learning_rate=0.3)
    model = recipe.train(*digits.train)
    audit = partial(divulge.audit, model, digits, access="gradient", unseen=digits.test, time=120, workers=2)
    [learned] = audit(out=tmp_path).findings
    (tmp_path / "findings" / "copy-by-learning-from-gradients.json").unlink()  # killed before it was written
    monkeypatch.setattr("divulge.extraction.by_training", lambda *a, **b: pytest.fail("trained twice"))
    [again] = audit(out=tmp_path, resume=True).findings
    assert replace(again, seconds=0, pictures=()) == replace(learned, seconds=0, pictures=())
    [(queries, agreement, lowest, *_)] = learned.tables[0].rows
    accuracy = learned.measures["right_answers_of_the_copy"]
    assert queries == learned.ledger.gradient == 30
    assert agreement > 0.9
    assert accuracy > 0.9
    assert learned.severity == ("high" if lowest >= 0.98 else "medium")  # what the lower end of its interval supports


@pytest.mark.slow
def test_decisions_alone_make_a_student(monkeypatch: pytest.MonkeyPatch) -> None:
    from divulge.auditing.probes import learned_copy

    monkeypatch.setattr(learned_copy, "QUERIES", (100,))
    monkeypatch.setattr(learned_copy, "LONGER", 1e9)
    only(monkeypatch, *learned_copy.PROBES)
    digits = datasets.load("digits").binary()
    model = divulge.Recipe(widths=[64, 16, 1], loss="logistic", epochs=20, batch_size=64).train(*digits.train)
    report = divulge.audit(model, digits, unseen=digits.test, time=60, access="label")
    [learned] = report.findings
    assert learned.adversary == "label client"
    assert learned.ledger.label == learned.ledger.total == 100
    assert learned.measures["same_decision"] > 0.75
    assert "values" in report.skipped[0].reason


def test_a_data_frame_brings_its_columns(only_probes: Any) -> None:
    pandas = pytest.importorskip("pandas")
    from sklearn.linear_model import Ridge

    only_probes("informed-linear")

    table = datasets.load("diabetes")
    X = pandas.DataFrame(table.train.X.double().numpy(), columns=list(table.columns))
    y = pandas.Series(table.train.y.double().numpy())
    report = divulge.audit(Ridge().fit(X, y), (X, y), time=30, seed=np.int64(1))
    rebuilt = next(f for f in report.findings if f.name == "informed-linear")
    assert [row[0] for row in rebuilt.tables[1].rows] == list(table.columns)


@pytest.mark.parametrize("budget", [100, 300])
def test_a_small_budget_is_kept_and_what_it_bought_is_shown(budget: int) -> None:
    report = divulge.audit(relu_network(), access="value", budget=budget, time=30)
    assert all(f.ledger.total <= budget for f in report.findings)
    assert (names(report).get("copy-from-values") == "succeeded") == (budget == 300)
    assert all(s.tried == ("budget" in s.reason) for s in report.skipped)


@pytest.mark.slow
def test_what_has_no_weights_is_audited_by_its_answers() -> None:
    from sklearn.ensemble import RandomForestClassifier

    iris = datasets.load("iris")
    forest = RandomForestClassifier(5, random_state=0).fit(iris.train.X.numpy(), iris.train.y.numpy())
    assert divulge.audit(forest, time=2).target["access_granted"] == "value"
    weights = np.arange(4.0)
    assert divulge.audit(lambda X: X @ weights, input_shape=(4,), time=5).severity == "high"
    assert divulge.audit(relu_network(), guard="label", time=2).target["access_granted"] == "label"


def test_a_probe_that_is_run_again_is_named_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []

    def run(target, seconds):
        tried.append(seconds)
        if len(tried) == 1:
            raise probing.TimeUp("It was not enough.")
        return Finding("patient", "copy", "label client", "A patient attack", "failed", "none", "Nothing.", "Checked.")

    def quick(target, seconds):
        return Finding("quick", "copy", "label client", "A quick attack", "failed", "none", "Nothing.", "Checked.")

    only(monkeypatch, probing.Probe("patient", "Patient", lambda target: "", run, lambda target: 1.0),
         probing.Probe("quick", "Quick", lambda target: "", quick, lambda target: 9.0))  # fmt: skip
    named = []
    with progress.listening(lambda step: named.append(step.facts.get("now")) if step.stage == "audit" else None):
        divulge.audit(torch.nn.Linear(3, 2), time=20)
    assert len(tried) == 2
    assert [name for name in named if name][:3] == ["Patient", "Quick", "Patient"]
