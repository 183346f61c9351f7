"""Data to train on and to attack with: the papers' picture sets, small bundled tables, and the user's own files.

    X, y = divulge.datasets.load("mnist").train          # float32 [n, d] in [0, 1], and labels
    data = divulge.datasets.load("people.csv", target="income")

``load`` finds a set by name or a file by path; ``download`` fetches a named set from its public home.
"""

from divulge.datasets.catalogue import load, names
from divulge.datasets.dataset import Dataset, Rows, binary, choose, split
from divulge.datasets.fetch import DownloadFailed, download
from divulge.datasets.record import recorded

__all__ = ["Dataset", "DownloadFailed", "Rows", "binary", "choose", "download", "load", "names", "recorded", "split"]
