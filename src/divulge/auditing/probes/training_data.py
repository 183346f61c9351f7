"""Can they get my training data out of it? By the holder of the weights, and by a client who first extracts a copy."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from divulge.auditing import commands
from divulge.auditing.exposed import most_exposed
from divulge.auditing.probes.exact_copy import extract, too_deep_to_copy
from divulge.auditing.probes.probe import Probe, TimeUp, deadline
from divulge.auditing.sentences import records
from divulge.auditing.severity import severity_of
from divulge.auditing.target import Target
from divulge.core.errors import DivulgeError, UnsupportedModel
from divulge.core.plots import picture_grid
from divulge.oracles.ledger import Spent
from divulge.report.findings import Adversary, Finding, Outcome, Picture, Table

SHOWN = 10
STARTS = 200
"""Random starts of the model inversion that the attack is compared with."""
BATCHES = 2
UNLIKELY = 0.01
"""Matches count if so many would come by chance with less than this probability."""
_SOURCE: dict[Adversary, records.Source] = {
    "holder of the weights": "out of the weights",
    "prediction client": "through predictions alone",
}
LARGE = 200_000
"""Parameters from which on the time, not a fixed number of restarts, decides how long the attack runs."""


def _weights_obstacle(target: Target) -> str:
    from divulge.models.weight_matrices import read

    if not target.grants("weights") or target.model is None:
        return f"the access granted ({target.access}) does not include the weights."
    if target.kind in ("linear", "smooth", "constant"):
        return f"it is {target.description}; this attack computes records out of networks with ReLU layers."
    try:
        read(target.model)
    except UnsupportedModel as error:
        return str(error)
    return _no_data(target)


def _no_data(target: Target) -> str:
    return "no training data was given to compare reconstructions with." if target.inputs is None else ""


def _run_weights(target: Target, seconds: float) -> Finding:
    assert target.model is not None
    started = time.perf_counter()
    found = _reconstruct(target.model, target, seconds)
    judged = judge(target, found)
    left = seconds - (time.perf_counter() - started)
    return finding(
        target, judged, found, name="data-from-weights", adversary="holder of the weights", ledger=Spent(),
        tables=_beside(target, judged, left),
        seconds=time.perf_counter() - started,
        command=commands.reconstruct(target),
        notes=(*_diagnosis(target), *found.notes),
    )  # fmt: skip


def _diagnosis(target: Target) -> tuple[str, ...]:
    """How near the model is to the point where the KKT conditions hold, where that can be computed."""
    from divulge.reconstruction import diagnose

    if target.model is None or target.inputs is None or target.labels is None:
        return ()
    try:
        return (diagnose(target.model, target.inputs, target.labels).sentence(),)
    except DivulgeError:
        return ()


def _chain_obstacle(target: Target) -> str:
    if not target.grants("value"):
        return f"the access granted ({target.access}) does not include values."
    if target.output_dim != 1:
        return "the chain from answers to training data is for models with one output."
    if target.kind_is_known and target.kind not in ("one hidden ReLU layer", "piecewise linear"):
        return f"it is {target.description}; the chain needs a ReLU network, which can be extracted exactly."
    obstacle = too_deep_to_copy(target)
    if obstacle:
        return obstacle
    return _no_data(target)


def _run_chain(target: Target, seconds: float) -> Finding:
    from divulge.auditing.chain import weights_of_copy

    started = time.perf_counter()
    with deadline(seconds):
        copy = extract(target, "value")
        model = weights_of_copy(copy)
    left = seconds - (time.perf_counter() - started)
    if left <= 0:
        raise TimeUp("The extraction took all the time; there was none left to reconstruct from the copy.")
    held = target.model is not None
    found = _reconstruct(model, target, left / 2 if held else left, of="copy")
    judged = judge(target, found)
    notes = [records.chain_copy(copy.exact, copy.reason)]
    if held:
        notes.append(_beside_true_weights(target, left / 2))
    return finding(
        target, judged, found, name="chain-to-training-data", adversary="prediction client", ledger=copy.cost,
        seconds=time.perf_counter() - started, command=commands.audit(target, access="value"), notes=tuple(notes),
    )  # fmt: skip


def _beside_true_weights(target: Target, seconds: float) -> str:
    assert target.model is not None
    try:
        judged = judge(target, _reconstruct(target.model, target, seconds))
    except DivulgeError as error:
        return f"The same from the true weights did not finish: {error}"
    return records.true_weights(judged["matched"])


def _reconstruct(model: nn.Module, target: Target, seconds: float, *, of: str = "weights") -> Any:
    from divulge import reconstruction

    large = _large(model)
    with deadline(seconds):
        return reconstruction.from_weights(
            model,
            seed=target.seed,
            mean=target.mean,
            value_range=(0.0, 1.0) if target.shape is not None else None,
            shape=target.shape,
            batches=1 if large else BATCHES,
            seconds=0.8 * seconds if large else None,
            checkpoint=None if target.folder is None else target.folder / f"restarts-{of}",
            workers=target.workers,
        )


def judge(target: Target, found: Any) -> dict[str, Any]:
    """How many training records the samples match at a threshold that unseen inputs do not reach."""
    assert target.inputs is not None
    match = found.match(target.inputs, unseen=target.unseen, mean=target.mean)
    judged = {
        "match": match,
        "matched": match.found(),
        "samples": len(found.samples),
        "threshold": match.threshold,
        "best": float(match.correlation.max()),
        "control": match.false_positive_rate,
    }
    if target.unseen is not None:
        judged["by_chance"] = _chance(match.found(), len(target.inputs), match.false_positive_rate, len(target.unseen))
    came_back = match.correlation > match.threshold
    exposed = most_exposed(target)
    top = exposed[: max(10, len(exposed) // 20)]
    if len(exposed) > len(top):
        judged["most_exposed_found"] = f"{int(came_back[top].sum())} of {len(top)}"
    if bool(came_back.any()):
        judged["mean_squared_error"] = float((match.rebuilt - match.truth)[came_back].square().mean())
        if match.ssim is not None:
            judged["ssim"] = float(match.ssim[came_back].median())
        if target.unseen is not None:
            nearest = torch.cdist(target.inputs[came_back], target.unseen).amin(dim=1).square() / target.input_dim
            judged["nearest_unseen_mean_squared_error"] = float(nearest.mean())
    return judged


def _chance(matched: int, records: int, rate: float, unseen: int) -> float:
    """The probability that so many records match if training records match no more often than unseen inputs do."""
    from scipy.stats import binom

    return float(binom.sf(matched - 1, records, (rate * unseen + 1) / (unseen + 1)))


def _beside(target: Target, judged: dict[str, Any], seconds: float) -> tuple[Table, ...]:
    """What counts as found by the same measure where nothing was attacked, or by simpler means."""
    from divulge.reconstruction import baselines, matching

    if target.model is None or target.inputs is None or _large(target.model):
        return ()
    scored: dict[str, Any] = {"this attack": judged["matched"]}
    training, threshold = target.inputs, judged["threshold"]

    def count(samples: Tensor) -> int:
        return matching.match(samples, training, mean=target.mean, shape=target.shape, threshold=threshold).found()

    try:
        with deadline(seconds):
            scored["the first layer's weights as inputs"] = count(baselines.first_layer(target.model))
            inverted = baselines.model_inversion(target.model, starts=STARTS, mean=target.mean, seed=target.seed)
            scored["inputs that drive the output up or down"] = count(inverted)
            broken = _reconstruct(baselines.broken(target.model, seed=target.seed), target, seconds, of="broken")
            scored["this attack on broken weights"] = count(broken.samples) if len(broken.samples) else 0
    except DivulgeError as error:
        scored["the rest"] = f"not measured: {error}"
    return (Table("Training records found by the same measure", ("by", "records"), tuple(scored.items())),)


def _large(model: nn.Module) -> bool:
    return sum(parameter.numel() for parameter in model.parameters()) > LARGE


def _outcome(target: Target, judged: dict[str, Any]) -> Outcome:
    """What came of it, by the written rule."""
    assert target.inputs is not None
    matched = judged["matched"]
    too_wide = target.shape is None and 1 - judged["threshold"] >= 1  # wider than the spread of the columns
    if matched == 0 or too_wide or judged.get("by_chance", 0.0) > UNLIKELY:
        return "failed"
    enough = matched >= max(2, len(target.inputs) // 10)
    return "succeeded" if enough and target.unseen is not None else "partly"


def finding(
    target: Target, judged: dict[str, Any], found: Any, *, name: str, adversary: Adversary, ledger: Spent,
    seconds: float, command: str, notes: tuple[str, ...], tables: tuple[Table, ...] = (),
    source: records.Source | None = None,
) -> Finding:  # fmt: skip
    outcome, source = _outcome(target, judged), source or _SOURCE[adversary]
    threshold = judged["threshold"]
    counts = records.picture_threshold(threshold) if target.shape else records.table_threshold(1 - threshold)
    measures: dict[str, Any] = {key: value for key, value in judged.items() if key != "match" and value is not None}
    return Finding(
        name=name,
        question="training-data",
        adversary=adversary,
        title=records.title(outcome, judged["matched"], 0 if target.inputs is None else len(target.inputs), source),
        outcome=outcome,
        severity=severity_of("training-data", adversary, outcome),
        meaning=records.meaning(outcome, source),
        certainty=records.certainty(counts, judged["control"]),
        measures={**measures, "residual": float(found.residual)},
        ledger=ledger,
        seconds=seconds,
        seed=target.seed,
        untested=(records.train_longer_on_more(),) if outcome in ("succeeded", "partly") else (),
        command=command,
        pictures=_pictures(target, judged, found, source),
        tables=tables,
        notes=(*notes, records.mean_was_given()) if target.mean is not None else notes,
        worst_record=_worst_record(judged["match"]) if outcome in ("succeeded", "partly") else "",
    )


def _worst_record(match: Any) -> str:
    best = int(match.correlation.argmax())
    return records.worst_matched(best, float(match.correlation[best]))


def _pictures(target: Target, judged: dict[str, Any], found: Any, source: str) -> tuple[Picture, ...]:
    match = judged.get("match")
    if target.shape is None or match is None or len(found.samples) == 0:
        return ()
    order = match.correlation.argsort(descending=True)[:SHOWN]
    rows = [("training", match.truth[order]), ("rebuilt", match.rebuilt[order])]
    captions = [[""] * len(order), [f"{float(match.correlation[i]):.2f}" for i in order]]
    png = picture_grid(rows, target.shape, captions=captions)
    words = f"{len(order)} training inputs above the reconstruction closest to each"
    caption = f"Training inputs, and what came {source}, with their correlation."
    return (Picture(png, words, caption, records=True),)


def _seconds(target: Target) -> float:
    """From runs on one core: restarts of a descent that grows with the weights; a large network takes what it gets."""
    weights = target.parameters or 30 * target.input_dim
    return 120.0 if weights > LARGE else 20.0 + 5e-4 * weights


PROBES = (
    Probe("data-from-weights", "Training data from the weights", _weights_obstacle, _run_weights, _seconds, "high"),
    Probe("chain-to-training-data", "From predictions to training data", _chain_obstacle, _run_chain, _seconds,
          "critical"),
)  # fmt: skip
