"""What the file of a model contains beside the model itself.

Many models are their data. Nearest neighbours, support vector machines, kernel methods and Gaussian processes keep rows
of the training table; scalers, encoders and imputers keep sums, extremes and categories. Whoever holds the file reads
them: no query and no computation is needed. This module looks through a fitted estimator or pipeline, an ONNX graph, a
file of trees or a dictionary of tensors, names the place, and undoes the steps before it where they can be undone.

With the training data the rows are compared with it. Without it, what is said follows from how the class of the
estimator is fitted, which is known for the classes that ``attributes.py`` lists.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from divulge.contents import estimators, onnx_graph, tensors, tree_files
from divulge.contents.comparison import TrainingRows, compared
from divulge.contents.result import KINDS, Contents, Holding
from divulge.core.errors import UnsupportedModel
from divulge.oracles import load_model
from divulge.oracles.local.sklearn_estimator import is_estimator
from divulge.oracles.local.trees import is_boosted

NOTHING = "Nothing in it is known to be a training record, or a sum, a value or a category of training records."


def read(model: object, training_inputs: object = None, *, trust_pickle: bool = False) -> Contents:
    """Training records, sums, extremes and categories that stand in a model.

    Parameters
    ----------
    model : fitted estimator, nn.Module, Booster, dict of tensors, str or Path
        The model, or its file: a pickle, an ``.onnx`` graph, a ``.safetensors`` or ``.pt`` file of weights, or a native
        file of XGBoost or LightGBM.
    training_inputs : array [n, d] or DataFrame, optional
        The training inputs. Rows in the model are compared with them, and every array of the right width is.
    trust_pickle : bool, default False
        Load files that can run code.

    Returns
    -------
    Contents
        ``.holdings`` (where, what, how many), ``.records`` (the rows, in the units of the input), ``.verbatim``.
        ``success`` says whether anything of the training records was found.

    Raises
    ------
    UnsupportedModel
        If there is nothing to look through, such as a function.
    UntrustedFile
        If the file could run code and ``trust_pickle`` is False.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from sklearn.svm import SVC
    >>> from divulge import contents
    >>> X = [[0.0, 3.0], [1.0, 5.0], [4.0, 5.0], [6.0, 2.0]]
    >>> found = contents.read(make_pipeline(StandardScaler(), SVC()).fit(X, [0, 0, 1, 1]), X)
    >>> [(holding.where, holding.kind, holding.in_training_data) for holding in found.holdings]
    [('model["svc"].support_vectors_', 'records', 4), ('model["standardscaler"].mean_', 'sums', None)]
    """
    started = time.perf_counter()
    known = None if training_inputs is None else TrainingRows(training_inputs)
    holdings = [compared(holding, known) for holding in _holdings(model, known, trust_pickle)]
    order = list(KINDS)
    holdings = sorted(holdings, key=lambda holding: (order.index(holding.kind), -holding.count))
    telling = [holding for holding in holdings if holding.kind != "counts"]
    return Contents(
        method="reading",
        seconds=time.perf_counter() - started,
        reason="" if telling else NOTHING,
        holdings=tuple(holdings),
    )


def _holdings(model: object, known: TrainingRows | None, trust_pickle: bool) -> list[Holding]:
    if isinstance(model, str | Path) and Path(model).suffix.lower() == ".onnx":
        return onnx_graph.holdings(Path(model), known)
    if isinstance(model, str | Path) and Path(model).suffix.lower() == ".safetensors":
        return tensors.holdings(tensors.in_file(Path(model)), known)
    source: Any = load_model(model, trust_pickle=trust_pickle)
    if isinstance(source, nn.Module):
        return tensors.holdings(source.state_dict(), known)
    if isinstance(source, Mapping) and all(isinstance(value, Tensor) for value in source.values()):
        return tensors.holdings(source, known)
    if is_boosted(source):
        return tree_files.holdings(source)
    if is_estimator(source):
        return estimators.holdings(source, known)
    raise UnsupportedModel(
        f"There is nothing to look through in a {type(source).__name__}; give a fitted estimator, a torch module, a "
        "booster, or a model file."
    )
