"""Can they copy my model?"""

from divulge.extraction.by_training import by_training
from divulge.extraction.deep_from_gradients import deep_from_gradients
from divulge.extraction.from_gradients import from_gradients
from divulge.extraction.from_labels import from_labels
from divulge.extraction.from_tree_values import from_tree_values
from divulge.extraction.from_values import from_values
from divulge.extraction.label_result import LabelCopy
from divulge.extraction.last_layer import LastLayer, last_layer
from divulge.extraction.neuron_matching import NeuronMatch, match_neurons
from divulge.extraction.result import Extraction
from divulge.extraction.softmax_regression import softmax_regression
from divulge.extraction.students.learning_curve import LearningCurve, learning_curve
from divulge.extraction.tree_result import TreeCopy
from divulge.extraction.worst_case import Approximation, worst_case

__all__ = [
    "Approximation",
    "Extraction",
    "LabelCopy",
    "LastLayer",
    "LearningCurve",
    "NeuronMatch",
    "TreeCopy",
    "by_training",
    "deep_from_gradients",
    "from_gradients",
    "from_labels",
    "from_tree_values",
    "from_values",
    "last_layer",
    "learning_curve",
    "match_neurons",
    "softmax_regression",
    "worst_case",
]
