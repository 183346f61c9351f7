"""Can they copy my model?"""

from divulge.extraction.by_training import by_training
from divulge.extraction.compare import NeuronMatch, match_neurons
from divulge.extraction.curves import LearningCurve, learning_curve
from divulge.extraction.deep import deep_from_gradients
from divulge.extraction.from_gradients import from_gradients
from divulge.extraction.from_values import from_values
from divulge.extraction.result import Extraction
from divulge.extraction.softmax import softmax_regression
from divulge.extraction.worst_case import Approximation, worst_case

__all__ = [
    "Approximation",
    "Extraction",
    "LearningCurve",
    "NeuronMatch",
    "by_training",
    "deep_from_gradients",
    "from_gradients",
    "from_values",
    "learning_curve",
    "match_neurons",
    "softmax_regression",
    "worst_case",
]
