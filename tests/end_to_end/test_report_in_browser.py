"""The report in a real browser: quiet, self-contained, readable on a phone, and without accessibility violations."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import divulge
from divulge import datasets

HERE = Path(__file__).parent


def _load(name: str, path: Path) -> object:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


browser_module = _load("divulge_test_browser", HERE / "browser.py")
pytestmark = pytest.mark.skipif(
    browser_module.CHROMIUM is None, reason="no Chromium here; install the package chromium to run this"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real audit of a small linear model: quick, with a table of records."""
    from sklearn.linear_model import Ridge

    table = datasets.load("diabetes")
    model = Ridge(alpha=0.1).fit(table.train.X.double().numpy(), table.train.y.double().numpy())
    report = divulge.audit(model, training_data=table, time=30, name="Ridge on <diabetes>")
    assert report.findings
    return report.save(tmp_path_factory.mktemp("report") / "report.html")


@pytest.mark.slow
def test_the_page_is_quiet_self_contained_and_accessible(page: Path, tmp_path: Path) -> None:
    with browser_module.browser(tmp_path / "profile") as tab:
        for width in (390, 1280):
            tab.open(page, width=width, dark=width == 390)
            assert tab.complaints() == []
            assert tab.requests() == []
            assert tab.evaluate("document.title").startswith("What Ridge on <diabetes>")
            assert tab.evaluate("[...document.images].every(i => i.alt.length > 0 && i.naturalWidth > 0)")
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
            tab.screenshot(tmp_path / f"{width}.png")
            assert (tmp_path / f"{width}.png").stat().st_size > 10_000
        axe = _axe(tmp_path)
        if axe is None:
            pytest.skip("axe-core could not be fetched from the npm registry; the rest of this test passed")
        tab.call("Page.setBypassCSP", enabled=True)
        for dark in (False, True):
            tab.open(page, width=1280, dark=dark)
            tab.evaluate(axe)
            found = json.loads(tab.evaluate("axe.run().then(r => JSON.stringify(r.violations))"))
            serious = [v["id"] + ": " + v["help"] for v in found if v["impact"] in ("serious", "critical")]
            assert serious == []


def _axe(folder: Path) -> str | None:
    """axe-core's source: from $DIVULGE_AXE, or from the npm registry."""
    if os.environ.get("DIVULGE_AXE"):
        return Path(os.environ["DIVULGE_AXE"]).read_text()
    npm = shutil.which("npm")
    if npm is None:
        return None
    packed = subprocess.run(
        [npm, "pack", "--silent", "axe-core@4.10.3"], cwd=folder, capture_output=True, timeout=120, check=False
    )
    if packed.returncode:
        return None
    subprocess.run(["tar", "xzf", "axe-core-4.10.3.tgz"], cwd=folder, check=True)
    return (folder / "package" / "axe.min.js").read_text()
