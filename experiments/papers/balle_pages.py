"""What the experiments of Balle et al. 2022 report: how good reconstructions are, and the table of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from divulge import informed


def judged(
    records: Sequence[informed.Record], targets: Any, held: Any, *, shape: tuple[int, ...],
    classifier: nn.Module | None = None,
) -> dict[str, Any]:  # fmt: skip
    """How good reconstructions are, beside what needs no attack, and how well they know it."""
    score = informed.score(records, *targets, *held, shape=shape, classifier=classifier)
    predicted = np.array([record.predicted_error for record in records])
    trusted = np.array([record.trusted for record in records])
    right = (score.mse < score.baselines.nearest).numpy()
    return {
        **score.as_dict(),
        "training_runs": max(record.training_runs for record in records),
        "trusted": int(trusted.sum()),
        "trusted_and_wrong": int((trusted & ~right).sum()),
        "right_and_doubted": int((right & ~trusted).sum()),
        "predicted": float(np.median(predicted)),
        "predicted_within_3x": int((np.abs(np.log(predicted / score.mse.numpy())) <= np.log(3)).sum()),
        "each_predicted": predicted.tolist(),
        "seconds_a_target": float(np.mean([record.seconds for record in records])),
    }


def table(results: dict[str, Any]) -> str:
    """Every mean squared error as Markdown, beside the paper's, and how far the attack itself trusts its records."""
    lines = ["| experiment | paper | mean squared error | median | nearest known or shadow row | trusted (wrongly) | "
             "expected within 3x | targets | runs each |", "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for name, result in results.items():
        for label, part in _parts(name, result):
            if "refused" in part:
                refusal = f"refused: {part['refused'][:60]}..."
                lines.append(f"| {label} | {_number(part.get('paper'))} | {refusal} | | | | | | |")
            elif "mean_mse" in part:
                lines.append(f"| {label} | {' | '.join(_cells(part, part.get('paper', result.get('paper'))))} |")
    return "\n".join(lines) + "\n"


def _cells(part: dict[str, Any], paper: float | None) -> list[str]:
    cells = [_number(value) for value in (paper, part["mean_mse"], part["median_mse"], part["nearest"])]
    trust = f"{part['trusted']} ({part['trusted_and_wrong']})"
    runs = f"{part['training_runs']:.0f}"
    return [*cells, trust, str(part["predicted_within_3x"]), str(len(part["targets"]["mse"])), runs]


def _parts(name: str, result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    inner = [(f"{name}: {key}", part) for key, part in result.items() if isinstance(part, dict) and "mean_mse" in part]
    curve = [(f"{name}: {count}", part) for count, part in result.get("curve", {}).items()]
    return [(name, result), *curve, *inner]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
