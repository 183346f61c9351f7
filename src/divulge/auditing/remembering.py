"""Can they get my training data out of it? By the holder of the weights, and by a client who first extracts a copy."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from divulge.auditing.copying import extract
from divulge.auditing.finding import Adversary, Finding, Outcome, Picture, Table, severity_of
from divulge.auditing.probe import Probe, TimeUp, deadline
from divulge.auditing.target import Target
from divulge.errors import DivulgeError, UnsupportedModel
from divulge.oracles.base import Access, Spent
from divulge.report.pictures import picture_grid

SHOWN = 10
STARTS = 200
"""Random starts of the model inversion that the attack is compared with."""
BATCHES = 2
UNLIKELY = 0.01
"""Matches count if so many would come by chance with less than this probability."""
TOLD_THE_MEAN = "The attacker was told the mean that was subtracted from the training inputs."
_SOURCE: dict[Adversary, str] = {
    "holder of the weights": "out of the weights",
    "prediction client": "through predictions alone",
}
LARGE = 200_000
"""Parameters from which on the time, not a fixed number of restarts, decides how long the attack goes on."""


def _weights_obstacle(target: Target) -> str:
    from divulge.reconstruction.network import read

    if not target.grants("weights") or target.model is None:
        return f"the access granted ({target.access}) does not include the weights."
    if target.kind in ("linear", "smooth"):
        return f"it is {target.description}; reconstruction by the KKT conditions is for ReLU networks."
    try:
        read(target.model)
    except UnsupportedModel as error:
        return str(error)
    return ""


def _run_weights(target: Target, seconds: float) -> Finding:
    assert target.model is not None
    started = time.perf_counter()
    found = _reconstruct(target.model, target, seconds)
    judged = _judge(target, found)
    left = seconds - (time.perf_counter() - started)
    told = ["--know-mean"] if target.mean is not None else []
    return _finding(
        target, judged, found, name="data-from-weights", adversary="holder of the weights", ledger=Spent(),
        tables=_beside(target, judged, left),
        seconds=time.perf_counter() - started,
        command=target.command("reconstruct", *target.data_option, *told),
        way="Whoever holds the weights", notes=(*_diagnosis(target), *found.notes),
    )  # fmt: skip


def _diagnosis(target: Target) -> tuple[str, ...]:
    """How near the model is to where its weights tell its data, where that can be said."""
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
    if target.kind not in ("one hidden ReLU layer", "piecewise linear") or (
        target.kind == "piecewise linear" and target.model is not None
    ):
        return f"it is {target.description}; the chain needs one hidden ReLU layer, which can be extracted exactly."
    return ""


def _run_chain(target: Target, seconds: float) -> Finding:
    from divulge.reconstruction import balance

    started = time.perf_counter()
    access: Access = "value"
    adversary: Adversary = "prediction client"
    oracle = target.oracle(access)
    with deadline(seconds):
        copy = extract(target, oracle, access)
        model = balance.from_extraction(copy)
    left = seconds - (time.perf_counter() - started)
    if left <= 0:
        raise TimeUp("The extraction took all the time; there was none left to reconstruct from the copy.")
    held = target.model is not None
    found = _reconstruct(model, target, left / 2 if held else left, of="copy")
    judged = _judge(target, found)
    notes = [f"The copy was {'exact' if copy.exact else 'not exact: ' + copy.reason}."]
    if held and target.model is not None:
        notes.append(_beside_true_weights(target, left / 2))
    return _finding(
        target, judged, found, name="chain-to-training-data", adversary=adversary, ledger=copy.ledger,
        seconds=time.perf_counter() - started, way="A client of the prediction endpoint",
        command=target.command("audit", "--access", "value", *target.data_option),
        notes=tuple(notes),
    )  # fmt: skip


def _beside_true_weights(target: Target, seconds: float) -> str:
    assert target.model is not None
    try:
        judged = _judge(target, _reconstruct(target.model, target, seconds))
    except DivulgeError as error:
        return f"The same from the true weights did not finish: {error}"
    return f"The same from the true weights: {judged['matched']} records matched."


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


def _judge(target: Target, found: Any) -> dict[str, Any]:
    """How many training records the samples match at a threshold that unseen inputs do not reach."""
    if target.inputs is None:
        return {"matched": None, "samples": len(found.samples)}
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


def _finding(
    target: Target, judged: dict[str, Any], found: Any, *, name: str, adversary: Adversary, ledger: Spent,
    seconds: float, command: str, way: str, notes: tuple[str, ...], tables: tuple[Table, ...] = (),
) -> Finding:  # fmt: skip
    matched, total = judged["matched"], 0 if target.inputs is None else len(target.inputs)
    if matched is None:
        outcome: Outcome = "failed"
        title = f"{judged['samples']} candidate training records, not compared with any data"
        certainty = "No training data was given to compare with, so nothing is claimed."
    else:
        outcome = "failed" if matched == 0 else "succeeded" if matched >= max(2, total // 10) else "partly"
        if judged.get("by_chance", 0.0) > UNLIKELY:
            outcome = "failed"
        if target.unseen is None and outcome == "succeeded":
            outcome = "partly"
        title = f"{matched} of {total} training records came back {_SOURCE[adversary]}"
        if outcome == "failed":
            chance = ", beyond what chance explains" if matched else ""
            title = f"No training records came back {_SOURCE[adversary]}{chance}"
        control = judged["control"]
        counts = f"above a correlation of {judged['threshold']:.2f}"
        if target.shape is None:
            counts = f"when its columns are off by less than {1 - judged['threshold']:.2g} times their spread"
        certainty = (
            f"A record counts {counts}; {control:.1%} of inputs the model never saw reach that."
            if control is not None
            else "No unseen inputs were given as a control, so likeness by chance is not ruled out."
        )
    measures: dict[str, Any] = {key: value for key, value in judged.items() if key != "match" and value is not None}
    return Finding(
        name=name,
        question="training-data",
        adversary=adversary,
        title=title,
        outcome=outcome,
        severity=severity_of("training-data", adversary, outcome),
        meaning=f"{way} can compute inputs that the model was trained on."
        if outcome != "failed"
        else "The attack ran and returned nothing that can be told from inputs the model never saw.",
        certainty=certainty,
        measures={**measures, "residual": float(found.residual)},
        ledger=ledger,
        seconds=seconds,
        seed=target.seed,
        remedies=("Train on more records, or stop earlier: the attack needs a network that fits its data perfectly.",)
        if outcome != "failed"
        else (),
        command=command,
        pictures=_pictures(target, judged, found, _SOURCE[adversary]),
        tables=tables,
        notes=(*notes, TOLD_THE_MEAN) if target.mean is not None else notes,
    )


def _pictures(target: Target, judged: dict[str, Any], found: Any, source: str) -> tuple[Picture, ...]:
    match = judged.get("match")
    if target.shape is None or match is None or len(found.samples) == 0:
        return ()
    order = match.correlation.argsort(descending=True)[:SHOWN]
    rows = [("training", match.truth[order]), ("rebuilt", match.rebuilt[order])]
    captions = [[""] * len(order), [f"{float(match.correlation[i]):.2f}" for i in order]]
    png = picture_grid(rows, target.shape, captions=captions)
    words = f"{len(order)} training inputs above the reconstruction closest to each"
    return (Picture(png, words, f"Training inputs, and what came {source}, with their correlation."),)


PROBES = (
    Probe("data-from-weights", "Training data from the weights", _weights_obstacle, _run_weights, share=4.0),
    Probe("chain-to-training-data", "From predictions to training data", _chain_obstacle, _run_chain, share=5.0),
)
