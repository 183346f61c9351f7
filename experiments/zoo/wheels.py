"""Files inside public wheels: downloaded once by pip, kept in a cache folder, never in the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

CACHE = Path(os.environ.get("DIVULGE_ZOO", Path.home() / ".cache" / "divulge-zoo"))


class NotThere(Exception):
    """A wheel cannot be had here."""


def file_of(wheel: str, path: str) -> Path:
    """A file inside a wheel, such as ``file_of("magika==1.0.3", "magika/models/standard_v3_3/model.onnx")``."""
    folder = CACHE / wheel
    if not (folder / path).is_file():
        downloaded = CACHE / "wheels" / wheel
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(downloaded), wheel]
        done = subprocess.run(command, capture_output=True, text=True)
        packed = next(downloaded.glob("*.whl"), None)
        if packed is None:
            raise NotThere(f"pip could not download {wheel}: {done.stderr.strip().splitlines()[-1:]}")
        with zipfile.ZipFile(packed) as archive:
            archive.extractall(folder)
    if not (folder / path).is_file():
        raise NotThere(f"{wheel} holds no {path}")
    return folder / path
