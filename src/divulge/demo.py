"""``make demo``: train a small model on the bundled digits, audit it, and point at the report.

The model is the kind that gives much away: one hidden ReLU layer, trained to a perfect fit on ten pictures. Everything
that follows is the ordinary ``divulge train`` and ``divulge audit``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

TRAIN = (
    "train --data digits --binary --rows 10 --centred --widths 64,64,1 --bias first --initial-scale 0.003 "
    "--learning-rate 1 --momentum 0.9 --epochs 300 --batch-size 0 --precision float64 --seed 0"
)
AUDIT = "--time 85s --price 1.50 --format markdown --seed 0"


def main() -> None:
    """Train, audit, and say where to look."""
    parser = argparse.ArgumentParser(prog="python -m divulge.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="where the model and the report are written")
    out = parser.parse_args().out
    model, report = out / "model", out / "audit"
    for line in (f"{TRAIN} --out {model}", f"audit {model} --out {report} {AUDIT}"):
        print(f"\n$ divulge {line}", flush=True)
        code = _divulge(line)
        if code:
            sys.exit(code)
    print(f"\nOpen {report / 'report.html'} in a browser.")


def _divulge(line: str) -> int:
    import shlex

    from divulge.cli import app

    try:
        app(shlex.split(line), standalone_mode=False)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


if __name__ == "__main__":
    main()
