"""Every figure, table, theorem and algorithm of the five papers: what was printed, what we get, and the command.

``divulge reproduce --list`` prints it. ``python -m experiments.papers.contents`` writes it to docs/results/papers.md,
and at the head of each paper's own page what was printed, what we get and how the two compare. The state of an item is
one of

- ``better``: measured, and ahead of the print;
- ``as printed``: measured or tested, and it holds;
- ``smaller``: measured on fewer targets, smaller sets or fewer steps than the paper's;
- ``short``: measured, and behind the print;
- ``not run``: there is code or none, and no figure of ours.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

State = Literal["better", "as printed", "smaller", "short", "not run"]

MILLI, CHEN, JAYARAM, HAIM, BALLE = "Milli 2019", "Chen 2021", "Jayaram 2020", "Haim 2022", "Balle 2022"
RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGES = {MILLI: "milli.md", CHEN: "worst_case.md", JAYARAM: "span.md", HAIM: "haim.md", BALLE: "informed.md"}
"""The page of each paper."""


@dataclass(frozen=True)
class Item:
    """One figure, table, theorem or algorithm."""

    paper: str
    item: str
    shows: str
    printed: str
    ours: str
    over: str
    """Targets, networks or seeds behind our figure."""
    command: str
    state: State

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


_GRADIENTS = "python -m experiments extraction_gradients"
_VALUES = "python -m experiments extraction_values"
_ROWS = "python -m experiments by_training"
_SPAN = "divulge reproduce jayaram"
_BALLE, _DP, _HAIM = "divulge reproduce balle", "divulge reproduce balle-dp", "divulge reproduce haim --seed 300"


def _tests(folder: str) -> str:
    return f"python -m pytest tests/{folder}"


ITEMS: tuple[Item, ...] = (
    # -- Milli et al. 2019 --------------------------------------------------------------------------------------------
    Item(MILLI, "Theorems 1 to 3, Algorithms 1, 1a, 1b", "exact recovery in O(h log h) gradients",
         "46 gradients a neuron as we ran the print", "1.79 gradients a neuron, 784-128-1", "20 networks", _GRADIENTS,
         "better"),
    Item(MILLI, "Theorem 4, Algorithm 1-MQ", "the same from O(d h log h) values",
         "24 values a parameter and an error of 4e-4 at 32-8-1 as we ran the print; nothing from 16 neurons on",
         "1.15 values a parameter, error 5e-10 at most", "123 networks", _VALUES, "better"),
    Item(MILLI, "Figure 1", "hyperplanes of a network with two inputs", "a drawing, two hyperplanes",
         "six of six rebuilt, 3e-13 apart", "4 networks", "divulge reproduce milli --only 'figure 1'", "as printed"),
    Item(MILLI, "Figure 2, MNIST 1-layer", "softmax regression from one gradient", "1 query, 1,000 times fewer",
         "1 query, weights to 5e-16; 828 values for a linear model of 784 inputs", "5 seeds", "divulge reproduce milli",
         "as printed"),
    Item(MILLI, "Figure 2, MNIST 2-layer", "gradients against values", "100 times fewer queries",
         "98.13 % from 30 gradients; 111 and 315 times fewer", "5 seeds", "divulge reproduce milli", "better"),
    Item(MILLI, "Figure 2, MNIST convolutional", "the same", "95 % from 10 gradients, as 1,000 values",
         "94.8 % from 10 and 95.5 from 1,000 values as printed of a network of 21,840 weights; 93.9 from 10 of 455,000 "
         "weights, 16 and 74 times fewer", "5 seeds", f"{_ROWS} --only 'two-conv, gradients'", "as printed"),
    Item(MILLI, "Figure 2, CIFAR-10 convolutional", "the same", "the target's accuracy from 100 gradients",
         "66.5 of 72.0 % from 100, as 10,000 values", "1 seed", f"{_ROWS} --only 'CIFAR-10 two-conv'", "short"),
    Item(MILLI, "Figure 2, VGG-11 and ResNet-18", "the same", "10 times fewer queries to 75 %",
         "VGG-11 at a quarter of the width, 80.8 %: 44.3 from 1,000 gradients and 44.3 from 1,000 values; gradients "
         "hardly help at a sixteenth", "1 seed", f"{_ROWS} --only vgg11 --only resnet18",
         "short"),
    Item(MILLI, "Figure 3, MNIST", "another student than the target", "gradients help richer students most",
         "the same order in four pairs", "1 seed", "divulge reproduce milli --full", "as printed"),
    Item(MILLI, "Figure 3, CIFAR-10", "VGG-11 by ResNet-18 and back", "10 times one way, little the other",
         "at a sixteenth of the width 24.9 from 100 gradients and 22.2 % from 100 values one way, 16.4 and 12.2 the "
         "other",
         "1 seed", f"{_ROWS} --only 'CIFAR-10 vgg11 by' --only 'CIFAR-10 resnet18 by'", "short"),
    Item(MILLI, "Figure 4, MNIST 2-layer", "Gaussian queries", "1,000 times fewer queries",
         "98.13 % from 20 gradients", "5 seeds", f"{_ROWS} --only '2-layer, Gaussian'", "better"),
    Item(MILLI, "Figure 4, MNIST convolutional", "Gaussian queries", "84 % from 10 gradients, 71 % from 10,000 values",
         "87.3 % from 10 of 28,900 weights and standardised pixels; of 21,840 weights 76.9, and 53 from 10,000 values; "
         "of 455,000 weights and pixels in [0, 1] 34 from 10, 69 from 100", "3 seeds; 1 of 455,000 weights",
         f"{_ROWS} --only 'two-conv, Gaussian'", "as printed"),
    Item(MILLI, "Figure 4, CIFAR-10", "Gaussian queries", "50 % from 10 gradients, 11 % from 10,000 values",
         "networks with a quarter of the filters: 18.9 % from 10 gradients, 26.8 at standardised pixels, 25.4 from "
         "100, 17.1 from 1,000 values", "1 seed",
         f"{_ROWS} --only 'CIFAR-10 small two-conv' --only 'CIFAR-10 example two-conv'", "short"),
    Item(MILLI, "Appendix D, figures 5 to 7", "SmoothGrad", "no loss at any sigma; the best maps at 1,000 sigma",
         "2-layer no loss; two-conv 0.2 and 0.8 less at one sigma, what values give or less beyond; from 100 sigma on "
         "maps are the same for any picture (correlation 0.957 of 0.959)", "1 to 3 seeds",
         f"{_ROWS} --only SmoothGrad; divulge reproduce milli --only 'figure 5'", "short"),
    # -- Chen et al. 2021 ---------------------------------------------------------------------------------------------
    Item(CHEN, "Theorem 1.1", "any network of one hidden layer from a polynomial number of values", "no experiment",
         "error 1e-9 or less of the variance at every kind of network, 25 k d values at most", "3 networks a kind",
         "divulge reproduce chen --full --seed 20", "better"),
    Item(CHEN, "Algorithms 1 to 4", "the same as printed", "no experiment",
         "1e-15 on two random networks of three, one kink missed on the third, 14,000 k d values; with filter (5) and "
         "constraint (7) 6e-3 at worst, 440 k d values", "3 networks a kind",
         "divulge reproduce chen --full --seed 20", "as printed"),
    Item(CHEN, "Theorems 4.8 and 4.13, Lemmas 4.3 to 4.11", "why pairs of gradients are enough", "proofs",
         "neurons listed, bounds (5) and (7) held, in tests", "seeds of the tests", _tests("extraction"), "as printed"),
    # -- Jayaram et al. 2020 ------------------------------------------------------------------------------------------
    Item(JAYARAM, "Theorem 3.4, Algorithm 1", "the span from gradients", "k log k gradients: 351 for rank 80",
         "84 to 86 gradients, angle 9e-14", "10 networks", "python -m experiments span --only methods", "better"),
    Item(JAYARAM, "Theorem 4.3, Algorithm 2", "the span from labels", "no experiment; not in float64",
         "sine 4e-7 or less at 46 to 72 k n labels; as printed in extended precision", "3 networks a shape",
         "python -m experiments span --only labels", "better"),
    Item(JAYARAM, "Figure 1", "thin networks hide part of the span",
         "recovery gets worse as width decreases and depth increases",
         "mean rank of 80 behind [6], [6, 3], [6, 5, 4, 3] and [2, 2]: 80, 80, 74.5 and 56 at random, 80, 80, 54 and "
         "56 trained; the rank is the number of gradients that are not zero", "10 networks a shape",
         f"{_SPAN} --only 'figure 1'", "as printed"),
    Item(JAYARAM, "Figure 2", "realistic networks", "rank 80 in fewer than 100 gradients", "80 or 81 gradients",
         "3 seeds", f"{_SPAN} --only 'figure 2'", "better"),
    Item(JAYARAM, "Figure 3", "noise in the null space", "digits that a person cannot read",
         "1,000 of 1,000 labels kept at ten times the norm", "1,000 digits", f"{_SPAN} --only 'figure 3'",
         "as printed"),
    # -- Haim et al. 2022 ---------------------------------------------------------------------------------------------
    Item(HAIM, "Theorem 3.1, equations 4 to 8", "stationarity at convergence", "a theorem of Lyu and Li 2019",
         "the residual falls along training to the margin", "seeds of the tests", _tests("reconstruction"),
         "as printed"),
    Item(HAIM, "Figure 1", "50 CIFAR-10 pictures", "pictures shown, not counted", "38.0 of 50 above SSIM 0.4; 9.3 of "
         "10", "3 networks", _HAIM, "better"),
    Item(HAIM, "Figure 2", "20 points on a circle", "a drawing", "20 of 20 within 0.03 by kinks; 1, 7 and 2 by "
         "equation 8 in 60 s", "3 networks", f"{_HAIM} --only circle", "better"),
    Item(HAIM, "Figure 3", "500 pictures and 500 digits", "the best 45 shown",
         "73 pictures where 1 % of unseen pass (74, 81, 65), 35 of them kept blindly; digits beyond chance, p = 1e-5",
         "3 networks; 1 of digits", _HAIM, "better"),
    Item(HAIM, "Figures 4 and 16, tables 1 and 2", "SSIM against the model's output, architectures and sizes",
         "scatter plots; test accuracies of 77 and 78 % at 500", "five architectures at 500 pictures, test accuracy "
         "77 % as printed; standard start, few epochs and mini-batches at 10 and 50", "1 network each", _HAIM,
         "smaller"),
    Item(HAIM, "Figures 5 and 12 to 15", "model inversion and first-layer weights as baselines",
         "neither shows training pictures", "of 300 pictures none by model inversion and 2 by first-layer weights "
         "above SSIM 0.4, none above correlation 0.9; 50 pictures a network", "6 networks",
         f"{_HAIM} --only 'baselines on pictures' --only circle", "smaller"),
    Item(HAIM, "Figure 6", "100 samples", "pictures", "62 of 100 pictures above SSIM 0.4, 20 digits above "
         "correlation 0.9", "1 network each", _HAIM, "as printed"),
    Item(HAIM, "Figure 7", "1,000 samples", "pictures",
         "15 pictures where 1 % of unseen pass, 4 above correlation 0.9, 2 of 6 kept; mini-batches, 200 s", "1 network",
         f"{_HAIM} --only '*n = 1000*'", "short"),
    Item(HAIM, "Figures 8 to 11", "other architectures at 500 samples", "pictures",
         "17, 63, 56 and 65 pictures where 1 % of unseen pass, 9, 29, 25 and 29 of them kept; 300 s", "1 network each",
         f"{_HAIM} --only '*n = 500*'", "as printed"),
    Item(HAIM, "Figures 17 and 18", "standard initial weights, 10 and 50 pictures", "pictures, worse than from a small "
         "first layer",
         "1.0 of 10 above SSIM 0.4 among all candidates, none kept; of 50 no more than of unseen pictures",
         "3 networks each",
         f"{_HAIM} --only '*standard*'", "short"),
    Item(HAIM, "Figures 19 and 20", "10^4 epochs only, 500 samples", "pictures",
         "36 of 50 pictures above SSIM 0.4, 37 of 50 digits above correlation 0.9", "1 network each",
         f"{_HAIM} --only '*plain descent*'", "smaller"),
    Item(HAIM, "Figure 21", "trained by SGD with batches of 50", "pictures",
         "37.0 of 50 pictures above SSIM 0.4, 9.7 of 10, batches of 5", "3 networks each",
         f"{_HAIM} --only '*batches of 5'", "smaller"),
    Item(HAIM, "Appendix B.2", "100 runs of a search for hyper-parameters", "100 runs of 30 GPU-minutes",
         "100 runs of 500 iterations, the best to 100,000: 9 of 10 digits above correlation 0.9 from 1,000 on, where "
         "ours has 10", "1 network, 100-100", f"{_HAIM} --only 'search of appendix'", "smaller"),
    # -- Balle et al. 2022 --------------------------------------------------------------------------------------------
    Item(BALLE, "Theorem 1", "closed form for linear models", "a theorem, with a slip", "error 5e-23 at most",
         "5 models a kind", "python -m experiments informed", "better"),
    Item(BALLE, "Theorem 8", "the same without an intercept", "two roots",
         "both roots, trusted only where one is left", "seeds of the tests", _tests("informed"), "better"),
    Item(BALLE, "Algorithms 1 and 2", "the adversary, and membership as its special case", "definitions",
         "the interface of every informed attack", "seeds of the tests", _tests("informed"), "as printed"),
    Item(BALLE, "Figure 1, Table II, CIFAR-10", "pictures from a CNN of 55,208 weights", "0.0049, 5,000 known pictures",
         "0.0030 with 500 known pictures, 0.0029 with 50, 25 epochs, label unknown; ReLU and logits not run",
         "2 and 10 targets", f"{_BALLE} --only 'CIFAR-10 lines'", "smaller"),
    Item(BALLE, "Table II, MNIST", "the default setting", "0.0094, 59,000 shadow models", "0.0026 with 8,000 by ridge; "
         "8.6e-6 with none", "100 and 27 targets", f"{_BALLE} --only 'three sets'", "better"),
    Item(BALLE, "Table II, MNIST, RecoNN", "the paper's own network", "0.0094 with 59,000 shadow models",
         "0.034 with 8,000 as printed, above the nearest digit's 0.029", "100 targets",
         f"{_BALLE} --only 'reconstructor networks'", "short"),
    Item(BALLE, "Table II, MNIST, RecoNN bettered", "a network that starts from ridge's answer",
         "0.0094 with 59,000 shadow models", "0.0058 with 4,000, 0.0023 with 8,000, 0.0014 with 16,000", "100 targets",
         f"{_BALLE} --only 'reconstructor networks'", "better"),
    Item(BALLE, "Table II, MNIST, factors", "epochs, size of the fixed set, ReLU, black box",
         "0.0121, 0.0089, 0.0182, 0.0110", "2.3e-4, 4.4e-5, 0.0030, 0.0032", "27, 4, 12 and 20 targets", _BALLE,
         "better"),
    Item(BALLE, "Figure 2", "the network-based attack", "a drawing", "informed.reconstructor", "", _BALLE,
         "as printed"),
    Item(BALLE, "Figures 3 and 4", "nearest neighbours, reconstructions", "0.0232 on average", "0.032, fewer digits to "
         "choose among", "100 targets", _BALLE, "as printed"),
    Item(BALLE, "Figures 5 and 19", "metrics, and error against the number of shadow models", "curves",
         "error, KL and LPIPS at 1,000 to 16,000 shadow models on MNIST; ridge and the network from it below the "
         "nearest digit from 1,000 on; rank correlation of LPIPS and error 0.86", "100 targets",
         f"{_BALLE} --only 'figure 5'", "smaller"),
    Item(BALLE, "Figure 6", "shadow records of another kind", "CIFAR-100 for CIFAR-10", "clothes for digits, a harder "
         "shift: fails, and says so; CIFAR-100 cannot be fetched here", "100 targets", _BALLE, "smaller"),
    Item(BALLE, "Figures 7, 8 and 23", "batches, known seed or not", "curves",
         "batches of 256, known seed: 2.5e-11 at rate 0.01, 2.5e-5 at 0.2; unknown seed: 2.7e-4 at 0.01, and none "
         "rebuilt at 0.2 (batches of 128), as printed; no t-SNE", "3 targets each", f"{_BALLE} --only '*batches of*'",
         "smaller"),
    Item(BALLE, "Figures 9 and 10", "private training on MNIST", "curves", "the curve with six values of epsilon",
         "100 targets", _DP, "smaller"),
    Item(BALLE, "Theorems 2 and 5, Corollaries 3 and 4, Propositions 6 and 7", "reconstruction robustness from DP",
         "theorems", "never below a simulated optimal attack in 12 settings", "12 settings", _tests("protection"),
         "as printed"),
    Item(BALLE, "Table III, Figures 11 and 17", "initial weights, rates and momentum",
         "0.0049, 0.0041, 0.0063; 0.0695 with unknown initial weights",
         "2.4e-8, 1.0e-10, 6.4e-6; 0.078 with unknown initial weights from 1,000 shadow models, a mean digit 0.067; "
         "membership there at AUC 0.62 to 0.97", "54, 39, 27 and 100 targets, three initialisations; 3 for membership",
         f"{_BALLE} --only 'three sets' --only 'table III' --only 'figure 11'", "better"),
    Item(BALLE, "Figure 12, appendix B", "a network carried over to another fixed set", "a curve",
         "0.078 as printed, no better than from scratch, with 1,000 shadow models", "30 targets",
         f"{_BALLE} --only 'figure 12'", "short"),
    Item(BALLE, "Figure 13, appendix C", "a start near convergence", "a histogram", "0.0020", "8 targets", _BALLE,
         "as printed"),
    Item(BALLE, "Figures 14 and 24", "best and worst pictures", "pictures", "pictures of 20 targets", "20 targets",
         _BALLE, "smaller"),
    Item(BALLE, "Figure 15", "private training on CIFAR-10", "a curve", "the curve with six values of epsilon",
         "24 targets", _DP, "smaller"),
    Item(BALLE, "Figure 16, Table IV, width 100", "width of the released model", "0.0079", "7.3e-5", "6 targets",
         f"{_BALLE} --only '*starts: width 100'", "better"),
    Item(BALLE, "Figure 16, Table IV, width 1", "width of the released model", "0.0079",
         "0.0057 [1.9e-4, 0.014], median 2.2e-4", "18 targets",
         f"{_BALLE} --seed 6 --only '*starts: width 1'", "as printed"),
    Item(BALLE, "Figure 18", "size of the fixed set", "0.0089 with 10,000", "4.4e-5 with 10,000", "4 targets", _BALLE,
         "better"),
    Item(BALLE, "Figure 20, Table IX", "CIFAR-10, epochs and optimisers, membership AUC beside",
         "0.0041 after 100 epochs at AUC 0.61, Adam 0.0052 at 0.87, 1,000 known pictures",
         "0.0030 after 25 epochs at AUC 0.53 with 500 known pictures; with 50: 0.0025 after 10 at 0.60, 0.0029 after "
         "25, 0.0025 after 50 at 0.85, 0.22 after 100 at 0.96; Adam 0.011 at 0.96, label known",
         "2, 6, 10, 3, 3 and 2 targets",
         f"{_BALLE} --only 'CIFAR-10 lines'", "smaller"),
    Item(BALLE, "Figure 21, appendix L", "error against the norm of the gradient", "a weak correlation",
         "rank correlation 0.65 by ridge", "40 targets", _BALLE, "as printed"),
    Item(BALLE, "Figure 22", "why ReLU is harder", "more than 80 % zeros in gradients of the convolutions",
         "16% and 32% in the convolutions, 90% and 86% in the dense layers; none with ELU", "8 targets, 50 known",
         "divulge reproduce balle --only 'figure 22'", "smaller"),
    Item(BALLE, "Tables V to VIII", "architectures and settings", "settings", "the same networks", "", _BALLE,
         "as printed"),
)  # fmt: skip


def table() -> str:
    """The items as Markdown, one table a paper."""
    parts = []
    for paper in dict.fromkeys(item.paper for item in ITEMS):
        parts += [
            f"## {paper}",
            "",
            "| in the paper | shows | printed | ours | over | state |",
            "|---|---|---|---|---|---|",
        ]
        parts += [
            f"| {one.item} | {one.shows} | {one.printed} | {one.ours} | {one.over or '-'} | {one.state} |"
            for one in ITEMS
            if one.paper == paper
        ]
        commands = dict.fromkeys(one.command for one in ITEMS if one.paper == paper and one.command)
        parts += ["", "Repeated by " + ", ".join(f"`{command}`" for command in commands) + ".", ""]
    return "\n".join(parts)


def summary(paper: str) -> str:
    """The head of a paper's page: what it prints, what we get, and the verdict."""
    lines = ["| paper | ours | verdict |", "|---|---|---|"]
    lines += [f"| {one.item}: {one.printed} | {one.ours} | {one.state} |" for one in ITEMS if one.paper == paper]
    return "\n".join(lines) + "\n"


def write_pages(folder: Path = RESULTS) -> None:
    """Bring the list and the head of every paper's page up to date."""
    papers = folder / "papers.md"
    papers.write_text(papers.read_text().split("## ", 1)[0] + table())
    for paper, name in PAGES.items():
        page = folder / name
        title, rest = page.read_text().split("\n", 1)
        rest = re.sub(r"\A\n\| paper \| ours \| verdict \|\n(\|.*\n)+", "", rest)
        page.write_text(f"{title}\n\n{summary(paper)}{rest}")


def printed_items() -> str:
    """The items for a terminal."""
    lines: list[str] = []
    for item in ITEMS:
        lines += [f"{item.paper}, {item.item}: {item.shows}", f"    paper: {item.printed}"]
        lines.append(f"    ours:  {item.ours}" + (f" ({item.over})" if item.over else "") + f": {item.state}")
        if item.command:
            lines.append(f"    {item.command}")
    return "\n".join(lines)


if __name__ == "__main__":
    write_pages()
