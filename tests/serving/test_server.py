"""The rehearsal server speaks the Open Inference Protocol v2 and refuses, in its words, what it does not take."""

from __future__ import annotations

import json
import socket

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import divulge
from divulge import serving
from divulge.core import errors
from divulge.models import MLP, save
from divulge.oracles.remote.http import HttpOracle

MODEL = MLP([3, 4, 2]).double()


class Broken(nn.Module):
    input_shape = (3,)

    def forward(self, X):
        return X.sum(dim=1, keepdim=True) / X.min(dim=1, keepdim=True).values.clamp(min=0)


@pytest.fixture(scope="module")
def url():
    with serving.running(MODEL, gradients=True, max_batch=50, max_body=20_000, name="digits-1.0") as url:
        yield url


@pytest.fixture(scope="module")
def http():
    with httpx.Client(trust_env=False) as client:
        yield client


def question(n: int = 2, **changes) -> dict:
    tensor = {"name": "input", "shape": [n, 3], "datatype": "FP64", "data": [0.5] * (3 * n)} | changes
    return {"inputs": [{key: value for key, value in tensor.items() if value is not None}]}


def test_health_and_metadata_are_where_the_protocol_puts_them(url, http):
    root = url.removesuffix("/models/digits-1.0")
    assert http.get(root).json()["extensions"] == ["binary_tensor_data"]
    assert http.get(f"{root}/health/live").json() == {"live": True}
    assert http.get(f"{root}/health/ready").json() == {"ready": True}
    assert http.get(f"{url}/ready").json() == {"name": "digits-1.0", "ready": True}
    metadata = http.get(url).json()
    assert metadata["inputs"] == [{"name": "input", "datatype": "FP64", "shape": [-1, 3]}]
    assert metadata["outputs"] == [
        {"name": "value", "datatype": "FP64", "shape": [-1, 2]},
        {"name": "gradient", "datatype": "FP64", "shape": [-1, 2, 3]},
    ]
    (version,) = metadata["versions"]
    assert http.get(f"{url}/versions/{version}").json() == metadata


def test_json_in_json_out(url, http):
    X = torch.arange(6.0).reshape(2, 3).double()
    asked = question(data=X.flatten().tolist()) | {"id": "42"}
    answer = http.post(f"{url}/infer", json=asked).json()
    assert (answer["model_name"], answer["id"]) == ("digits-1.0", "42")
    outputs = {output["name"]: np.array(output["data"]).reshape(output["shape"]) for output in answer["outputs"]}
    local_values, local_gradients = divulge.oracle(MODEL, access="gradient").gradient(X)
    assert np.array_equal(outputs["value"], local_values.numpy())
    assert np.array_equal(outputs["gradient"], local_gradients.numpy())
    nested = question(data=X.tolist(), datatype="FP32") | {"outputs": [{"name": "value"}]}
    (only,) = http.post(f"{url}/infer", json=nested).json()["outputs"]
    assert only["name"] == "value"


def test_bytes_in_and_each_output_as_asked(url, http):
    X = np.arange(6.0).reshape(2, 3)
    asked = question(data=None, parameters={"binary_data_size": X.nbytes})
    asked["outputs"] = [{"name": "value", "parameters": {"binary_data": True}}, {"name": "gradient"}]
    header = json.dumps(asked).encode()
    length = {"Inference-Header-Content-Length": str(len(header))}
    reply = http.post(f"{url}/infer", content=header + X.tobytes(), headers=length)
    split = int(reply.headers["inference-header-content-length"])
    value, gradient = json.loads(reply.content[:split])["outputs"]
    assert "data" in gradient
    assert value["parameters"] == {"binary_data_size": 32}
    assert np.array_equal(np.frombuffer(reply.content[split:]).reshape(2, 2), MODEL(torch.tensor(X)).detach().numpy())


BAD = {
    "not JSON": b"{",
    "too deep": b"[" * 5000,
    "not an object": b"[]",
    "no inputs": b"{}",
    "two inputs": json.dumps({"inputs": [{}, {}]}).encode(),
    "a number as input": b'{"inputs": [1]}',
    "another name": question(name="x"),
    "no shape": question(shape=None),
    "an empty shape": question(shape=[]),
    "another width": question(shape=[2, 4]),
    "no rows": question(0),
    "a fraction of rows": question(shape=[2.5, 3]),
    "too many rows": question(51),
    "another datatype": question(datatype="INT8"),
    "too few numbers": question(data=[1.0]),
    "text": question(data=["a"] * 6),
    "no data": question(data=None),
    "ragged data": question(data=[[1.0, 2.0], [3.0]]),
    "huge integers": question(data=[10**400] * 6),
    "infinite": question(data=[float("inf")] * 6),
    "overflowing": question(data=[1e300] * 6, datatype="FP32"),
    "bytes that never came": question(parameters={"binary_data_size": 48}),
    "an output it does not have": question() | {"outputs": [{"name": "weights"}]},
    "outputs of text": question() | {"outputs": "value"},
    "outputs without objects": question() | {"outputs": ["value"]},
}


