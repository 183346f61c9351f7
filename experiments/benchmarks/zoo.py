"""Forty models and files of other people through the audit: what happened, and whether anything it says is false.

Files come from public wheels (``experiments.zoo.wheels``); models of other libraries are fitted to scikit-learn's data.
What a report says of copies and severities is compared with the answers of the library's own runtime, on rows that the
audit was not given. Where transformers, Keras or CatBoost are not installed, or a wheel cannot be downloaded, the row
says so: ``.venv-extras/bin/python -m experiments zoo`` has them. The table is written to results/zoo.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from divulge.core.errors import DivulgeError
from experiments.claims.checks import copies, last_layers, secrecy, verdicts
from experiments.claims.checks.checked import wrong
from experiments.claims.recording import audited
from experiments.claims.subject import Subject
from experiments.plan import Plan
from experiments.zoo.files import FILES
from experiments.zoo.libraries import LIBRARIES
from experiments.zoo.wheels import NotThere

SECONDS = 60.0
SEVERITIES = ("critical", "high", "medium", "low", "none")


def one(make: Callable[[], Subject], seed: int) -> dict[str, Any]:
    """One model through the audit; a refusal is the sentence, and anything else is a traceback."""
    try:
        subject = make()
    except NotThere as error:
        return {"happened": "not here", "sentence": str(error)}
    try:
        done = audited(subject, time_allowed=SECONDS, seed=seed)
    except DivulgeError as error:
        return {"happened": "refused", "sentence": str(error)}
    except Exception as error:
        return {"happened": "traceback", "sentence": f"{type(error).__name__}: {error}"}
    claims = [claim for part in (copies, last_layers, verdicts, secrecy) for claim in part.check(done, subject)]
    false = wrong(claims)
    findings = [found for found in done.report["findings"] if found["outcome"] != "inconclusive"]
    findings.sort(key=lambda found: SEVERITIES.index(found["severity"]))
    return {
        "happened": "answered" if findings else "no conclusion",
        "verdict": done.report["state"] if done.report["severity"] == "none" else done.report["severity"],
        "finding": findings[0]["title"] if findings else "",
        "findings": len(findings),
        "faults": [skip["reason"] for skip in done.report["skipped"] if "fault of its own" in skip["reason"]],
        "seconds": done.seconds,
        "claims": len(claims),
        "wrong": len(false),
        "false_claims": [claim.as_dict() for claim in false],
    }


def table(results: dict[str, Any]) -> str:
    """The results as a table of Markdown, and what they add up to."""
    lines = [
        "| model | what happened | verdict | first finding | seconds | claims checked | false |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in results.items():
        said = row.get("finding") or row.get("sentence", "")
        figures = f"{row['seconds']:.0f} | {row['claims']} | {row['wrong']}" if "seconds" in row else " | | "
        verdict = row.get("verdict", "")
        lines.append(f"| {name} | {row['happened']} | {verdict} | {said.replace('|', '/')} | {figures} |")
    answered = sum(row["happened"] == "answered" for row in results.values())
    false = sum(row.get("wrong", 0) for row in results.values())
    broken = sum(row["happened"] == "traceback" or bool(row.get("faults")) for row in results.values())
    checked = sum(row.get("claims", 0) for row in results.values())
    total = f"{answered} of {len(results)} have an answer; {false} of {checked} claims checked are false"
    total += f"; {broken} tracebacks."
    return "\n".join([*lines, "", total, ""])


def run(plan: Plan) -> dict[str, Any]:
    """Every model and file, and the table of all that were run so far."""
    torch.set_num_threads(1)
    makers: dict[str, Callable[[], Subject]] = {name: shipped.subject for name, shipped in FILES.items()} | LIBRARIES
    results = plan.measure("zoo", {name: partial(one, make, plan.seed) for name, make in makers.items()})
    path = plan.out / "zoo.json"
    every = json.loads(path.read_text()) if path.is_file() else results
    (plan.out / "zoo.md").write_text(table({name: every[name] for name in makers if name in every}))
    print(table(every).splitlines()[-1])
    return results
