"""What an audit claims holds: three states, gates, times, causes, private models and kinds of models."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import divulge
from divulge import datasets
from divulge.auditing import AuditOptions, Finding, Probe, TimeUp, registry
from divulge.auditing.kinds import kind_by_asking, kind_of_module
from divulge.auditing.opening import open_target
from divulge.auditing.probes import exact_copy, informed, learned_copy
from divulge.auditing.schedule import allowance, ordered
from divulge.core.errors import AttackFailed, InvalidInput
from divulge.report import Report, compare
from divulge.report.findings import Skipped


def relu_network(seed: int = 0) -> nn.Module:
    return divulge.Recipe(widths=[8, 4, 1], loss="logistic", precision="float64", seed=seed).initial_model()


def only(monkeypatch: pytest.MonkeyPatch, *probes: Probe) -> None:
    monkeypatch.setattr(registry, "available_probes", lambda: list(probes))


def probe(name: str, run: Any, seconds: float = 30.0, at_stake: Any = "high") -> Probe:
    return Probe(name, f"The attack {name}", lambda target: "", run, lambda target: seconds, at_stake)


def failed(name: str) -> Finding:
    return Finding(name, "copy", "prediction client", f"No copy by {name}", "failed", "none", "m", "c")


def out_of_time(target: Any, seconds: float) -> Finding:
    raise TimeUp("The time was not enough.")


# -- three states -----------------------------------------------------------------------------------------------------


def test_an_audit_without_time_says_nothing_and_passes_no_gate() -> None:
    report = divulge.audit(relu_network(), time=0.01)
    assert report.state == "inconclusive"
    assert report.headline == "inconclusive"
    assert not report.finished
    assert not report.interrupted
    assert report.verdict[0].startswith("Inconclusive: this audit says nothing about the model, because")
    assert "Exact copy from predictions" in report.verdict[0]
    assert report.gate("low").result == "inconclusive"
    assert "Exact copy from predictions" in report.gate("low").reason
    assert "No attack of this tool fits" not in report.html()
    assert ">inconclusive<" in report.html()
    assert "**inconclusive**" in report.markdown()
    assert json.loads(report.json())["state"] == "inconclusive"
    assert "copy-from-values" in json.loads(report.json())["unfinished"]


def test_an_attack_that_ran_out_of_time_is_not_told_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, probe("quick", lambda target, seconds: failed("quick")), probe("slow", out_of_time))
    report = divulge.audit(relu_network(), time=30)
    assert report.state == "inconclusive"
    assert "The attack slow" in report.verdict[0]
    assert report.gate("high").result == "inconclusive"
    assert report.gate("critical").result == "met"  # neither attack could have found that
    only(monkeypatch, probe("quick", lambda target, seconds: failed("quick")))
    report = divulge.audit(relu_network(), time=30)
    assert (report.state, report.finished, report.gate("low").result) == ("not taken", True, "met")
    assert report.verdict == ["Nothing was taken by the one attack that ran to its end (No copy by quick)."]


def test_an_attack_that_used_up_its_budget_ran_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, exact_copy.PROBES[0])
    report = divulge.audit(relu_network(), access="value", budget=50, time=30)
    assert report.skipped[0].ending == "failed"
    assert report.state == "not taken"


def test_a_gate_requires_what_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    unfit = replace(probe("unfit", out_of_time), obstacle=lambda target: "it does not fit.")
    only(monkeypatch, probe("quick", lambda target, seconds: failed("quick")), unfit)
    report = divulge.audit(relu_network(), time=30, require=("unfit",))
    assert report.gate("low").result == "met"
    assert report.gate("low", require=("quick",)).result == "met"
    assert report.gate("low", require=("unfit",)).result == "inconclusive"
    with pytest.raises(InvalidInput, match=r"no attack called 'other'.*quick, unfit"):
        divulge.audit(relu_network(), require=("other",))


def test_an_audit_to_which_nothing_fits_says_why_and_what_to_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, *exact_copy.PROBES, *informed.PROBES, *learned_copy.PROBES)
    report = divulge.audit(relu_network(), access="label", time=5)
    assert report.findings == []
    assert report.verdict[0].endswith("because no attack fits it with the access and the data that were given.")
    assert any("training data" in sentence for sentence in report.verdict[1:])
    assert any("Grant values" in sentence for sentence in report.verdict[1:])


def test_what_was_not_tried_is_neither_gone_nor_worse(tmp_path: Path) -> None:
    taken = Finding("x", "copy", "prediction client", "t", "succeeded", "high", "m", "c")
    none = replace(taken, outcome="failed", severity="none")
    states: dict[str, Any] = {
        "taken": ([taken], []), "none": ([none], []),
        "not tried": ([], [Skipped("x", "t", "the time was used up.", "not tried", "high")]),
        "stopped": ([], [Skipped("x", "t", "The time was not enough.", "unfinished", "high")]),
        "unfit": ([], [Skipped("x", "t", "it is smooth.")]),
    }  # fmt: skip
    paths = {
        name: Report({"name": "m", "kind": "k"}, *parts, seconds=1, seed=0).save(tmp_path / f"{name}.json")
        for name, parts in states.items()
    }
    expected = {
        ("none", "taken"): "worse", ("taken", "none"): "better", ("taken", "not tried"): "not tried",
        ("taken", "stopped"): "inconclusive", ("not tried", "taken"): "undecided", ("stopped", "taken"): "undecided",
        ("taken", "unfit"): "gone", ("unfit", "taken"): "new",
    }  # fmt: skip
    for (before, after), verdict in expected.items():
        [change] = compare(paths[before], paths[after])
        assert change.verdict == verdict, (before, after)
        assert change.alarming == (verdict in ("worse", "new"))
        assert change.open == (verdict in ("not tried", "inconclusive", "undecided"))


def test_records_that_ran_out_of_time_are_not_told_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.linear_model import Ridge

    table = datasets.load("diabetes")
    model = Ridge().fit(table.train.X.double().numpy(), table.train.y.double().numpy())
    target = open_target(model, table, AuditOptions())
    real, calls = informed._solve_one, []

    def slow(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) > 2:
            raise TimeUp("The time was not enough.")
        real(*arguments)

    monkeypatch.setattr(informed, "_solve_one", slow)
    found = informed._run_linear(target, 30.0)
    assert found.title == "2 of 2 records rebuilt by someone who knows the others (3 further records ran out of time)"
    monkeypatch.setattr(informed, "_solve_one", lambda *arguments: out_of_time(*arguments[:2]))
    with pytest.raises(TimeUp):
        informed._run_linear(target, 30.0)

    def one_fails(target: Any, row: int, attempt: Any) -> None:
        if attempt.reasons:
            raise TimeUp("The time was not enough.")
        raise AttackFailed("no root.")

    monkeypatch.setattr(informed, "_solve_one", one_fails)
    assert informed._run_linear(target, 30.0).outcome == "inconclusive"


# -- order and time ---------------------------------------------------------------------------------------------------


def test_cheap_attacks_with_much_at_stake_run_first_and_required_ones_before_them() -> None:
    target = open_target(relu_network(), None, AuditOptions(require=("slow",)))
    probes = [probe("slow", None, 90), probe("advice", None, 2, "none"), probe("span", None, 2, "medium"),
              probe("exact", None, 2, "high")]  # fmt: skip
    assert [one.name for one in ordered(probes, target)] == ["slow", "exact", "span", "advice"]


def test_an_attack_with_an_early_answer_counts_by_it_where_the_time_is_short() -> None:
    target = open_target(relu_network(), None, AuditOptions())
    improving = replace(probe("improving", None, 90, "high"), first_answer=lambda target: 2.0)
    probes = [improving, probe("whole", None, 20, "high")]
    assert [one.name for one in ordered(probes, target)] == ["whole", "improving"]
    assert [one.name for one in ordered(probes, target, short=True)] == ["improving", "whole"]
    assert improving.expected(target, short=False) == 90


def test_a_closed_form_is_tried_before_the_time_is_used_up() -> None:
    from sklearn.linear_model import LogisticRegression

    X, y = datasets.load("breast-cancer").train
    model = LogisticRegression(max_iter=500).fit(X.double().numpy(), y.numpy())
    target = open_target(model, (X, y), AuditOptions())
    fitting = [one for one in registry.available_probes() if not one.obstacle(target)]
    names = [one.name for one in ordered(fitting, target)]
    assert set(names[:2]) == {"informed-linear", "copy-from-values"} or "informed-linear" in names[:3]


def test_no_probe_gets_the_time_of_the_others() -> None:
    assert allowance([1.0, 60.0, 60.0], 20.0) == 3.0
    assert allowance([60.0, 60.0, 60.0, 60.0], 20.0) == 5.0
    assert allowance([12.0, 60.0, 60.0], 20.0) == 10.0, "parts that are all too short help nobody"
    assert allowance([5.0, 5.0], 100.0) == 50.0


def test_what_is_left_in_the_end_goes_to_an_attack_that_had_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    def patient(target: Any, seconds: float) -> Finding:
        given.append(seconds)
        if seconds < 3:
            raise TimeUp("The time was not enough.")
        return failed("patient")

    given: list[float] = []
    others = [probe(f"other-{number}", lambda target, seconds: failed("other"), 90) for number in range(3)]
    only(monkeypatch, probe("patient", patient, 80), *others)
    report = divulge.audit(relu_network(), time=6)
    assert len(given) == 2
    assert given[1] > 2 * given[0]
    assert "patient" in {finding.name for finding in report.findings}
    assert not report.skipped


def test_required_attacks_do_not_share_their_time_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(target: Any, seconds: float) -> Finding:
        given.append(seconds)
        return failed("wanted")

    given: list[float] = []
    others = [probe(f"other-{number}", lambda target, seconds: failed("other"), 90) for number in range(5)]
    only(monkeypatch, probe("wanted", run, 90), *others)
    divulge.audit(relu_network(), time=6, require=("wanted",))
    assert given[0] > 4


@pytest.mark.slow
def test_the_time_is_kept_by_an_attack_that_never_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(target: Any, seconds: float) -> Finding:
        while True:
            sum(range(1000))

    only(monkeypatch, probe("deaf", deaf), probe("next", lambda target, seconds: failed("next")))
    started = time.perf_counter()
    report = divulge.audit(relu_network(), time=6)
    assert time.perf_counter() - started < 1.15 * 6
    assert report.skipped[0].ending == "unfinished"
    assert {finding.name for finding in report.findings} == {"next"}


@pytest.mark.slow
def test_an_alarm_inside_the_model_is_not_the_end_of_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def endless(X: Any) -> Any:
        if armed:
            while True:
                sum(range(1000))
        return np.asarray(X).sum(axis=1)

    def run(target: Any, seconds: float) -> Finding:
        armed.append(True)
        target.oracle("value").value(torch.zeros(1, 4))
        return failed("never")

    armed: list[bool] = []
    only(monkeypatch, probe("inside", run))
    report = divulge.audit(endless, input_shape=(4,), time=3)
    assert not report.target_failed
    assert "not enough" in report.skipped[0].reason


# -- what stops it, and causes ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_record_that_leaks_through_a_scaler_names_the_scaler_and_no_remedy_that_does_not_help(
    only_probes: Any,
) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    only_probes("informed-linear", "protection-needed")
    X, y = (part.double().numpy() for part in datasets.load("breast-cancer").train)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    report = divulge.audit(model, (X, y.astype(int)), time=60, require=("informed-linear", "protection-needed"))
    leak = next(f for f in report.findings if f.name == "informed-linear")
    assert leak.severity == "high"
    assert leak.measures["leaks_through"] == "StandardScaler"
    assert "fitted StandardScaler alone gives it away" in leak.meaning
    assert leak.remedies == ()
    assert "does not help" in leak.untested[0]
    assert not any("digits" in sentence and "Release" in sentence for sentence in leak.untested)


@pytest.mark.slow
def test_answering_decisions_only_is_not_called_a_stop() -> None:
    report = divulge.audit(relu_network(), access="value", time=20)
    copied = next(f for f in report.findings if f.name == "copy-from-values")
    assert copied.remedies == ()
    assert any("does not stop it" in sentence for sentence in copied.untested)
    assert "What may help, untested" in report.html()


@pytest.mark.slow
def test_a_private_model_is_called_private_with_its_bound_and_needs_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    from divulge.auditing.probes import dp_training
    from divulge.training import Privacy

    only(monkeypatch, *dp_training.PROBES)
    X, y = (part[:200] for part in datasets.load("digits").binary().train)
    plain = divulge.Recipe(widths=[64, 8, 1], loss="logistic", epochs=20)
    recipe = replace(plain, privacy=Privacy(noise_multiplier=10.0))
    report = divulge.audit(recipe.train(X, y), (X, y), recipe=recipe, time=60)
    [found] = report.findings
    assert found.title.startswith("The model was trained with differential privacy: epsilon ")
    assert found.measures["blind_guess_upper_limit"] <= found.measures["chance_at_most"] < 1
    assert found.remedies == ()
    assert "was not put to the test" in found.notes[-1]
    assert any("differential privacy: epsilon" in sentence for sentence in report.verdict)
    seeded = replace(plain, privacy=Privacy(noise_multiplier=10.0, noise_seed=1))
    [found] = divulge.audit(seeded.train(X, y), (X, y), recipe=seeded, time=60).findings
    assert "no privacy can be claimed" in found.title
    assert found.measures["chance_at_most"] == 1.0


# -- kinds and answers ------------------------------------------------------------------------------------------------


class Convolutional(nn.Module):
    input_shape = (1, 8, 8)

    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 8, 3), nn.Linear(8 * 3 * 3, 10)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.last(torch.max_pool2d(self.activation(self.conv(x)), 2).flatten(1))
        return hidden


class Recurrent(nn.Module):
    input_shape = (64,)

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.last(self.lstm(x.reshape(-1, 8, 8))[0][:, -1])
        return answer


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kinds_of_networks_that_their_layers_do_not_tell(seed: int) -> None:
    torch.manual_seed(seed)
    X = datasets.load("digits").train.X.double()
    scripted = torch.jit.trace(Convolutional(torch.nn.functional.silu), torch.rand(2, 1, 8, 8))
    assert kind_of_module(Convolutional(torch.relu), X) == ("piecewise linear", False)
    assert kind_of_module(scripted, X, input_shape=(1, 8, 8))[0] in ("smooth", "unknown")
    assert kind_of_module(Recurrent(), X) == ("smooth", False)
    assert kind_by_asking(divulge.oracle(Recurrent(), access="value"), X) in ("smooth", "unknown")


@pytest.mark.slow
def test_probabilities_of_a_logistic_regression_are_not_steps_and_no_guess_skips_an_attack() -> None:
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression

    X, y = load_breast_cancer(return_X_y=True)
    model = LogisticRegression(max_iter=5000).fit(X, y)
    rows = torch.tensor(X)
    for answer in (model.predict_proba, lambda X: model.predict_proba(X)[:, 1]):
        assert kind_by_asking(divulge.oracle(answer, input_shape=(30,)), rows) == "linear"
        assert kind_by_asking(divulge.oracle(answer, input_shape=(30,))) in ("linear", "unknown")
    target = open_target(model.predict_proba, (X, y), AuditOptions(input_shape=(30,)))
    assert target.answers == "probabilities"
    for kind in ("smooth", "piecewise constant", "unknown"):
        assert exact_copy.PROBES[0].obstacle(replace(target, kind=kind)) == ""  # type: ignore[arg-type]


@pytest.mark.slow
def test_predictions_say_what_they_show() -> None:
    from sklearn.linear_model import Ridge

    digits = datasets.load("digits")
    logits = divulge.Recipe(widths=[64, 4, 10]).initial_model()
    softmax = nn.Sequential(nn.Linear(64, 10), nn.Softmax(dim=1))
    X, y = (part.double().numpy() for part in datasets.load("diabetes").train)
    shown = [
        open_target(logits, digits, AuditOptions()).answers,
        open_target(softmax, digits, AuditOptions()).answers,
        open_target(logits, digits, AuditOptions(access="label")).answers,
        open_target(Ridge().fit(X, y), (X, y), AuditOptions()).answers,
        open_target(lambda X: 3 * X.sum(1), None, AuditOptions(input_shape=(4,))).answers,
    ]
    assert shown == ["logits", "probabilities", "labels", "predicted values", "scores"]
    report = divulge.audit(relu_network(), access="value", time=20)
    assert "(logits) are enough to copy the model" in next(f.title for f in report.findings if f.question == "copy")