@pytest.mark.parametrize("asked", BAD.values(), ids=BAD.keys())
def test_a_bad_request_is_400_with_one_sentence(url, http, asked):
    before = http.get(f"{url}/stats").json()["total"]
    reply = http.post(f"{url}/infer", content=asked if isinstance(asked, bytes) else json.dumps(asked))
    assert reply.status_code == 400
    assert reply.json()["error"]
    assert http.get(f"{url}/stats").json()["total"] == before


@pytest.mark.parametrize("length", ["abc", "-1", "9999999"])
def test_a_header_length_that_does_not_fit_is_400(url, http, length):
    reply = http.post(f"{url}/infer", json=question(), headers={"Inference-Header-Content-Length": length})
    assert reply.status_code == 400


def test_a_request_that_is_too_large_is_413_however_it_comes(url, http):
    assert http.post(f"{url}/infer", content=b"x" * 20_001).status_code == 413

    def pieces():
        for _ in range(30):
            yield b"x" * 1000

    reply = http.post(f"{url}/infer", content=pieces())  # chunked: no length announced
    assert (reply.status_code, "20,000 bytes" in reply.json()["error"]) == (413, True)


def test_what_is_not_there_is_404_and_the_wrong_method_405(url, http):
    assert http.get(f"{url}-other").status_code == 404
    assert "error" in http.get(f"{url}/versions/9").json()
    assert http.get(f"{url}/infer").status_code == 405


@settings(max_examples=60, deadline=None)
@given(body=st.binary(max_size=200), length=st.none() | st.integers(0, 300))
def test_no_bytes_bring_the_server_down(url, http, body, length):
    headers = {} if length is None else {"Inference-Header-Content-Length": str(length)}
    assert http.post(f"{url}/infer", content=body, headers=headers).status_code == 400


def test_a_model_that_answers_nan_says_so_and_is_not_retried():
    with serving.running(Broken().double()) as url, HttpOracle(url) as oracle:
        assert oracle.value([[1.0, 1.0, 1.0]]).item() == 3
        with pytest.raises(errors.ServerRefused, match="NaN or infinity"):
            oracle.value([[1.0, 0.0, 1.0]])
        assert oracle.ledger.requests == 2


def test_a_budget_on_the_server_s_side_is_403():
    with serving.running(divulge.oracle(MODEL, budget=5)) as url, HttpOracle(url) as oracle:
        oracle.value(torch.ones(5, 3))
        with pytest.raises(errors.ServerRefused, match=r"403.*budget of 5 rows"):
            oracle.value(torch.ones(1, 3))


@pytest.mark.slow
def test_guards_stand_in_front_by_name(http):
    with serving.running(MODEL, guard="round:1") as url, HttpOracle(url) as oracle:
        values = oracle.value(torch.randn(4, 3))
        torch.testing.assert_close(values, values.mul(10).round().div(10))
        rounded = http.get(url).json()["versions"]
    with serving.running(MODEL, guard="label") as url:
        metadata = http.get(url).json()
    assert metadata["outputs"] == [{"name": "label", "datatype": "INT64", "shape": [-1]}]
    assert metadata["parameters"]["output_dim"] == 2
    assert metadata["versions"] != rounded  # a journal of one guard is not one of the other
    with pytest.raises(errors.InvalidInput, match="guard"):
        serving.open_model(MODEL, guard="wall")


def test_saved_models_are_opened_by_name(tmp_path):
    folder = save(MODEL, tmp_path / "model")
    served = serving.open_model(str(folder), precision="double", gradients=True)
    assert served.metadata()["inputs"][0]["datatype"] == "FP64"
    assert served.version == serving.open_model(MODEL, precision="double").version


def test_it_binds_to_this_machine_only_and_says_when_a_port_is_taken():
    served = serving.open_model(MODEL)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(errors.InvalidInput, match="choose another"):
        serving.serve(served, port=taken.getsockname()[1])
    with pytest.raises(errors.InvalidInput, match="choose another"):
        serving.serve(served, port=70_000)
    with serving.running(MODEL) as url:
        assert url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("options", [{"name": "a/b"}, {"name": ""}, {"max_batch": 0}, {"max_body": 0}])
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(errors.InvalidInput):
        serving.open_model(MODEL, **options)


@pytest.mark.parametrize("guard", ["noise:0.1", "noise:0.1:fixed", "smoothgrad:5:3"])
def test_the_noise_of_a_server_cannot_be_drawn_again_from_a_seed(guard):
    """A client who knows the model's public parts and guesses the seed must not be able to subtract the noise."""
    from divulge.oracles import guards

    X = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    served = serving.open_model(MODEL, guard=guard, gradients=True)
    shown = served.oracle.gradient(X)
    for seed in range(3):
        guessed = guards.guard(guard, seed=seed)(divulge.oracle(MODEL, access="gradient")).gradient(X)
        assert not any(torch.equal(ours, theirs) for ours, theirs in zip(guessed[1:], shown[1:], strict=True))
    again = serving.open_model(MODEL, guard=guard, gradients=True)
    assert not torch.equal(again.oracle.gradient(X)[1], shown[1])
    assert again.version != served.version  # a journal of one server's noise is not one of the other's
    tested = [serving.open_model(MODEL, guard=guard, gradients=True, seed=3) for _ in range(2)]
    assert torch.equal(tested[0].oracle.gradient(X)[1], tested[1].oracle.gradient(X)[1])
    assert tested[0].version == tested[1].version
