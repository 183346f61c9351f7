"""A remote model answers as it would at home: over v2 (JSON and bytes), KServe v1 and MLflow, in its own precision."""

from __future__ import annotations

import json
import warnings

import httpx
import numpy as np
import pytest
import torch
from torch import nn

import divulge
from divulge import serving
from divulge.core import errors
from divulge.models import MLP
from divulge.oracles.guards import LabelOnly, Noisy, Rounded
from divulge.oracles.remote.http import HttpOracle


def network(widths=(6, 8, 3), seed=0, dtype=torch.float64) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MLP(list(widths)).to(dtype)


def rows(n: int, d: int = 6, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# -- Open Inference Protocol v2, against our own server ---------------------------------------------------------------


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_gradients_and_labels_are_those_of_the_model_bit_for_bit(dtype, binary, monkeypatch):
    if not binary:
        monkeypatch.setattr("divulge.oracles.remote.protocols.open_inference.BINARY", "something else")
    model, X = network(dtype=dtype), rows(50)
    local = divulge.oracle(model, access="gradient")
    with serving.running(model, gradients=True) as url, HttpOracle(url, access="gradient", batch_size=50) as remote:
        assert remote._signature.binary == binary
        assert (remote.input_dim, remote.output_dim, remote.dtype) == (6, 3, dtype)
        assert torch.equal(remote.value(X), local.value(X))
        for there, here in zip(remote.gradient(X), local.gradient(X), strict=True):
            assert torch.equal(there, here)
        assert torch.equal(remote.label(X), local.label(X))
        assert remote.ledger.snapshot().as_dict() == {
            "value": 50, "gradient": 50, "label": 50, "total": 150, "requests": 3,
        }  # fmt: skip
        assert remote.eps == torch.finfo(dtype).eps


def test_answers_may_be_written_to_like_any_tensor():
    with serving.running(network()) as url, HttpOracle(url) as remote, warnings.catch_warnings():
        warnings.simplefilter("error")
        remote.value(rows(3)).mul_(2)


def test_a_large_question_travels_in_batches_that_the_server_allows():
    model, X = network(), rows(500)
    with serving.running(model, max_batch=64) as url, HttpOracle(url) as remote:
        torch.testing.assert_close(remote.value(X), model(X).detach())
        assert (remote.ledger.value, remote.ledger.requests) == (500, 8)
        assert remote.network_seconds > 0


def test_divulge_oracle_opens_an_address():
    with serving.running(network()) as url:
        oracle = divulge.oracle(url, access="label", budget=10)
        assert oracle.label(rows(10)).shape == (10,)
        with pytest.raises(errors.BudgetExhausted):
            oracle.label(rows(1))
        oracle.close()


def test_a_picture_model_keeps_its_shape():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)).double()
    oracle = divulge.oracle(model, access="gradient", input_shape=(1, 4, 4))
    with serving.running(oracle) as url, HttpOracle(url, access="gradient") as remote:
        assert (remote.input_shape, remote.input_dim) == ((1, 4, 4), 16)
        _, gradients = remote.gradient(rows(3, 16))
        torch.testing.assert_close(gradients, oracle.gradient(rows(3, 16))[1])


def test_a_server_of_labels_is_asked_for_labels_and_refuses_values():
    inner = divulge.oracle(network())
    with serving.running(LabelOnly(inner)) as url:
        with HttpOracle(url, access="label") as remote:
            assert torch.equal(remote.label(rows(20)), inner.label(rows(20)))
            assert (remote.output_dim, remote.ledger.label) == (3, 20)
            remote.check_deterministic()
            assert remote.ledger.label == 22
        with pytest.raises(errors.AccessDenied, match="labels only"):
            HttpOracle(url, access="value")


def test_a_single_probability_is_decided_at_the_threshold_that_the_server_announces():
    model = nn.Sequential(nn.Linear(6, 1), nn.Sigmoid()).double()
    local = divulge.oracle(model)
    local.threshold = 0.5
    with serving.running(local) as url:
        with HttpOracle(url) as remote:
            assert torch.equal(remote.label(rows(40)), local.label(rows(40)))
            assert 0 < remote.label(rows(40)).sum() < 40
        with divulge.oracle(url, threshold=-1.0, retries=0) as remote:
            assert remote.label(rows(40)).sum() == 40


def test_rounding_passes_the_wire():
    with serving.running(Rounded(divulge.oracle(network()), 2)) as url, HttpOracle(url) as remote:
        values = remote.value(rows(5))
        torch.testing.assert_close(values, values.mul(100).round().div(100))


