"""What an ONNX graph holds of the training table: operators of SVMs, neighbours, scalers, encoders and imputers.

An SVM operator has its support vectors as an attribute. Nearest neighbours, Gaussian processes and kernel methods are
written as distances (CDist, or a Scan) to a constant matrix: the training rows. Scalers, encoders and imputers have
their statistics as attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from divulge.contents.comparison import TrainingRows, found_by_comparing
from divulge.contents.result import Holding, HoldingKind
from divulge.core.errors import InvalidInput, MissingPackage

_SVM = ("SVMClassifier", "SVMRegressor")
_ARITHMETIC = {"Add": np.subtract, "Sub": np.add, "Mul": np.divide, "Div": np.multiply}
"""What undoes an operator with a constant as its second input."""
_LISTS: dict[str, tuple[tuple[str, HoldingKind, str], ...]] = {
    "Scaler": (("offset", "sums", "The mean (or the smallest value) of every column."),),
    "Imputer": (("imputed_value_floats", "values", "What stands for missing values, column by column."),
                ("imputed_value_int64s", "values", "What stands for missing values, column by column.")),
    "OneHotEncoder": (("cats_strings", "categories", "Every category that occurs in the records."),
                      ("cats_int64s", "categories", "Every category that occurs in the records.")),
    "LabelEncoder": (("keys_strings", "categories", "Every category that occurs in the records."),),
    "CategoryMapper": (("cats_strings", "categories", "Every category that occurs in the records."),),
    "TfIdfVectorizer": (("pool_strings", "categories", "Every word that it kept of the training texts."),),
    "StringNormalizer": (),
}  # fmt: skip


def holdings(path: Path, known: TrainingRows | None) -> list[Holding]:
    """What the operators and constants of a graph hold."""
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError as error:
        raise MissingPackage("ONNX files need the extra: pip install 'divulge[onnx]'.") from error
    try:
        graph = onnx.load(str(path)).graph
    except Exception as error:  # protobuf's refusals are of several classes
        raise InvalidInput(f"{path} is not a readable ONNX file: {error}") from error
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    producers = {name: node for node in graph.node for name in node.output}
    found = [holding for node in graph.node for holding in _of_node(node, constants, producers)]
    if known is None:
        return found
    named = {holding.where for holding in found}
    compared = [found_by_comparing(name, array, known) for name, array in constants.items() if name not in named]
    return found + [holding for holding in compared if holding is not None]


def _of_node(node: Any, constants: dict[str, Any], producers: dict[str, Any]) -> Iterator[Holding]:
    from onnx.helper import get_attribute_value

    attributes = {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}
    where = node.name or node.op_type
    if node.op_type in _SVM and len(attributes.get("support_vectors", ())):
        yield from _support_vectors(node, attributes, where, constants, producers)
    if node.op_type == "CDist" or (node.op_type == "Scan" and _computes_distances(attributes["body"])):
        for name in node.input:
            array = constants.get(name)
            if array is not None and array.ndim == 2 and min(array.shape) > 1 and array.dtype.kind == "f":
                other = next(other for other in node.input if other != name)
                yield _rows(
                    name, array, f"The rows that {node.op_type} computes distances to.", other, constants, producers
                )
    for name, kind, detail in _LISTS.get(node.op_type, ()):
        if len(attributes.get(name, ())):
            yield Holding(f"{where}.{name}", kind, len(attributes[name]), detail)


def _computes_distances(body: Any) -> bool:
    """Whether the body of a Scan subtracts rows and sums what is left: a distance."""
    used = {node.op_type for node in body.node}
    return "Sub" in used and bool(used & {"ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceSum"})


def _support_vectors(
    node: Any, attributes: dict[str, Any], where: str, constants: dict[str, Any], producers: dict[str, Any]
) -> Iterator[Holding]:
    flat = np.asarray(attributes["support_vectors"], dtype=np.float64)
    per_class = attributes.get("vectors_per_class")
    count = int(np.sum(per_class)) if per_class is not None else int(attributes.get("n_supports", 0))
    if count > 0 and len(flat) % count == 0:
        detail = "The rows at the margin: its support vectors."
        yield _rows(f"{where}.support_vectors", flat.reshape(count, -1), detail, node.input[0], constants, producers)


def _rows(
    where: str, rows: Any, detail: str, features: str, constants: dict[str, Any], producers: dict[str, Any]
) -> Holding:
    """Rows as they were before the scalers that lie between the input of the graph and these features."""
    from onnx.helper import get_attribute_value

    rows, name = np.asarray(rows, dtype=np.float64), features
    while name in producers:
        node = producers[name]
        attributes = {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type == "Scaler":
            rows = rows / np.asarray(attributes["scale"]) + np.asarray(attributes["offset"])
        elif node.op_type in _ARITHMETIC and len(node.input) == 2 and node.input[1] in constants:
            rows = _ARITHMETIC[node.op_type](rows, constants[node.input[1]].astype(np.float64))
        elif node.op_type not in ("Identity", "Cast"):
            detail += f" As features: {node.op_type} cannot be undone."
            return Holding(where, "records", len(rows), detail, rows)
        name = node.input[0]
    return Holding(where, "records", len(rows), detail, rows, verbatim=True)
