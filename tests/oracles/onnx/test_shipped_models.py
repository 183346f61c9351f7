"""ONNX files as people ship them: open extents, whole numbers, several inputs and outputs, ZipMap, impossible sizes."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import divulge
from divulge.cli import app
from divulge.core.errors import InvalidInput, UnsupportedModel

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


def saved(path, nodes, inputs, outputs, weights=()):
    graph = helper.make_graph(
        [helper.make_node(op, list(taken), list(made), **options) for op, taken, made, options in nodes],
        "g",
        [helper.make_tensor_value_info(*entry) for entry in inputs],
        [helper.make_tensor_value_info(*entry) for entry in outputs],
        [numpy_helper.from_array(value, name) for name, value in dict(weights).items()],
    )
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
    return str(path)


def test_open_batch_height_and_width_take_the_shape_that_is_given(tmp_path):
    kernel = np.random.default_rng(0).standard_normal((2, 3, 3, 3)).astype(np.float32)
    path = saved(
        tmp_path / "conv.onnx",
        [("Conv", "xw", "c", {}), ("GlobalAveragePool", "c", "p", {}), ("Flatten", "p", "y", {})],
        [("x", TensorProto.FLOAT, ["n", 3, "h", "w"])],
        [("y", TensorProto.FLOAT, ["n", 2])],
        {"w": kernel},
    )
    with pytest.raises(InvalidInput, match="input_shape="):
        divulge.oracle(path)
    for shape in ((3, 8, 8), (3, 5, 11)):
        oracle = divulge.oracle(path, input_shape=shape, access="gradient")
        X = torch.randn(4, *shape)
        expected = torch.nn.functional.conv2d(X, torch.from_numpy(kernel)).mean((2, 3))
        torch.testing.assert_close(oracle.value(X), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(oracle.gradient(X)[0], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidInput, match="not"):
        divulge.oracle(path, input_shape=(1, 8, 8))


def test_whole_number_inputs_take_the_nearest_whole_number(tmp_path):
    path = saved(
        tmp_path / "ids.onnx",
        [("Cast", "x", "f", {"to": TensorProto.FLOAT}), ("MatMul", "fw", "y", {})],
        [("x", TensorProto.INT64, ["n", 3])],
        [("y", TensorProto.FLOAT, ["n", 1])],
        {"w": np.array([[1.0], [10.0], [100.0]], dtype=np.float32)},
    )
    oracle = divulge.oracle(path)
    assert oracle.value([[1.4, 2.0, 2.6], [0.0, -1.2, 9.0]]).flatten().tolist() == [321, 890]
    with pytest.raises(UnsupportedModel, match="ask this one for values"):
        divulge.oracle(path, access="gradient")


def test_several_inputs_and_outputs_lie_side_by_side_under_their_names(tmp_path):
    path = saved(
        tmp_path / "two.onnx",
        [("Add", "ab", "s", {}), ("Sub", "ab", "d", {})],
        [("a", TensorProto.FLOAT, ["n", 2]), ("b", TensorProto.FLOAT, ["n", 2])],
        [("s", TensorProto.FLOAT, ["n", 2]), ("d", TensorProto.FLOAT, ["n", 2])],
    )
    oracle = divulge.oracle(path, output="s,d")
    assert [(tensor.name, tensor.shape) for tensor in oracle.signature.inputs] == [("a", (2,)), ("b", (2,))]
    assert oracle.signature.outputs == ("s", "d")
    assert (oracle.input_dim, oracle.output_dim) == (4, 4)
    assert oracle.value([[1.0, 2.0, 10.0, 20.0]]).tolist() == [[11, 22, -9, -18]]
    assert divulge.oracle(path).value([[1.0, 2.0, 10.0, 20.0]]).tolist() == [[11, 22]]
    with pytest.raises(InvalidInput, match=r"takes a \(2,\), b \(2,\) side by side"):
        divulge.oracle(path, input_shape=(3,))


@pytest.mark.slow
@pytest.mark.parametrize("model", [LogisticRegression(max_iter=500), RandomForestClassifier(5, random_state=0)])
def test_a_scikit_learn_classifier_with_its_zipmap(tmp_path, model):
    skl2onnx = pytest.importorskip("skl2onnx")
    X, y = load_iris(return_X_y=True)
    X = X.astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        proto = skl2onnx.to_onnx(model.fit(X, y), X[:1])
    assert any(node.op_type == "ZipMap" for node in proto.graph.node)
    onnx.save(proto, tmp_path / "model.onnx")
    for output in (None, "output_probability"):
        oracle = divulge.oracle(str(tmp_path / "model.onnx"), output=output)
        assert oracle.output_kind == "probabilities"
        np.testing.assert_allclose(oracle.value(X), model.predict_proba(X), atol=1e-5)
        assert np.array_equal(oracle.label(X), model.predict(X))


@pytest.mark.parametrize("width", [2**40, 2**62])
def test_an_impossible_width_is_refused_in_one_sentence_before_memory_goes(tmp_path, width):
    path = saved(
        tmp_path / "wide.onnx",
        [("ReduceMean", "x", "y", {"axes": [1], "keepdims": 1})],
        [("x", TensorProto.FLOAT, ["n", width])],
        [("y", TensorProto.FLOAT, ["n", 1])],
    )
    for access in ("value", "gradient"):
        with pytest.raises(UnsupportedModel, match="divulge handles at most"):
            divulge.oracle(path, access=access)


def test_a_node_that_fails_prints_nothing_and_cannot_steer_a_terminal(tmp_path, capfd):
    path = saved(
        tmp_path / "tile.onnx",
        [("Tile", ["x", "s"], ["t"], {"name": "\x1b[2J"}), ("ReduceSum", ["t"], ["r"], {"keepdims": 0}),
         ("Add", ["x", "r"], ["y"], {})],
        [("x", TensorProto.FLOAT, ["n", 3])],
        [("y", TensorProto.FLOAT, ["n", 3])],
        {"s": np.array([1, 2**36])},
    )  # fmt: skip
    with pytest.raises(divulge.DivulgeError, match="ONNX Runtime could not answer") as refused:
        divulge.oracle(path).value(np.zeros((1, 3), dtype=np.float32))
    assert "\x1b" not in str(refused.value) + "".join(capfd.readouterr())


def test_an_input_without_an_entry_for_each_row_is_held(tmp_path):
    path = saved(
        tmp_path / "vad.onnx",
        [("ReduceMean", "s", "m", {"axes": [0, 2], "keepdims": 0}), ("Unsqueeze", ["m", "one"], ["u"], {}),
         ("Cast", ["rate"], ["r"], {"to": TensorProto.FLOAT}), ("Mul", "xr", "p", {}), ("Add", "pu", "y", {})],
        [("x", TensorProto.FLOAT, ["n", "samples"]), ("s", TensorProto.FLOAT, [2, "n", 3]),
         ("rate", TensorProto.INT64, [])],
        [("y", TensorProto.FLOAT, ["n", "samples"])],
        {"one": np.array([1])},
    )  # fmt: skip
    with pytest.raises(InvalidInput, match=r'fixed=\{"rate": NUMBER\}'):
        divulge.oracle(path, input_shape=(4,))
    X = torch.randn(5, 4)
    torch.testing.assert_close(divulge.oracle(path, input_shape=(4,), fixed={"rate": 16}).value(X), 16 * X)
    held = divulge.oracle(path, input_shape=(4,), fixed={"rate": 2, "s": np.full((2, 1, 3), 7.0)})
    torch.testing.assert_close(held.value(X), 2 * X + 7)
    assert {one.name for one in held.signature.held} == {"s", "rate"}
    with pytest.raises(InvalidInput, match="no input 'sr'"):
        divulge.oracle(path, input_shape=(4,), fixed={"sr": 1})


def test_rows_that_a_graph_mixes_are_asked_one_by_one(tmp_path):
    path = saved(
        tmp_path / "sequence.onnx",
        [("CumSum", ["x", "axis"], ["y"], {})],
        [("x", TensorProto.FLOAT, ["n", 3])],
        [("y", TensorProto.FLOAT, ["n", 3])],
        {"axis": np.array(0)},
    )
    X = torch.randn(4, 3)
    assert torch.equal(divulge.oracle(path).value(X), X)


def test_an_answer_without_rows_is_asked_one_by_one(tmp_path):
    path = saved(
        tmp_path / "mean.onnx",
        [("ReduceSum", "x", "y", {"keepdims": 0})],
        [("x", TensorProto.FLOAT, [-1, 3])],
        [("y", TensorProto.FLOAT, [])],
    )
    X = torch.randn(4, 3)
    torch.testing.assert_close(divulge.oracle(path).value(X), X.sum(dim=1, keepdim=True))


def test_one_shape_serves_every_input_that_is_open_like_it(tmp_path):
    path = saved(
        tmp_path / "text.onnx",
        [("Mul", ["ids", "mask"], ["p"], {}), ("Cast", "p", "y", {"to": TensorProto.FLOAT})],
        [("ids", TensorProto.INT64, ["n", "length"]), ("mask", TensorProto.INT64, ["n", "length"])],
        [("y", TensorProto.FLOAT, ["n", "length"])],
    )
    both = divulge.oracle(path, input_shape=(2,))
    assert both.value([[3, 4, 1, 0]]).tolist() == [[3, 0]]
    masked = divulge.oracle(path, input_shape={"ids": (2,)}, fixed={"mask": 1})
    assert masked.value([[3, 4]]).tolist() == [[3, 4]]


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--input-shape", "3,6,6"], []])
def test_the_shape_on_the_command_line_reaches_the_audit(tmp_path, words):
    kernel = np.random.default_rng(0).standard_normal((2, 3, 3, 3)).astype(np.float32)
    path = saved(
        tmp_path / "conv.onnx",
        [("Conv", "xw", "c", {}), ("GlobalAveragePool", "c", "p", {}), ("Flatten", "p", "y", {})],
        [("x", TensorProto.FLOAT, [-1, 3, -1, -1])],
        [("y", TensorProto.FLOAT, ["n", 2])],
        {"w": kernel},
    )
    done = CliRunner().invoke(app, ["audit", path, "--time", "2s", "--out", str(tmp_path / "out"), *words])
    assert done.exit_code == (0 if words else 2), done.output
    if not words:
        assert "--input-shape 3,224,224" in done.stderr