def test_fresh_noise_is_found_out_even_through_a_journal(tmp_path):
    with serving.running(Noisy(divulge.oracle(network()), 0.1)) as url:
        with HttpOracle(url, journal=tmp_path / "answers.db") as remote:
            assert torch.equal(remote.value(rows(2)), remote.value(rows(2)))  # the record says the same twice
            with pytest.raises(errors.NotDeterministic, match="noisy"):
                remote.check_deterministic()
            assert remote.ledger.value == 6
        with HttpOracle(url) as remote:
            assert not torch.equal(remote.value(rows(2)), remote.value(rows(2)))


def test_a_failed_check_gives_its_rows_back(opened):
    _, oracle = opened(lambda n, body: (400, {}, b""))
    with pytest.raises(errors.ServerRefused):
        oracle.check_deterministic()
    assert oracle.ledger.total == 0


def test_precision_double_needs_a_server_of_doubles():
    with serving.running(network(dtype=torch.float32)) as url, pytest.raises(errors.UnsupportedModel, match="FP64"):
        HttpOracle(url, precision="double")
    with serving.running(network()) as url, HttpOracle(url, precision="double") as remote:
        assert remote.dtype == torch.float64


def test_a_server_that_announces_no_gradient_grants_none():
    with serving.running(network()) as url, pytest.raises(errors.AccessDenied, match="gradient_output"):
        HttpOracle(url, access="gradient")


def test_the_stats_of_the_server_agree_with_the_ledger():
    with serving.running(network(), gradients=True) as url, HttpOracle(url, access="gradient") as remote:
        remote.value(rows(30))
        remote.gradient(rows(7))
        stats = httpx.get(f"{url}/stats", trust_env=False).json()
        assert {"name": "model", **remote.ledger.snapshot().as_dict()} == stats


# -- v2 as other servers speak it -------------------------------------------------------------------------------------


def tensor(name: str, datatype: str, shape: list[int]) -> dict[str, object]:
    return {"name": name, "datatype": datatype, "shape": shape}


def v2_server(metadata: dict, answer, root: dict | None = None):
    def script(method, path, headers, body):
        if method == "GET":
            page = metadata if "/models/" in path else root
            return (200, {}, json.dumps(page).encode()) if page is not None else (404, {}, b"")
        return 200, {}, json.dumps({"outputs": answer(json.loads(body))}).encode()

    return script


def sums(request: dict, **changes) -> list[dict]:
    given = request["inputs"][0]
    X = np.array(given["data"]).reshape(given["shape"][0], -1)
    return [tensor("y", "FP32", [len(X), 1]) | {"data": X.sum(1, keepdims=True).tolist()} | changes]


def test_a_server_that_announces_nothing_is_told_the_shape_and_asked_one_row_for_the_rest(scripted, tmp_path):
    requests = []

    def answer(request):
        requests.append(request)
        return sums(request)

    url = scripted(v2_server({"name": "m"}, answer)) + "/v2/models/m"
    with pytest.raises(errors.InvalidInput, match="input_shape"):
        HttpOracle(url)
    with HttpOracle(url, input_shape=(2, 3), journal=tmp_path / "answers.db") as oracle:
        assert (oracle.output_dim, oracle.ledger.value, oracle.dtype) == (1, 1, torch.float64)
        torch.testing.assert_close(oracle.value(rows(4)), rows(4).sum(1, keepdim=True))
    with HttpOracle(url, input_shape=(2, 3), journal=tmp_path / "answers.db") as oracle:  # even that row is recorded
        assert (oracle.output_dim, oracle.ledger.value, oracle.ledger.requests) == (1, 1, 0)
    with HttpOracle(url, input_shape=(2, 3), output_dim=1, dtype=torch.float32) as oracle:
        assert (oracle.ledger.value, oracle.dtype) == (0, torch.float32)
    assert [request["inputs"][0]["shape"] for request in requests] == [[1, 2, 3], [4, 2, 3]]
    assert "outputs" not in requests[0]
    with pytest.raises(errors.BudgetExhausted):
        HttpOracle(url, input_shape=(6,), budget=0)


def test_the_first_row_is_given_back_when_it_fails(scripted):
    url = scripted(v2_server({"name": "m"}, lambda request: [tensor("y", "BYTES", [1]) | {"data": ["cat"]}]))
    with pytest.raises(errors.BadAnswer, match="label_output"):
        HttpOracle(url + "/v2/models/m", input_shape=(6,))


