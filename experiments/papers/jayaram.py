"""Jayaram et al. 2020, section 5: rank against samples (figures 1 and 2) and digits hidden in noise (figure 3).

Networks are 784 -> 80 -> [hidden ...] -> output: random ones without biases and with Gaussian weights, as the paper's
theorems have them, with one output; trained ones on MNIST with ten, of which, as in the paper, the first is used. Its
three ways to choose points are here: Gaussian ones, Gaussian ones projected away from the span found so far, and
Gaussian ones for the trained network. The paper does not say whether its output is a ReLU, so random networks are
measured with a linear one, as in Theorem 3.4, and with a ReLU, behind which gradients are zero at many points. The rank
is counted twice: with the paper's threshold of 1e-5 of the largest singular value, and with the precision of float64.
Beside it stands the number of points whose gradient is not zero: a gradient that is not zero adds a direction, as the
first layer's pattern is another at every point, so that the rank is the smaller of this number and 80.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import divulge
from divulge import datasets, models
from divulge.core import workers as parallel
from divulge.span import figures, from_gradients, measure, obfuscate
from divulge.span.gradients.incremental_basis import IncrementalBasis
from divulge.training import Recipe, evaluate
from experiments.plan import Plan

THIN = ((6, 3), (6,), (6, 5, 4, 3), (3, 3), (2, 2))  # the first is the one that the caption of figure 1 names
REALISTIC = ((40,), (40, 30), (40, 30, 20), (40, 30, 20, 10))
NETWORKS = 10
"""Of each thin shape, random and trained."""
PAPER = 1e-5
DIGITS = {False: (1000, 50), True: (1000, 1000)}  # obfuscated, and by linear programme, by whether full
FLOAT64 = 32 * torch.finfo(torch.float64).eps


def run(plan: Plan) -> dict[str, Any]:
    """Write results.json, figure1.png, figure2.png and figure3.png; the JSON is returned too."""
    began, out, full = time.perf_counter(), plan.out, plan.full
    plan.check(["figure 1", "figure 2", "figure 3", "recovery"])
    usual = plan.seeds_of(10 if full else 3)
    samples = {"thin": 400 if full else 160, "realistic": 110}
    trained: dict[tuple[int, ...], nn.Module] = {}
    result: dict[str, Any] = {"seed": plan.seed, "full": full, "figures": {}}

    def write() -> None:
        result["seconds"] = time.perf_counter() - began
        (out / "results.json").write_text(json.dumps(result, indent=2) + "\n")

    for number, kind, shapes in (("1", "thin", THIN), ("2", "realistic", REALISTIC)):
        seeds = plan.seeds_of(NETWORKS) if kind == "thin" else usual
        needed = kind == "realistic" and (plan.wants("figure 3") or plan.wants("recovery"))
        if not (needed or plan.begins(f"figure {number}")):
            continue
        epochs = 12 if full else 2 if kind == "thin" else 3
        network = partial(_network, samples[kind], seeds, epochs, len(seeds) if kind == "thin" else 1)
        found = parallel.run(network, shapes, workers=plan.workers, stage=f"{kind} networks")
        trained |= {hidden: model for hidden, (model, _) in zip(shapes, found, strict=True)}
        curves = [curve for _, some in found for curve in some]
        result["figures"][number] = curves
        _draw(curves, out, f"figure{number}.png", kind)
        write()
        plan.show(f"figure {number}", curves)
    if plan.begins("recovery"):
        result["recovery"] = _recoveries(trained[REALISTIC[-1]], usual)
        write()
        plan.show("recovery", result["recovery"])
    if plan.begins("figure 3"):
        unseen = datasets.load("mnist").test.X
        result["figures"]["3"] = _obfuscate(trained[REALISTIC[-1]], unseen, out, plan.seed, full)
        write()
        plan.show("figure 3", result["figures"]["3"])
    (out / "tables.md").write_text(_tables(result))
    return result


# -- networks and their curves ----------------------------------------------------------------------------------------


def _network(
    samples: int, seeds: range, epochs: int, networks: int, hidden: tuple[int, ...]
) -> tuple[nn.Module, list[dict[str, Any]]]:
    """The first of several trained networks, and the curves of their shape."""
    mnist = datasets.load("mnist")
    trained = [_train(hidden, mnist.train, seed, epochs) for seed in seeds[:networks]]
    return trained[0], _curves(hidden, trained, mnist.test, samples, seeds)


def _train(hidden: Sequence[int], rows: datasets.Rows, seed: int, epochs: int) -> nn.Module:
    recipe = Recipe(
        widths=[784, 80, *hidden, 10], loss="cross-entropy", optimiser="adam", learning_rate=3e-3, batch_size=256,
        epochs=epochs, seed=seed,
    )  # fmt: skip
    return recipe.train(rows.X, rows.y).double()


def _random(hidden: Sequence[int], seed: int, *, last_relu: bool = False) -> nn.Module:
    model = models.MLP([784, 80, *hidden, 1], bias="none").double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) / weight.shape[1] ** 0.5)
    return (nn.Sequential(model, nn.ReLU()) if last_relu else model).eval()


def _curves(
    hidden: Sequence[int], trained: Sequence[nn.Module], test: datasets.Rows, samples: int, seeds: range
) -> list[dict[str, Any]]:
    """One curve for each way to choose points, with the rank after every sample averaged over the seeds. There is a
    trained network for each seed, or one for all of them."""
    ways: dict[str, Callable[[int], Tensor]] = {
        "random network, Gaussian points": lambda s: _gradients(_random(hidden, s), samples, s),
        "random network with a ReLU at its output, Gaussian points": lambda s: _gradients(
            _random(hidden, s, last_relu=True), samples, s
        ),
        "random network, projected points": lambda s: _projected_gradients(_random(hidden, s), samples, s),
        "trained on MNIST, Gaussian points": lambda s: _gradients(trained[(s - seeds[0]) % len(trained)], samples, s),
    }
    curves = []
    for way, gradients in ways.items():
        rows = [gradients(seed) for seed in seeds]
        paper, precise = zip(*(_ranks(g, PAPER, FLOAT64) for g in rows), strict=True)
        curve: dict[str, Any] = {
            "hidden": list(hidden),
            "way": way,
            "seeds": list(seeds),
            "rank_paper_threshold": _mean(paper),
            "rank_float64": _mean(precise),
            "final_ranks_paper_threshold": [ranks[-1] for ranks in paper],
            "final_ranks_float64": [ranks[-1] for ranks in precise],
            "gradients_not_zero": [int(g.any(dim=1).sum()) for g in rows],
            "rank_is_their_number": all(
                ranks == (g.any(dim=1).cumsum(0)).clamp(max=80).tolist() for g, ranks in zip(rows, precise, strict=True)
            ),
            "samples_to_rank_80": [next((m + 1 for m, r in enumerate(ranks) if r == 80), None) for ranks in precise],
        }
        if "trained" in way:
            curve["test_accuracy"] = [evaluate(network, test.X, test.y).accuracy for network in trained]
        curves.append(curve)
    return curves


def _gradients(model: nn.Module, samples: int, seed: int) -> Tensor:
    """Gradients of the first output at Gaussian points, [samples, 784]: Algorithm 1."""
    points = torch.randn(samples, 784, generator=torch.Generator().manual_seed(seed + 1000), dtype=torch.float64)
    return divulge.oracle(model, access="gradient").gradient(points)[1][:, 0]


def _projected_gradients(model: nn.Module, samples: int, seed: int) -> Tensor:
    """The same at Gaussian points projected away from the span of the gradients so far, as Algorithm 2 does."""
    generator = torch.Generator().manual_seed(seed + 2000)
    oracle = divulge.oracle(model, access="gradient")
    found = IncrementalBasis(784, device=torch.device("cpu"), generator=generator)
    rows = []
    for _ in range(samples):
        point = torch.randn(1, 784, generator=generator, dtype=torch.float64)
        point = point - (point @ found.basis.T) @ found.basis
        rows.append(oracle.gradient(point)[1][:, 0])
        found.add(rows[-1], PAPER * max(found.largest, float(rows[-1].norm())))
    return torch.cat(rows)


def _ranks(gradients: Tensor, *thresholds: float) -> list[list[int]]:
    """For each threshold the rank of the first m gradients, for every m: singular values above it, of the largest."""
    _, triangle = torch.linalg.qr(gradients.T)  # [r, m]: the same singular values for every prefix, in a small matrix
    ranks: list[list[int]] = [[] for _ in thresholds]
    for m in range(1, len(gradients) + 1):
        singular = torch.linalg.svdvals(triangle[:, :m])
        for told, threshold in zip(ranks, thresholds, strict=True):
            told.append(int((singular > threshold * singular[0]).sum()) if float(singular[0]) > 0 else 0)
    return ranks


def _mean(curves: Sequence[list[int]]) -> list[float]:
    return torch.tensor(curves, dtype=torch.float64).mean(dim=0).tolist()


def _recoveries(trained: nn.Module, seeds: range) -> list[dict[str, Any]]:
    """Full recoveries of [784, 80, 40, 30, 20, 10]: rank, queries and the largest angle, by what may be seen."""
    found = []
    for seed in seeds:
        for name, model in (("random", _random(REALISTIC[-1], seed)), ("trained on MNIST", trained)):
            weight = model[0].weight.detach()  # type: ignore[index]
            for access, outputs in (("gradient", 0), ("gradient", "all"), ("value", "all")):
                oracle = divulge.oracle(model, access=access)  # type: ignore[arg-type]
                span = from_gradients(oracle, outputs=outputs, seed=seed)  # type: ignore[arg-type]
                found.append(
                    {
                        "network": name,
                        "access": access,
                        "outputs": "first" if outputs == 0 else "all",
                        "seed": seed,
                        "rank": span.rank,
                        "queries": span.ledger.as_dict(),
                        "largest_angle": span.angle_to(weight),
                        "gap": span.gap,
                        "seconds": span.seconds,
                        "notes": list(span.notes),
                    }
                )
    return found


# -- figure 3 ---------------------------------------------------------------------------------------------------------


def _obfuscate(trained: nn.Module, X: Tensor, out: Path, seed: int, full: bool) -> dict[str, Any]:
    """1,000 test digits under noise in the null space: unbounded, in [0, 1], and as much as [0, 1] allows."""
    oracle = divulge.oracle(trained, access="gradient")
    span = from_gradients(oracle, seed=seed)
    digits = X[: DIGITS[full][0]].double()
    few = digits[: DIGITS[full][1]]
    versions = {
        "noise of 10 times the norm": (digits, obfuscate(digits, span, 10.0, seed=seed)),
        "the nearest to it in [0, 1]": (digits, obfuscate(digits, span, 10.0, bounds=(0, 1), seed=seed)),
        "as much as [0, 1] allows": (few, obfuscate(few, span, None, bounds=(0, 1), seed=seed)),
    }
    width = min(8, len(few))
    shown = {name: noisy[:width] for name, (_, noisy) in versions.items()}
    figures.before_and_after(oracle, digits[:width], shown, out / "figure3.png", shape=(1, 28, 28))
    return {name: measure(oracle, before, noisy).summary() for name, (before, noisy) in versions.items()}


# -- what is written --------------------------------------------------------------------------------------------------


def _draw(curves: list[dict[str, Any]], out: Path, name: str, kind: str) -> None:
    for way, suffix in (("random network, Gaussian points", ""), ("random network, projected points", "-projected"),
                        ("random network with a ReLU at its output, Gaussian points", "-last-relu"),
                        ("trained on MNIST, Gaussian points", "-trained")):  # fmt: skip
        lines = {
            f"784->80->{curve['hidden']}": curve["rank_paper_threshold"] for curve in curves if curve["way"] == way
        }
        path = out / name.replace(".png", f"{suffix}.png")
        figures.curves(lines, path, title=f"{kind} networks: {way}", full=80)


def _tables(result: dict[str, Any]) -> str:
    lines = ["# Span recovery", ""]
    for figure, title in (("1", "Thin networks"), ("2", "Realistic networks")):
        lines += [f"## {title} (figure {figure})", "", "| hidden | points | final rank, 1e-5 | final rank, float64 | "
                  "gradients not zero | rank is their number | samples to rank 80 | test accuracy |",
                  "|" + "---|" * 8]  # fmt: skip
        for curve in result["figures"].get(figure, []):
            accuracy = ", ".join(f"{share:.1%}" for share in curve.get("test_accuracy", []))
            lines.append(
                f"| {curve['hidden']} | {curve['way']} | {curve['final_ranks_paper_threshold']} | "
                f"{curve['final_ranks_float64']} | {curve['gradients_not_zero']} | {curve['rank_is_their_number']} | "
                f"{curve['samples_to_rank_80']} | {accuracy} |"
            )
        lines.append("")
    lines += ["## [784, 80, 40, 30, 20, 10]", ""]
    lines += [
        "| network | access | outputs | seed | rank | queries | angle | gap |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['network']} | {r['access']} | {r['outputs']} | {r['seed']} | {r['rank']} | {r['queries']['total']:,} | "
        f"{r['largest_angle']:.1e} | {r['gap']:.1e} |"
        for r in result.get("recovery", [])
    ]
    lines += ["", "## Obfuscated test digits (figure 3)", ""]
    lines += ["| noise | labels kept | largest logit change | noise over norm (median) |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {told['labels_kept']} of {told['rows']} | {told['output_change_largest']:.1e} | "
        f"{told['relative_distance_median']:.2f} |"
        for name, told in result["figures"].get("3", {}).items()
    ]
    return "\n".join(lines) + "\n"
