"""The notebooks of examples/ on the site, with their outputs.

The tests keep each notebook that they execute in ``build/notebooks``. What is missing there, or older than the
notebook, is executed here, one notebook a core, each in an empty folder of its own.
"""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
EXECUTED = ROOT / "build" / "notebooks" / "examples"
SECONDS = 300  # a cell, at most


@event_priority(100)  # before mkdocs-jupyter looks for notebooks
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every example notebook, executed, to the files of the site."""
    notebooks = sorted((ROOT / "examples").glob("*.ipynb"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each notebook runs in a process of its own
        list(pool.map(_execute, [notebook for notebook in notebooks if _is_stale(notebook)]))
    for notebook in notebooks:
        files.append(
            File(
                f"examples/{notebook.name}",
                src_dir=str(EXECUTED.parent),
                dest_dir=config.site_dir,
                use_directory_urls=config.use_directory_urls,
            )
        )
    return files


def _is_stale(notebook: Path) -> bool:
    executed = EXECUTED / notebook.name
    return not executed.exists() or executed.stat().st_mtime < notebook.stat().st_mtime


def _execute(notebook: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    content = nbformat.read(notebook, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(content, timeout=SECONDS, resources={"metadata": {"path": folder}}).execute()
    EXECUTED.mkdir(parents=True, exist_ok=True)
    nbformat.write(content, EXECUTED / notebook.name)
