"""The architectures of the papers, by name, and how a model is kept on disk: safetensors plus a small JSON.

Every model built here carries ``spec``, the plain dictionary that builds it again, so a saved model needs no pickle,
and ``input_shape``, the shape of one input.
"""

from divulge.models.build import BUILDERS, build, initialise, names, weighted_layers
from divulge.models.convnets import PictureNetwork
from divulge.models.files import load, save
from divulge.models.mlp import ACTIVATIONS, MLP, Bias, ReluNetwork

__all__ = [
    "ACTIVATIONS", "BUILDERS", "MLP", "Bias", "PictureNetwork", "ReluNetwork", "build", "initialise", "load", "names",
    "save", "weighted_layers",
]  # fmt: skip
