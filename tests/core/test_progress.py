"""Progress reaches a listener, shows in a notebook when it takes long, and is silent everywhere else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from divulge.core import progress

CELL = """
import time, divulge
from divulge.core import progress
progress.PATIENCE = {patience}
{before}
for i in range(4):
    progress.report("<b>searching</b>", i, 4, queries=i)
    time.sleep(0.3)
"""


def test_reports_reach_the_listener_inside_its_block_only():
    steps: list[progress.Step] = []
    with progress.listening(steps.append):
        progress.report("one", 1, 2, found=3)
    progress.report("two")
    assert steps == [progress.Step("one", 1, 2, {"found": 3})]


def test_a_watcher_may_stop_a_computation():
    def stop() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError), progress.watched(stop):
        progress.tick()
    progress.tick()


def test_a_program_prints_nothing():
    program = "import time\nfrom divulge.core import progress\nprogress.PATIENCE = 0\nprogress.report('x', 1, 2)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=60)
    assert done.stdout == done.stderr == b""


def _run(patience: float, before: str = "") -> list[str]:
    """The HTML that a notebook was sent while a cell ran."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(CELL.format(patience=patience, before=before))]
    )
    sent: list[str] = []

    class Client(nbclient.NotebookClient):  # type: ignore[misc, name-defined]
        def process_message(self, message, *rest):  # type: ignore[no-untyped-def]
            sent.append(message["content"].get("data", {}).get("text/html"))
            return super().process_message(message, *rest)

    Client(notebook, timeout=120, kernel_name="python3").execute()
    left = [output["data"].get("text/html", "") for output in notebook.cells[0].outputs if "data" in output]
    assert not any(left), "the bar stays behind when the cell has ended"
    return [page for page in sent if page]


@pytest.mark.slow
def test_a_notebook_shows_a_bar_that_goes_when_the_cell_ends():
    pages = _run(patience=0.2)
    assert pages
    assert all("<progress" in page and "&lt;b&gt;searching" in page for page in pages)


@pytest.mark.slow
def test_a_notebook_shows_nothing_of_what_is_quick_or_silenced():
    assert _run(patience=60) == []
    assert _run(patience=0.0, before="divulge.progress.silence()") == []
