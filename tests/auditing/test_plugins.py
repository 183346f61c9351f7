"""Probes of the user's own: registered in the process, or brought by an installed package."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import divulge
from divulge.auditing import Finding, Probe, available_probes, register, unregister
from divulge.core.errors import InvalidInput

PLUGIN = """
from divulge.auditing import Finding, Probe

def run(target, seconds):
    inputs = target.input_dim
    return Finding("mine", "copy", "label client", f"{inputs} inputs", "succeeded", "high", "m", "c")

PROBE = Probe("mine", "An attack of mine", lambda target: "" if target.grants("value") else "it needs values.", run)
"""


def install(folder: Path, module: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip writes for a package with an entry point."""
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[divulge.probes]\nmine = {value}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, module, raising=False)


def audited(**options: Any) -> Any:
    return divulge.audit(lambda X: X.sum(axis=1), input_shape=(3,), time=20, **options)


@pytest.mark.slow
def test_an_installed_package_brings_a_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plugin_of_mine.py").write_text(PLUGIN)
    install(tmp_path, "plugin_of_mine", "plugin_of_mine:PROBE", monkeypatch)
    found = {finding.name: finding.title for finding in audited().findings}
    assert found["mine"] == "3 inputs"
    reasons = {skip.name: skip.reason for skip in audited(access="label").skipped}
    assert reasons["mine"] == "it needs values."


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("raise RuntimeError('broken')", "cannot be loaded: RuntimeError: broken"),
        ("PROBE = 3", "got a int"),
        (PLUGIN.replace('"mine", "An', '"copy-from-values", "An'), "second probe called 'copy-from-values'"),
    ],
)
def test_a_package_that_brings_no_probe_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, sentence: str
) -> None:
    (tmp_path / "broken_plugin.py").write_text(source)
    install(tmp_path, "broken_plugin", "broken_plugin:PROBE", monkeypatch)
    with pytest.raises(InvalidInput, match=sentence) as raised:
        audited()
    assert "plug-in mine" in str(raised.value)


@pytest.mark.slow
def test_a_registered_probe_runs_until_it_is_removed() -> None:
    def run(target: Any, seconds: float) -> Finding:
        return Finding("mine", "copy", "label client", "t", "failed", "none", "m", "c")

    mine = register(Probe("mine", "An attack of mine", lambda target: "", run))
    try:
        assert mine in available_probes()
        assert "mine" in {finding.name for finding in audited().findings}
        with pytest.raises(InvalidInput, match="already"):
            register(mine)
    finally:
        unregister("mine")
    assert "mine" not in {finding.name for finding in audited().findings}
    with pytest.raises(InvalidInput, match=r"divulge\.auditing\.Probe"):
        register(run)  # type: ignore[arg-type]
