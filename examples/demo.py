"""``make demo``: audit three models that people have, and point at the reports.

1. A scikit-learn pipeline on the bundled breast-cancer table: a scaler and a logistic regression.
2. A small convolutional network on the bundled digits.
3. A network with one hidden ReLU layer, trained to a perfect fit on ten pictures, which it gives away.

Everything that follows is the ordinary ``divulge train``, ``divulge audit`` and ``divulge history``. With
``--sign-off`` the audits have ten minutes each, limits that somebody accepts, an auditor and declared controls: the
worked cases of the documentation.
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
SECONDS = {"ward": 30, "digits-cnn": 45, "ten-pictures": 50}
SIGN_OFF = (
    "--time 10m --auditor 'R. Keller' --control '1,000 queries a day for each client' --control 'access is logged'"
)
ACCEPTED = {"ward": "--accept-membership-tpr 0.05@0.01 --accept-reconstruction 0.05"}


def main() -> None:
    """Make the models, audit them, and say where to look."""
    parser = argparse.ArgumentParser(prog="python examples/demo.py", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo"), help="where models and reports are written")
    parser.add_argument("--sign-off", action="store_true", help="longer audits, as somebody would sign them")
    chosen = parser.parse_args()
    out = chosen.out
    ward = make_ward(out / "ward")
    divulge(f"train {CNN} --out {out / 'digits-cnn'}")
    divulge(f"train {TEN} --out {out / 'ten-pictures'}")
    targets = {"ward": ward, **{name: str(out / name) for name in ("digits-cnn", "ten-pictures")}}
    for name, target in targets.items():
        how = f"{SIGN_OFF} {ACCEPTED.get(name, '')}" if chosen.sign_off else f"--time {SECONDS[name]}s"
        divulge(f"audit {target} --out {out / name / 'audit'} --price 1.50 {_forms()} --seed 0 {how}")
    divulge(f"history {out} --out {out}")
    print(f"\nOpen {out / 'history.html'} in a browser.")


def make_ward(folder: Path) -> str:
    """Fit the pipeline, write it and its table, and return what to audit."""
    import joblib
    import numpy as np
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    table = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(table.data))  # chance decides who is a patient of this ward
    patients, others = order[:400], order[400:]
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("patients", patients), ("others", others)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*table.feature_names, "benign"])
            writer.writerows([*x, y] for x, y in zip(table.data[rows], table.target[rows], strict=True))
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(table.data[patients], table.target[patients])
    joblib.dump(model, folder / "model.joblib")
    return (
        f"{folder / 'model.joblib'} --trust-pickle --data {folder / 'patients.csv'} --target benign "
        f"--unseen {folder / 'others.csv'}"
    )


def divulge(line: str) -> None:
    """Run one command as the shell would."""
    from divulge.cli import app

    print(f"\n$ divulge {line}", flush=True)
    sys.argv = ["divulge", *shlex.split(line)]  # reports name the command that made them
    try:
        app(sys.argv[1:], standalone_mode=False)
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
