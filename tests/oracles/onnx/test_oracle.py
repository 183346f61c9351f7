"""ONNX files as others write them: read into torch where the operators are known, and refused by name where not."""

from __future__ import annotations

import builtins

import numpy as np
import pytest
import torch
from torch import nn

import divulge
from divulge.core.errors import InvalidInput, MissingPackage, UnsupportedModel
from divulge.models import MLP
from divulge.oracles import load_model
from divulge.oracles.onnx.assembly import Graph
from divulge.oracles.onnx.graph import read_onnx

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

RNG = np.random.default_rng(0)


def drawn(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs, [output], name=f"{op}_of_{output}", **attributes)


def saved(
    path, nodes, weights, *, shape=("n", 4), outputs=(("y", TensorProto.FLOAT, ["n", "k"]),), kind=TensorProto.FLOAT
):
    """An ONNX file with the input x and the outputs named."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(*output) for output in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return str(path)


def agrees(path, *, rows=6, **options):
    """The oracle of a file whose reading in torch was seen to answer as ONNX Runtime does."""
    runtime, read = divulge.oracle(path, **options), divulge.oracle(path, access="weights", **options)
    X = torch.randn(rows, runtime.input_dim, generator=torch.Generator().manual_seed(2))
    values, gradients = read.gradient(X)
    torch.testing.assert_close(values, runtime.value(X), rtol=1e-4, atol=1e-5)
    double = divulge.oracle(path, access="gradient", precision="double", **options)
    wide, slopes = double.gradient(X.double())
    torch.testing.assert_close(wide.float(), values, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(slopes.float(), gradients, rtol=1e-3, atol=1e-4)
    return read


def test_a_network_as_scikit_learns_converter_writes_it(tmp_path):
    W, b, V, c = drawn(4, 5), drawn(1, 5), drawn(5, 3), drawn(3)
    nodes = [
        node("Cast", ["x"], "cast", to=TensorProto.FLOAT),
        node("MatMul", ["cast", "W"], "h"),
        node("Add", ["h", "b"], "hb"),
        node("Relu", ["hb"], "r"),
        node("MatMul", ["r", "V"], "z"),
        node("Add", ["c", "z"], "zc"),
        node("Softmax", ["zc"], "probabilities", axis=1),
        node("ArgMax", ["probabilities"], "label", axis=1, keepdims=0),
    ]
    path = saved(
        tmp_path / "m.onnx", nodes, {"W": W, "b": b, "V": V, "c": c},
        outputs=(("label", TensorProto.INT64, ["n"]), ("probabilities", TensorProto.FLOAT, ["n", 3])),
    )  # fmt: skip
    weights = agrees(path).weights()
    assert [type(layer) for layer in weights] == [nn.Linear, nn.ReLU, nn.Linear, nn.Softmax]
    np.testing.assert_allclose(weights[0].weight.detach(), W.T)
    np.testing.assert_allclose(weights[2].bias.detach(), c)
    assert isinstance(load_model(path), nn.Sequential)
    assert divulge.oracle(path, output="probabilities").output_dim == 3


def test_a_scaler_and_a_linear_classifier_of_the_ml_domain(tmp_path):
    nodes = [
        helper.make_node("Scaler", ["x"], ["scaled"], domain="ai.onnx.ml", offset=[1.0, 2, 3, 4], scale=[0.5, 1, 2, 3]),
        helper.make_node(
            "LinearClassifier", ["scaled"], ["label", "scores"], domain="ai.onnx.ml", classlabels_ints=[0, 1, 2],
            coefficients=drawn(12).tolist(), intercepts=drawn(3).tolist(), post_transform="LOGISTIC",
        ),
        helper.make_node("Normalizer", ["scores"], ["y"], domain="ai.onnx.ml", norm="L1"),
    ]  # fmt: skip
    agrees(saved(tmp_path / "m.onnx", nodes, {}, outputs=(("y", TensorProto.FLOAT, ["n", 3]),)))


def test_a_linear_regressor_of_the_ml_domain(tmp_path):
    nodes = [
        helper.make_node(
            "LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml", coefficients=[1.0, 2, 3, 4], intercepts=[0.5]
        )
    ]
    path = saved(tmp_path / "m.onnx", nodes, {}, outputs=(("y", TensorProto.FLOAT, ["n", 1]),))
    weights = agrees(path).weights()
    assert weights[0].weight.tolist() == [[1, 2, 3, 4]]


def test_gemm_with_factors_and_without_transposition(tmp_path):
    nodes = [node("Gemm", ["x", "W", "b"], "y", alpha=0.5, beta=2.0)]
    weights = agrees(saved(tmp_path / "m.onnx", nodes, {"W": drawn(4, 3), "b": drawn(3)})).weights()
    assert isinstance(weights, MLP)


def test_arithmetic_with_constants_is_folded_or_kept(tmp_path):
    nodes = [
        node("Sub", ["x", "mean"], "a"),
        node("Div", ["a", "deviation"], "b"),
        node("Gemm", ["b", "W"], "c"),
        node("Mul", ["c", "two"], "d"),
        node("Sub", ["three", "d"], "e"),
        node("Tanh", ["e"], "f"),
        node("Mul", ["f", "gain"], "y"),
    ]
    constants = {"mean": drawn(4), "deviation": np.abs(drawn(4)) + 1, "W": drawn(4, 3), "two": np.float32(2),
                 "three": np.float32(3), "gain": drawn(3)}  # fmt: skip
    weights = agrees(saved(tmp_path / "m.onnx", nodes, constants)).weights()
    assert [type(layer).__name__ for layer in weights] == ["Scale", "Scale", "Linear", "Tanh", "Scale"]


@pytest.mark.parametrize(
    "pads",
    [{"pads": [1, 0, 0, 1]}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, {"auto_pad": "VALID"}],
)
def test_uneven_padding(tmp_path, pads):
    nodes = [
        node("Conv", ["x", "K", "b"], "c", strides=[2, 1], **pads),
        node("BatchNormalization", ["c", "s", "t", "m", "v"], "n"),
        node("Relu", ["n"], "r"),
        node("MaxPool", ["r"], "p", kernel_shape=[2, 2], **pads),
        node("GlobalAveragePool", ["p"], "g"),
        node("Flatten", ["g"], "y"),
    ]
    constants = {"K": drawn(3, 2, 3, 2), "v": np.abs(drawn(3)) + 0.1, **{name: drawn(3) for name in "bstm"}}
    agrees(saved(tmp_path / "m.onnx", nodes, constants, shape=("n", 2, 7, 6)))


def test_shapes_that_change_on_the_way(tmp_path):
    nodes = [
        node("Unsqueeze", ["x", "one"], "a"),
        node("Reshape", ["a", "square"], "b"),
        node("Conv", ["b", "K"], "c"),
        node("ReduceMean", ["c"], "d", axes=[2, 3], keepdims=1),
        node("Squeeze", ["d", "last"], "e"),
        node("Identity", ["e"], "y"),
    ]
    constants = {
        "one": np.array([1]),
        "square": np.array([0, 1, 4, 4]),
        "K": drawn(3, 1, 2, 2),
        "last": np.array([2, 3]),
    }
    agrees(saved(tmp_path / "m.onnx", nodes, constants, shape=("n", 16)))


def test_pictures_with_their_channels_last(tmp_path):
    nodes = [
        node("Transpose", ["x"], "a", perm=[0, 3, 1, 2]),
        node("Conv", ["a", "K"], "b"),
        node("Flatten", ["b"], "y"),
    ]
    agrees(saved(tmp_path / "m.onnx", nodes, {"K": drawn(3, 2, 2, 2)}, shape=("n", 4, 4, 2)))


def test_a_residual_connection_becomes_a_graph(tmp_path):
    nodes = [
        node("Gemm", ["x", "W"], "a"),
        node("Relu", ["a"], "b"),
        node("Add", ["b", "x"], "c"),
        node("Elu", ["c"], "y", alpha=0.5),
    ]
    assert isinstance(agrees(saved(tmp_path / "m.onnx", nodes, {"W": drawn(4, 4)})).weights(), Graph)


def test_a_file_as_torch_writes_it(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3)
            self.drop, self.last = nn.Dropout(), nn.Linear(48, 5)

        def forward(self, X):
            X = torch.max_pool2d(torch.relu(self.norm(self.conv(X))), 2)
            return torch.log_softmax(self.last(self.drop(X.view(X.size(0), -1))), 1)

    torch.manual_seed(0)
    model = Net().eval()
    path = tmp_path / "m.onnx"
    try:
        torch.onnx.export(
            model, (torch.zeros(1, 1, 8, 8),), path, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "n"}}
        )
    except Exception as error:
        pytest.skip(f"torch cannot export here: {error}")
    weights = agrees(str(path)).weights()
    kinds = [nn.Conv2d, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.Linear, nn.LogSoftmax]
    assert [type(layer) for layer in weights] == kinds
    X = torch.randn(5, 64)
    torch.testing.assert_close(divulge.oracle(str(path)).value(X), model(X.reshape(5, 1, 8, 8)))


def test_a_fixed_batch_is_filled_up(tmp_path):
    nodes = [node("Reshape", ["x", "shape"], "a"), node("Gemm", ["a", "W"], "y")]
    path = saved(
        tmp_path / "m.onnx", nodes, {"shape": np.array([3, 4]), "W": drawn(4, 2)}, shape=(3, 2, 2),
        outputs=(("y", TensorProto.FLOAT, [3, 2]),),
    )  # fmt: skip
    oracle = agrees(path, rows=7)
    assert oracle.input_shape == (2, 2)


def test_a_width_left_open_is_read_off_the_first_matrix_or_asked_for(tmp_path):
    matrix = [node("Gemm", ["x", "W"], "y", transB=1)]
    path = saved(tmp_path / "m.onnx", matrix, {"W": drawn(2, 4)}, shape=("n", "d"))
    assert agrees(path).input_dim == 4
    relu = saved(tmp_path / "r.onnx", [node("Relu", ["x"], "y")], {}, shape=("n", "d"))
    with pytest.raises(InvalidInput, match="input_shape"):
        divulge.oracle(relu)
    assert divulge.oracle(relu, input_shape=(5,)).input_dim == 5
    with pytest.raises(InvalidInput, match=r"\(4,\)"):
        divulge.oracle(saved(tmp_path / "f.onnx", matrix, {"W": drawn(2, 4)}), input_shape=(5,))


def test_a_single_probability_is_decided_at_one_half(tmp_path):
    nodes = [node("Gemm", ["x", "W"], "z"), node("Sigmoid", ["z"], "s"), node("Identity", ["s"], "y")]
    oracle = divulge.oracle(saved(tmp_path / "m.onnx", nodes, {"W": drawn(4, 1)}))
    X = torch.randn(30, 4)
    assert torch.equal(oracle.label(X), (oracle.value(X)[:, 0] > 0.5).long())
    assert 0 < oracle.label(X).sum() < 30


REFUSED = {
    "Erf": ([node("Erf", ["x"], "y")], {}),
    "Concat": ([node("Relu", ["x"], "a"), node("Concat", ["a", "x"], "y", axis=1)], {}),
    "MatMul": (
        [node("Transpose", ["x"], "t", perm=[0, 1]), node("Relu", ["x"], "r"), node("Mul", ["t", "r"], "y")],
        {},
    ),
    "Div": ([node("Exp", ["x"], "e"), node("Div", ["one", "e"], "y")], {"one": np.float32(1)}),
    "Softmax": ([node("Softmax", ["x"], "y", axis=0)], {}),
    "Flatten": ([node("Flatten", ["x"], "f", axis=0), node("Reshape", ["f", "s"], "y")], {"s": np.array([-1, 4])}),
    "Transpose": ([node("Transpose", ["x"], "t"), node("Transpose", ["t"], "y")], {}),
    "Reshape": (
        [node("Reshape", ["x", "s"], "r"), node("Reshape", ["r", "t"], "y")],
        {"s": np.array([1, -1]), "t": np.array([-1, 4])},
    ),
    "Add": ([node("Add", ["x", "rows"], "y")], {"rows": np.ones((2, 4), np.float32)}),
    "ReduceMean": ([node("ReduceMean", ["x"], "y", axes=[1])], {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_by_name_and_still_answers_values(tmp_path, name):
    nodes, constants = REFUSED[name]
    path = saved(tmp_path / "m.onnx", nodes, constants)
    operators = "|".join({n.op_type for n in nodes})
    with pytest.raises(UnsupportedModel, match=rf"operator ({operators}) "):
        divulge.oracle(path, access="gradient")
    assert divulge.oracle(path).value(torch.ones(2, 4)).shape[0] == 2


def test_pools_that_cannot_be_read(tmp_path):
    for options, op in (({"ceil_mode": 1}, "MaxPool"), ({"pads": [1, 1, 1, 1]}, "AveragePool")):
        nodes = [node(op, ["x"], "y", kernel_shape=[2, 2], **options)]
        with pytest.raises(UnsupportedModel, match=op):
            read_onnx(saved(tmp_path / "m.onnx", nodes, {}, shape=("n", 1, 5, 5)))


def test_a_reading_that_disagrees_is_not_used(tmp_path, monkeypatch):
    path = saved(tmp_path / "m.onnx", [node("Gemm", ["x", "W"], "y")], {"W": drawn(4, 2)})
    wrong = MLP([4, 2]).eval()
    monkeypatch.setattr("divulge.oracles.onnx.oracle.read_onnx", lambda *args, **options: wrong)
    with pytest.raises(UnsupportedModel, match="does not answer as ONNX Runtime"):
        divulge.oracle(path, access="gradient")


def test_files_that_are_no_single_table_of_numbers(tmp_path):
    two = helper.make_graph(
        [node("Add", ["a", "b"], "y")], "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "ab"],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
    )  # fmt: skip
    onnx.save(helper.make_model(two, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "two.onnx")
    with pytest.raises(UnsupportedModel, match=r"2 \(a, b\)"):
        load_model(str(tmp_path / "two.onnx"))
    with pytest.raises(UnsupportedModel, match="one input and one output"):
        divulge.oracle(str(tmp_path / "two.onnx"), access="gradient")
    whole = saved(
        tmp_path / "w.onnx", [node("Identity", ["x"], "y")], {}, kind=TensorProto.INT64,
        outputs=(("y", TensorProto.INT64, ["n", 4]),),
    )  # fmt: skip
    with pytest.raises(UnsupportedModel, match="floating-point"):
        divulge.oracle(whole)
    label = saved(
        tmp_path / "l.onnx", [node("ArgMax", ["x"], "y", axis=1)], {}, outputs=(("y", TensorProto.INT64, ["n", 1]),)
    )
    with pytest.raises(UnsupportedModel, match="no output of numbers"):
        divulge.oracle(label)
    with pytest.raises(UnsupportedModel, match="labels"):
        divulge.oracle(label, output="y")
    X = torch.randn(9, 4)
    assert torch.equal(divulge.oracle(label, access="label").label(X), X.argmax(1))
    matrix = saved(tmp_path / "m.onnx", [node("Gemm", ["x", "W"], "y")], {"W": drawn(4, 2)})
    with pytest.raises(InvalidInput, match="no output 'z'"):
        divulge.oracle(matrix, output="z", access="gradient")
    with pytest.raises(InvalidInput, match="no output 'z'"):
        divulge.oracle(matrix, output="z")


def test_a_width_that_does_not_fit_the_weights_is_an_error(tmp_path):
    path = saved(tmp_path / "m.onnx", [node("Gemm", ["x", "W"], "y")], {"W": drawn(4, 2)}, shape=("n", "d"))
    with pytest.raises(InvalidInput, match=r"Gemm|shape"):
        read_onnx(path, input_shape=(5,))


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_names_the_extra(tmp_path, monkeypatch, package):
    path = saved(tmp_path / "m.onnx", [node("Gemm", ["x", "W"], "y")], {"W": drawn(4, 2)})
    real = builtins.__import__

    def without(name, *rest, **options):
        if name == package:
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingPackage, match=r"divulge\[onnx\]"):
        divulge.oracle(path)