@pytest.mark.parametrize(
    ("metadata", "options", "said"),
    [
        ({"inputs": [tensor("a", "FP32", [-1, 6]), tensor("b", "FP32", [-1, 6])]}, {}, "2 inputs"),
        ({"inputs": [tensor("a", "BYTES", [-1, 6])]}, {}, "BYTES"),
        ({"inputs": [tensor("a", "FP32", [8, 6])]}, {}, "fixed shape"),
        ({"inputs": [tensor("a", "FP32", [-1, -1])]}, {}, "input_shape"),
        ({"inputs": [tensor("a", "FP32", [-1, 6])], "outputs": [tensor("c", "INT64", [-1])]}, {}, "label_output"),
    ],
)
def test_models_that_cannot_be_asked_say_why(scripted, metadata, options, said):
    with pytest.raises(errors.InvalidInput, match=said):
        HttpOracle(scripted(v2_server(metadata, sums)) + "/v2/models/m", **options)


def test_coarser_of_the_announced_formats_is_the_oracle_s(scripted):
    metadata = {"inputs": [tensor("x", "FP64", [6])], "outputs": [tensor("y", "FP32", [-1, 1])]}
    with HttpOracle(scripted(v2_server(metadata, sums, root={"extensions": None})) + "/v2/models/m") as oracle:
        assert (oracle.dtype, oracle.input_shape) == (torch.float32, (6,))
        torch.testing.assert_close(oracle.value(rows(4)), rows(4).float().sum(1, keepdim=True))


def test_a_model_of_batch_one_is_asked_row_by_row(scripted):
    metadata = {"inputs": [tensor("x", "FP64", [1, 6])], "outputs": [tensor("y", "FP64", [1, 1])]}
    with HttpOracle(scripted(v2_server(metadata, sums)) + "/v2/models/m/infer") as oracle:
        oracle.value(rows(5))
        assert oracle.ledger.requests == 5


def test_named_outputs_are_read(scripted):
    metadata = {
        "inputs": [tensor("x", "FP64", [-1, 6])],
        "outputs": [tensor(n, "FP64", [-1, 1]) for n in ("other", "y")] + [tensor("class", "INT32", [-1, 1])],
    }

    def answer(request):
        (y,) = sums(request)
        wanted = {output["name"] for output in request["outputs"]}
        n = y["shape"][0]
        tensors = [y, tensor("slope", "FP64", [n, 6]) | {"data": [1.0] * (6 * n)}]
        tensors.append(tensor("class", "INT32", [n, 1]) | {"data": [[7]] * n})
        return [output for output in tensors if output["name"] in wanted]

    metadata["outputs"].append(tensor("slope", "FP64", [-1, 6]))
    names = {"output": "y", "gradient_output": "slope", "label_output": "class"}
    with HttpOracle(scripted(v2_server(metadata, answer)) + "/v2/models/m", access="gradient", **names) as oracle:
        values, gradients = oracle.gradient(rows(4))
        torch.testing.assert_close(values, rows(4).sum(1, keepdim=True))
        assert torch.equal(gradients, torch.ones(4, 1, 6, dtype=torch.float64))
        assert oracle.label(rows(4)).tolist() == [7, 7, 7, 7]


@pytest.mark.parametrize("data", [[0.5, 1.0], [float("nan"), 1.0]])
def test_labels_are_whole_numbers(scripted, data):
    metadata = {"inputs": [tensor("x", "FP64", [-1, 6])], "outputs": [tensor("label", "INT64", [-1])]}
    url = scripted(v2_server(metadata, lambda request: [tensor("label", "FP64", [2]) | {"data": data}]))
    with HttpOracle(url + "/v2/models/m", access="label") as oracle:
        assert oracle.output_dim == 1
        with pytest.raises(errors.BadAnswer, match="whole number"):
            oracle.label(rows(2))


def test_gradients_of_the_wrong_width_are_refused(scripted):
    metadata = {
        "inputs": [tensor("x", "FP64", [-1, 6])],
        "outputs": [tensor("y", "FP64", [-1, 1]), tensor("gradient", "FP64", [-1, 6])],
    }
    bad = tensor("gradient", "FP64", [2, 5]) | {"data": [1.0] * 10}
    url = scripted(v2_server(metadata, lambda request: [*sums(request), bad])) + "/v2/models/m"
    with HttpOracle(url, access="gradient") as oracle, pytest.raises(errors.BadAnswer, match="gradients of shape"):
        oracle.gradient(rows(2))


def test_where_labels_are_all_that_is_asked_no_row_is_spent_on_the_number_of_outputs(scripted):
    url = scripted(v2_server({"name": "m"}, lambda request: [tensor("predict", "INT64", [3, 1]) | {"data": [4, 5, 6]}]))
    with HttpOracle(url + "/v2/models/m", access="label", input_shape=(6,), label_output="predict") as oracle:
        assert oracle.label(rows(3)).tolist() == [4, 5, 6]
        assert (oracle.ledger.label, oracle.ledger.requests, oracle.output_dim) == (3, 1, 1)


