"""The gate for a build, run as the shell script that the workflow runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from divulge.cli import app

GATE = Path(__file__).parents[2] / "examples" / "ci" / "gate.sh"
TRAIN = "train --data iris --rows 40 --widths 4,3,3 --epochs 2 --quiet --out"


@pytest.mark.slow
def test_the_gate_exits_as_the_audit_and_leaves_its_report(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, [*TRAIN.split(), str(tmp_path / "model")]).exit_code == 0
    here = str(Path(sys.executable).parent)
    environment = {
        **os.environ, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}", "TIME": "3s",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }  # fmt: skip

    def gate(fail_on: str, *options: str) -> int:
        command = ["bash", str(GATE), "model", "audit", "--access", "value", *options]
        return subprocess.run(command, cwd=tmp_path, env={**environment, "FAIL_ON": fail_on}).returncode

    assert gate("high") == 5
    log = json.loads((tmp_path / "audit" / "report.sarif").read_text())
    assert log["runs"][0]["results"]
    assert "gives away" in (tmp_path / "summary.md").read_text()
    assert gate("critical", "--resume", "audit") in (0, 6)  # 6 where the machine was too slow for every attack
    assert (tmp_path / "summary.md").read_text().count("gives away") >= 2
