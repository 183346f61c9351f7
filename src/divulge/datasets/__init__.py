"""Data to train on and to attack with: the papers' image sets, small bundled tables, and the user's own files.

    X, y = divulge.datasets.load("mnist").train          # float32 [n, d] in [0, 1], and labels
    data = divulge.datasets.load("people.csv", target="income")

``load`` finds a set by name or a file by path; ``download`` fetches a named set from its public home.
"""

from divulge.datasets.catalogue import load, names
from divulge.datasets.dataset import Dataset, Rows, binary, choose, split
from divulge.datasets.download import DownloadFailed, download
from divulge.datasets.provenance import training_rows

__all__ = [
    "Dataset", "DownloadFailed", "Rows", "binary", "choose", "download", "load", "names", "recorded", "split",
    "training_rows",
]  # fmt: skip

recorded = training_rows  # its name in version 0.1
