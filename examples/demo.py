"""``make demo``: audit three models that people have, and point at the reports.

1. A scikit-learn pipeline on the bundled breast-cancer table: a scaler and a logistic regression.
2. A small convolutional network on the bundled digits.
3. A network with one hidden ReLU layer, trained to a perfect fit on ten pictures, which it gives away.

Everything that follows is the ordinary ``divulge train``, ``divulge audit`` and ``divulge history``.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import sys
from pathlib import Path

CNN = "--data digits --rows 1200 --model two-conv --epochs 12 --seed 0"
TEN = (
    "--data digits --binary --rows 10 --centred --widths 64,64,1 --bias first --initial-scale 0.003 "
    "--learning-rate 1 --momentum 0.9 --epochs 300 --batch-size 0 --precision float64 --seed 0"
)
SECONDS = {"ward": 30, "digits-cnn": 35, "ten-pictures": 60}


def main() -> None:
    """Make the models, audit them, and say where to look."""
    parser = argparse.ArgumentParser(prog="python examples/demo.py", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="where models and reports are written")
    out = parser.parse_args().out
    ward = make_ward(out / "ward")
    divulge(f"train {CNN} --out {out / 'digits-cnn'}")
    divulge(f"train {TEN} --out {out / 'ten-pictures'}")
    targets = {"ward": ward, **{name: str(out / name) for name in ("digits-cnn", "ten-pictures")}}
    for name, target in targets.items():
        divulge(f"audit {target} --out {out / name / 'audit'} --time {SECONDS[name]}s --price 1.50 {_forms()} --seed 0")
    divulge(f"history {out} --out {out}")
    print(f"\nOpen {out / 'history.html'} in a browser.")


def make_ward(folder: Path) -> str:
    """Fit the pipeline, write it and its table, and return what to audit."""
    import joblib
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    table = load_breast_cancer()
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("patients", slice(None, 400)), ("others", slice(400, None))):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*table.feature_names, "benign"])
            writer.writerows([*x, y] for x, y in zip(table.data[rows], table.target[rows], strict=True))
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(table.data[:400], table.target[:400])
    joblib.dump(model, folder / "model.joblib")
    return (
        f"{folder / 'model.joblib'} --trust-pickle --data {folder / 'patients.csv'} --target benign "
        f"--unseen {folder / 'others.csv'}"
    )


def divulge(line: str) -> None:
    """Run one command as the shell would."""
    from divulge.cli import app

    print(f"\n$ divulge {line}", flush=True)
    try:
        app(shlex.split(line), standalone_mode=False)
    except SystemExit as stop:
        if stop.code:
            sys.exit(stop.code)


def _forms() -> str:
    """The forms of a report beside HTML and JSON: a PDF needs a library of the system."""
    try:
        import weasyprint  # noqa: F401
    except (ImportError, OSError):
        return "--format markdown"
    return "--format markdown --format pdf"


if __name__ == "__main__":
    main()
