"""Can they get my training data out of the weights?"""

from divulge.reconstruction.kkt import from_weights
from divulge.reconstruction.margin import Diagnosis, Trained, diagnose, to_margin
from divulge.reconstruction.matching import Match, match
from divulge.reconstruction.paper import PaperSettings
from divulge.reconstruction.result import Reconstruction
from divulge.reconstruction.search import Search, search
from divulge.reconstruction.stationarity import Settings

__all__ = [
    "Diagnosis", "Match", "PaperSettings", "Reconstruction", "Search", "Settings", "Trained", "diagnose",
    "from_weights", "match", "search", "to_margin",
]  # fmt: skip
