"""The scope table: each class of attacks is measured, proved, tried too briefly, or not covered, and says why."""

from __future__ import annotations

from divulge.report.findings import Finding, Skipped
from divulge.report.regulation import CLASSES, ScopeRow, scope


def finding(name: str, question: str, severity: str = "none", outcome: str = "failed") -> Finding:
    return Finding(name, question, "insider", f"title of {name}", outcome, severity, "meaning", "sure")  # type: ignore[arg-type]


def rows(*findings: Finding, skipped: tuple[Skipped, ...] = (), guarantee: str = "") -> dict[str, ScopeRow]:
    return {row.attack.name: row for row in scope(findings, skipped, guarantee=guarantee)}


def test_every_class_has_a_row_with_a_reason() -> None:
    found = scope([], [])
    assert len(found) == len(CLASSES)
    assert {row.coverage for row in found} == {"not covered"}
    assert all(row.why.endswith(".") for row in found)
    named = {row.attack.name for row in found if "28/2024" in row.attack.source}
    assert named == {
        "attribute inference", "membership inference", "exfiltration", "regurgitation of training data",
        "model inversion", "reconstruction",
    }  # fmt: skip


def test_the_worst_of_the_attacks_of_a_class_is_its_result() -> None:
    found = rows(
        finding("informed-linear", "informed", "high", "succeeded"),
        finding("data-from-weights", "training-data"),
        skipped=(Skipped("chain-to-training-data", "Chain", "No copy.", "failed", "critical"),),
    )
    row = found["reconstruction"]
    assert (row.coverage, row.result) == ("measured", "high")
    assert row.findings == ("informed-linear", "data-from-weights")
    assert row.why == "Title of informed-linear. (2 more such attacks ran to the end.)"
    assert found["model inversion"].result == "not taken"
    assert found["exfiltration"].coverage == "not covered"


def test_an_attack_without_an_end_is_no_measurement() -> None:
    stopped = Skipped("copy-from-values", "Exact copy", "The time was used up.", "unfinished", "high")
    row = rows(skipped=(stopped,))["exfiltration"]
    assert (row.coverage, row.result, row.why) == ("tried too briefly", "inconclusive", "The time was used up.")
    unclear = rows(finding("copy-by-learning", "copy", outcome="inconclusive"))["NISTAML.031 model extraction"]
    assert unclear.coverage == "tried too briefly"


def test_an_attack_that_does_not_fit_is_not_covered() -> None:
    unfit = Skipped("membership", "Membership", "There are no records that the model did not see.")
    row = rows(skipped=(unfit,))["membership inference"]
    assert (row.coverage, row.why) == ("not covered", unfit.reason)


def test_a_guarantee_proves_what_it_bounds_and_nothing_else() -> None:
    found = rows(guarantee="epsilon 2 at delta 1e-05")
    assert found["reconstruction"].coverage == "proved"
    assert found["NISTAML.033 membership inference"].coverage == "proved"
    assert found["exfiltration"].coverage == "not covered"
    assert found["NISTAML.034 property inference"].coverage == "not covered"


def test_advice_measures_nothing() -> None:
    advice = Finding("private-training", "protection", None, "t", "succeeded", "none", "m", "c")
    assert {row.coverage for row in scope([advice], [])} == {"not covered"}
