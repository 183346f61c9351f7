"""Can they get my training data out of the weights?"""

from divulge.reconstruction.from_forest import TableFromForest, TableMatch, from_forest
from divulge.reconstruction.from_weights import from_weights
from divulge.reconstruction.kkt_solver import Settings
from divulge.reconstruction.matching import Match, match
from divulge.reconstruction.printed.kkt import PaperSettings
from divulge.reconstruction.printed.search import Search, search
from divulge.reconstruction.result import Reconstruction
from divulge.training.kkt_diagnosis import Diagnosis, diagnose
from divulge.training.margin import Trained, to_margin

__all__ = [
    "Diagnosis", "Match", "PaperSettings", "Reconstruction", "Search", "Settings", "TableFromForest", "TableMatch",
    "Trained", "diagnose", "from_forest", "from_weights", "match", "search", "to_margin",
]  # fmt: skip