# -- KServe v1 --------------------------------------------------------------------------------------------------------


def v1_server(explain=lambda X: {"predictions": X.sum(1).tolist(), "explanations": np.ones_like(X).tolist()}):
    def script(method, path, headers, body):
        if method == "GET":
            return 200, {}, json.dumps({"name": "m", "ready": True}).encode()
        X = np.array(json.loads(body)["instances"]).reshape(-1, 6)
        answer = explain(X) if path.endswith(":explain") else {"predictions": X.sum(1).tolist()}
        return 200, {}, json.dumps(answer).encode()

    return script


def test_kserve_v1_predicts_and_explains(scripted):
    url = scripted(v1_server()) + "/v1/models/m"
    with HttpOracle(url + ":predict", access="gradient", input_shape=(2, 3), output_dim=1) as oracle:
        torch.testing.assert_close(oracle.value(rows(4)), rows(4).sum(1, keepdim=True))
        values, gradients = oracle.gradient(rows(4))
        torch.testing.assert_close(values, rows(4).sum(1, keepdim=True))
        assert torch.equal(gradients, torch.ones(4, 1, 6, dtype=torch.float64))
        assert torch.equal(oracle.label(rows(4)), (rows(4).sum(1) > 0).long())
        assert oracle.ledger.requests == 3


def test_an_explainer_without_predictions_costs_a_second_request(scripted):
    explain = v1_server(lambda X: {"explanations": [{"slope": row} for row in np.ones_like(X).tolist()]})
    options = {"access": "gradient", "input_shape": (6,), "output_dim": 1, "gradient_output": "slope"}
    with HttpOracle(scripted(explain) + "/v1/models/m", **options) as oracle:
        values, gradients = oracle.gradient(rows(4))
        torch.testing.assert_close(values, rows(4).sum(1, keepdim=True))
        assert gradients.sum() == 24
        assert (oracle.ledger.gradient, oracle.ledger.requests) == (4, 2)


@pytest.mark.parametrize(
    "answer",
    [{}, {"explanations": None}, {"explanations": "none"}, {"explanations": [[1.0]] * 4}, {"explanations": 1.0}],
)
def test_an_explanation_that_is_no_gradient_is_refused(scripted, answer):
    url = scripted(v1_server(lambda X: answer)) + "/v1/models/m"
    with HttpOracle(url, access="gradient", input_shape=(6,), output_dim=1) as oracle:
        with pytest.raises(errors.BadAnswer):
            oracle.gradient(rows(4))
        assert oracle.ledger.total == 0


# -- MLflow -----------------------------------------------------------------------------------------------------------


def mlflow_server(columns=None, answer=lambda X: X.sum(1).tolist()):
    def script(method, path, headers, body):
        question = json.loads(body)
        if columns is not None:
            assert question["dataframe_split"]["columns"] == columns
        X = np.array(question["inputs"] if columns is None else question["dataframe_split"]["data"]).reshape(-1, 6)
        return 200, {}, json.dumps({"predictions": answer(X)}).encode()

    return script


def test_mlflow_takes_tensors(scripted):
    with HttpOracle(scripted(mlflow_server()) + "/invocations", input_shape=(6,)) as oracle:
        torch.testing.assert_close(oracle.value(rows(4)), rows(4).sum(1, keepdim=True))
        assert oracle.output_dim == 1


def test_mlflow_takes_named_columns_and_answers_records(scripted):
    columns = list("abcdef")

    def answer(X):
        return [{"score": [total], "slope": [1.0] * 6, "class": 3} for total in X.sum(1).tolist()]

    url = scripted(mlflow_server(columns, answer)) + "/invocations"
    names = {"output": "score", "gradient_output": "slope", "label_output": "class"}
    with HttpOracle(url, access="gradient", columns=columns, **names) as oracle:
        values, gradients = oracle.gradient(rows(4))
        torch.testing.assert_close(values, rows(4).sum(1, keepdim=True))
        assert gradients.shape == (4, 1, 6)
        assert oracle.label(rows(2)).tolist() == [3, 3]
    with pytest.raises(errors.BadAnswer, match="nothing"):
        HttpOracle(url, columns=columns, output="nothing")


def test_mlflow_may_answer_a_table_of_columns(scripted):
    url = scripted(mlflow_server(answer=lambda X: {"score": X.sum(1).tolist()})) + "/invocations"
    with HttpOracle(url, input_shape=(6,), output="score") as oracle:
        torch.testing.assert_close(oracle.value(rows(4)), rows(4).sum(1, keepdim=True))
    with pytest.raises(errors.AccessDenied, match="gradient_output"):
        HttpOracle(url, input_shape=(6,), access="gradient")
