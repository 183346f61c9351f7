"""ART's CopycatCNN and KnockoffNets on a target and a student in TorchScript; run by ART's own interpreter.

``python copies.py FOLDER JOBS``: the folder holds target.pt, student.pt and pictures.npz; the jobs are a list in JSON.
Prints for each the agreement with the target's decisions on the judging pictures, what was asked, and the seconds.
Nothing here uses divulge.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from art.attacks.extraction import CopycatCNN, KnockoffNets
from art.estimators.classification import PyTorchClassifier


class Asked(torch.nn.Module):
    """Probabilities of the target, which counts the pictures that it is asked about."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.target = torch.jit.load(str(path))
        self.rows = 0

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        self.rows += len(X)
        return self.target(X.flatten(1)).softmax(dim=1)


def main(folder: Path, options: dict) -> dict:
    """One attack."""
    torch.manual_seed(options["seed"])
    np.random.seed(options["seed"])  # noqa: NPY002 - ART draws from the global state
    given = np.load(folder / "pictures.npz")
    pool, queries = given["pool"], options["queries"]
    asked, student = Asked(folder / "target.pt"), torch.jit.load(str(folder / "student.pt"))
    shape, outputs = pool.shape[1:], asked(torch.as_tensor(pool[:1])).shape[1]
    asked.rows = 0
    target = PyTorchClassifier(asked, torch.nn.CrossEntropyLoss(), shape, outputs, device_type="cpu")
    adam = torch.optim.Adam(student.parameters(), lr=options["rate"])
    thief = PyTorchClassifier(student, torch.nn.CrossEntropyLoss(), shape, outputs, optimizer=adam, device_type="cpu")
    common = {"batch_size_fit": options["batch"], "batch_size_query": 256, "nb_epochs": options["passes"],
              "nb_stolen": queries}  # fmt: skip
    chosen = np.random.default_rng(options["seed"]).permutation(len(pool))[:queries]
    attack = CopycatCNN(target, **common) if options["attack"] == "CopycatCNN" else KnockoffNets(
        target, sampling_strategy="random", use_probability=True, verbose=False, **common)  # fmt: skip
    began = time.perf_counter()
    copy = attack.extract(pool[chosen], thieved_classifier=thief)
    seconds = time.perf_counter() - began
    said = copy.predict(given["rows"], batch_size=256).argmax(axis=1)
    return {**options, "agreement": float((said == given["decisions"]).mean()), "asked": asked.rows, "seconds": seconds}


if __name__ == "__main__":
    for job in json.loads(sys.argv[2]):
        print(json.dumps(main(Path(sys.argv[1]), job)), flush=True)
