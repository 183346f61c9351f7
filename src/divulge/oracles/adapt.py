"""Models of other libraries as the modules that the oracles know. What needs no change is returned as it is."""

from __future__ import annotations

from divulge.oracles.local.hugging_face import HuggingFaceModel, is_hugging_face
from divulge.oracles.local.keras_model import from_keras, is_keras


def adapted(model: object) -> object:
    """A Keras or ``transformers`` model as a torch module from rows to answers; any other model as it is.

    Parameters
    ----------
    model : object
        Any model.

    Returns
    -------
    object

    Examples
    --------
    >>> from torch import nn
    >>> model = nn.Linear(3, 2)
    >>> adapted(model) is model
    True
    """
    if is_keras(model):
        return from_keras(model)
    return HuggingFaceModel(model) if is_hugging_face(model) else model  # type: ignore[arg-type]
