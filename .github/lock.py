"""Writes requirements.lock: the versions of constraints.txt with the SHA-256 of every file that PyPI holds of them.

    python .github/lock.py

torch is left out: its CPU build comes from an index of its own. Install with

    pip install torch==VERSION+cpu --index-url https://download.pytorch.org/whl/cpu
    pip install --require-hashes --no-deps --requirement requirements.lock
"""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
INDEX = "https://pypi.org/simple"
LEFT_OUT = {"torch"}


def hashes(pinned: str) -> tuple[str, list[str]]:
    """The pinned package and the hashes of its files."""
    name, version = pinned.split("==")
    page = urlopen(f"{INDEX}/{re.sub(r'[-_.]+', '-', name).lower()}/", timeout=120).read().decode()
    found = set()
    for file, digest in re.findall(r'/([^/"#]+)#sha256=([0-9a-f]{64})', page):
        stem = re.sub(r"\.(tar\.gz|zip|whl)$", "", file)
        distribution = re.sub(r"[-_.]+", "[-_.]+", re.escape(re.sub(r"[-_.]+", "-", name)).replace(r"\-", "-"))
        if re.fullmatch(rf"{distribution}-{re.escape(version)}(-.*)?", stem, re.IGNORECASE):
            found.add(digest)
    return pinned, sorted(found)


def main() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().split() if line.split("==")[0] not in LEFT_OUT]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(hashes, pins))
    missing = [pinned for pinned, digests in found if not digests]
    if missing:
        sys.exit(f"There is no file on {INDEX} for {', '.join(missing)}.")
    lines = [
        " \\\n".join([pinned, *(f"    --hash=sha256:{digest}" for digest in digests)]) for pinned, digests in found
    ]
    (ROOT / "requirements.lock").write_text("# written by .github/lock.py\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
