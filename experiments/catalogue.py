"""Every experiment there is: what it shows, how long it takes, and where its figures are published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from posixpath import normpath


@dataclass(frozen=True)
class Experiment:
    """One module of ``experiments.papers`` or ``experiments.benchmarks``."""

    name: str
    shows: str
    minutes: float
    """Roughly, on two cores, without ``--full``; the published page has measured times."""
    page: str
    """The page under docs/results that its figures stand on."""
    data: str = ""
    """Data sets that must be on disk."""

    def was_run(self, results: Path) -> bool:
        """Whether this machine holds results of it."""
        name = self.name.replace("-", "_")  # results are kept under the name of the module
        return (results / f"{name}.json").is_file() or (
            (folder := results / name).is_dir() and any(folder.rglob("*.json*"))
        )


PAPERS = (
    Experiment("milli", "Milli et al. 2019: figures 1 to 4; section 5", 7, "milli", "mnist, cifar10"),
    Experiment("chen", "Chen et al. 2021: Theorem 1; random networks, clusters and bumps", 10, "worst_case"),
    Experiment("jayaram", "Jayaram et al. 2020: figures 1, 2 and 3", 6, "span", "mnist"),
    Experiment("balle", "Balle et al. 2022: tables II, III, IV, IX, figures 5, 7, 11, 20, appendices B, C, K, L", 300,
               "informed", "mnist, fashion-mnist, cifar10"),
    Experiment("balle-dp", "Balle et al. 2022: figures 9, 10 and 15, and the bounds of section VII", 14,
               "protection", "mnist, cifar10"),
    Experiment("haim", "Haim et al. 2022: figures 2 to 15 and 17 to 21, tables 1 and 2 on smaller sets", 190, "haim",
               "mnist, cifar10"),
    Experiment("chain", "from a prediction endpoint to training pictures; in none of the papers", 12, "chain",
               "mnist, cifar10"),
)  # fmt: skip
BENCHMARKS = (
    Experiment("by_training", "single rows of Milli et al. 2019, and the cost of a matching step", 5, "milli", "mnist"),
    Experiment("claims", "whether anything that an audit claims is false, on some seventy models", 30, "claims"),
    Experiment("extraction_depth", "any number of hidden layers, from gradients and from values", 15, "extraction"),
    Experiment("extraction_gradients", "Milli et al. 2019, Algorithm 1: gradients a neuron", 5, "extraction"),
    Experiment("extraction_honesty", "how often `exact` is said wrongly", 10, "extraction"),
    Experiment("extraction_labels", "one hidden layer from hard labels: labels a parameter", 60, "extraction_labels"),
    Experiment("extraction_labels_estimators", "scikit-learn's estimators from hard labels", 15, "extraction_labels"),
    Experiment("extraction_values", "Milli et al. 2019, Algorithm 1-MQ: values a parameter", 10, "extraction_values"),
    Experiment("guards", "what every guard leaves to every attack", 15, "protection"),
    Experiment("membership", "who was in the training set, by each method", 5, "membership"),
    Experiment("epsilon_audit", "lower limits on epsilon by canaries, beside the claim", 5, "membership"),
    Experiment("http_throughput", "rows a second over HTTP", 1, "http_throughput"),
    Experiment("informed", "Balle et al. 2022, Theorems 1 and 8; beside ART", 5, "informed"),
    Experiment("informed_networks", "shadow models, ridge and inverted training on 50 targets", 8, "informed", "mnist"),
    Experiment("informed_optimisers", "inverted training under Adam, AdamW, RMSprop and Nesterov", 5, "informed"),
    Experiment("informed_unknown_draws", "inverted training after dropout and augmentation", 1, "informed"),
    Experiment(
        "known_start",
        "training pictures out of the difference of two checkpoints",
        15,
        "known_start",
        "mnist, fashion-mnist, cifar10",
    ),
    Experiment("oracle_overhead", "an oracle beside a plain call", 1, "oracle_overhead"),
    Experiment("peers_art", "functionally equivalent extraction beside ART", 10, "extraction"),
    Experiment(
        "peers_copies",
        "learned copies of a five-minute audit beside ART's CopycatCNN and KnockoffNets",
        25,
        "learned_copies",
        "fashion-mnist, cifar10",
    ),
    Experiment("peers_mlserver", "`divulge serve` beside MLServer: rows a second and latencies", 3, "../reliability"),
    Experiment(
        "peers_membership", "membership beside Privacy Meter, LeakPro, SACRO-ML and ART", 30, "membership", "cifar10"
    ),
    Experiment("protection", "private training beside plain, and beside Opacus", 4, "protection"),
    Experiment("reconstruction", "Haim et al. 2022 on unusual networks", 10, "reconstruction", "mnist"),
    Experiment("reliability", "hostile servers, kills, damaged journals, load and sizes", 120, "../reliability"),
    Experiment(
        "scale", "audits of large models: their time, their memory, and what they could not do", 6, "../reliability"
    ),
    Experiment("shadows", "shadow models a second", 3, "informed", "mnist"),
    Experiment("span", "Jayaram et al. 2020: queries and angles, from gradients and labels", 10, "span"),
    Experiment("zoo", "forty models and files of other people: what an audit says, and whether it is true", 50, "zoo"),
)


def listing(experiments: tuple[Experiment, ...], results: Path) -> list[dict[str, str]]:
    """A row for each experiment, ready to print."""
    return [
        {
            "name": one.name, "shows": one.shows, "minutes": f"{one.minutes:g}", "data": one.data or "bundled",
            "published": normpath(f"docs/results/{one.page}.md"), "run here": "yes" if one.was_run(results) else "no",
        }
        for one in experiments
    ]  # fmt: skip


def printed(rows: list[dict[str, str]]) -> str:
    """The rows under one another."""
    lines = []
    for row in rows:
        lines.append(f"{row['name']:<22}{row['shows']}")
        lines.append(
            f"{'':<22}about {row['minutes']} min, data: {row['data']}; {row['published']}; run here: {row['run here']}"
        )
    return "\n".join(lines)
