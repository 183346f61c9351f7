"""Any HTTP API with JSON of its own shape: a template of the request and a path into the response."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import divulge
from divulge.cli import app
from divulge.core import errors
from divulge.oracles.remote.http import HttpOracle

X = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _drawn() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)).double()


NETWORK = _drawn()  # once: the server's threads share torch's random state with the test


def network() -> nn.Module:
    return NETWORK


class Api:
    """Answers POST with what ``answer(body)`` returns as JSON."""

    def __init__(self, answer):
        self.answer, self.bodies, self.paths = answer, [], []

    def __call__(self, method, path, headers, body):
        assert (method, headers["content-type"]) == ("POST", "application/json")
        self.bodies.append(json.loads(body))
        self.paths.append(path)
        return 200, {}, json.dumps(self.answer(self.bodies[-1])).encode()


def values(rows) -> list[list[float]]:
    with torch.no_grad():
        return network()(torch.tensor(rows, dtype=torch.float64)).tolist()


def bento(body):
    return {"result": {"scores": values(body["input_data"])}}


def chat(body):
    """A chat API that answers yes or no with the logarithms of their probabilities."""
    numbers = [float(number) for number in body["messages"][0]["content"].partition("? ")[2].split(", ")]
    no, yes = torch.tensor(values([numbers])[0]).log_softmax(0).tolist()
    top = [{"token": "yes", "logprob": yes}, {"token": "no", "logprob": no}]
    top.sort(key=lambda one: -one["logprob"])
    return {"choices": [{"message": {"content": top[0]["token"]}, "logprobs": {"content": [{"top_logprobs": top}]}}]}


CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "Is this fraud? $row"}],
    "max_tokens": 1,
    "top_logprobs": 2,
}
LOGPROBS = "choices[0].logprobs.content[0].top_logprobs | [[?token=='no'].logprob | [0], [?token=='yes'].logprob | [0]]"


@pytest.mark.parametrize("path", ["/result/scores", "result.scores", "result.scores[*]"])
def test_a_batch_in_one_request_and_its_answer_by_pointer_or_expression(scripted, path):
    api = Api(bento)
    with HttpOracle(
        scripted(api) + "/predict", request={"input_data": "$rows"}, response=path, input_shape=(3,)
    ) as view:
        assert torch.equal(view.value(X), torch.tensor(values(X.tolist()), dtype=torch.float64))
        assert torch.equal(view.label(X), network()(X).argmax(dim=1))
        assert (view.ledger.value, view.ledger.label, view.ledger.requests) == (8, 7, 3)  # one row told the outputs
    assert api.bodies[1] == {"input_data": X.tolist()}


def test_a_chat_api_is_asked_row_by_row_with_the_numbers_in_its_prompt(scripted):
    api = Api(chat)
    with HttpOracle(
        scripted(api) + "/v1/chat/completions?version=2", request=json.dumps(CHAT), response=LOGPROBS, input_shape=(3,),
        output_dim=2,
    ) as view:  # fmt: skip
        expected = network()(X).log_softmax(dim=1)
        assert torch.allclose(view.value(X), expected.detach(), atol=1e-6)
        assert torch.equal(view.label(X), expected.argmax(dim=1))
        assert view.ledger.requests == 14
    assert set(api.paths) == {"/v1/chat/completions?version=2"}


def test_fields_with_names_of_their_own_tell_how_many_numbers_a_row_has(scripted):
    api = Api(lambda body: {"p": body["age"] + 10 * body["pay"], "n": body["children"]})
    template = '{"age": "$0", "pay": "$1", "children": "$2:int"}'
    with HttpOracle(scripted(api), request=template, response="[p, n]", output_dim=2) as view:
        assert view.value([[1.0, 2.0, 2.7]]).tolist() == [[21.0, 3.0]]


def test_records_go_by_the_names_of_their_columns(scripted):
    api = Api(lambda body: [[row["a"] - row["b"]] for row in body])
    with HttpOracle(scripted(api), request='"$records"', columns=["a", "b"]) as view:
        assert view.value([[3.0, 1.0], [5.0, 9.0]]).tolist() == [[2.0], [-4.0]]


@pytest.mark.parametrize(
    ("response", "labels"), [("class", [2, 0]), ("name == 'cat'", [1, 0]), ("[name == 'dog', name == 'cat']", [1, 0])]
)
def test_labels_are_numbers_words_or_the_largest_of_several(scripted, response, labels):
    api = Api(lambda body: {"class": 2, "name": "cat"} if body["x"][0] > 0 else {"class": 0, "name": "dog"})
    with HttpOracle(scripted(api), access="label", request={"x": "$row"}, response=response, input_shape=(1,)) as view:
        assert view.label([[1.0], [-1.0]]).tolist() == labels


def test_gradients_stand_at_a_path_of_their_own(scripted):
    api = Api(lambda body: {"y": [[sum(row)] for row in body["x"]], "g": [[[1.0, 1.0]] for _ in body["x"]]})
    with HttpOracle(
        scripted(api), access="gradient", request={"x": "$rows"}, response="y", gradient_output="/g", input_shape=(2,)
    ) as view:
        value, gradient = view.gradient([[1.0, 2.0]])
        assert (value.tolist(), gradient.tolist()) == ([[3.0]], [[[1.0, 1.0]]])


def test_the_budget_and_the_journal_hold_for_it_as_for_any_remote_model(scripted, tmp_path):
    api = Api(bento)
    url = scripted(api) + "/predict"
    options = {"request": {"input_data": "$rows"}, "response": "result.scores", "input_shape": (3,), "output_dim": 2}
    with divulge.oracle(url, budget=7, journal=tmp_path / "a.db", **options) as view:
        first = view.value(X)
        with pytest.raises(errors.BudgetExhausted):
            view.value(X[:1])
    sent = len(api.bodies)
    with divulge.oracle(url, journal=tmp_path / "a.db", **options) as view:
        assert torch.equal(view.value(X), first)
        assert (view.from_journal, len(api.bodies)) == (7, sent)
    with pytest.raises(errors.JournalMismatch):
        divulge.oracle(url, journal=tmp_path / "a.db", **{**options, "response": "/result/scores"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"request": "{", "response": ""}, "not JSON"),
        ({"request": {"x": "no place"}}, "where the input goes"),
        ({"request": {"x": "$row", "all": "$rows"}}, "not both"),
        ({"request": "$records"}, "not JSON"),
        ({"request": {"x": "$records"}}, "columns="),
        ({"request": {"x": "$rows"}, "response": "a["}, "neither a JSON pointer nor JMESPath"),
        ({"response": "a"}, "request="),
        ({"request": {"x": "$rows"}, "response": "a"}, "input_shape="),
        ({"request": {"x": "$rows"}, "response": "nowhere", "input_shape": (3,)}, "no numbers at 'nowhere'"),
        ({"request": {"x": "$rows"}, "response": "/a/9", "input_shape": (3,)}, "no numbers at '/a/9'"),
        ({"request": {"x": "$5"}, "response": "a", "input_shape": (3,)}, "asks for $5"),
    ],
)
def test_what_does_not_fit_is_one_sentence(scripted, options, said):
    url = scripted(Api(lambda body: {"a": [1.0], "text": "no"}))
    with pytest.raises(errors.DivulgeError, match=said.replace("$", r"\$")):
        divulge.oracle(url, **options)


def test_an_address_of_no_known_protocol_names_the_options():
    with pytest.raises(errors.InvalidInput, match="request= and response="):
        divulge.oracle("http://127.0.0.1:9/predict", input_shape=(3,))


def test_the_command_line_extracts_through_a_template(scripted, tmp_path):
    url = scripted(Api(bento)) + "/predict"
    (tmp_path / "template.json").write_text('{"input_data": "$rows"}')
    done = CliRunner().invoke(
        app,
        ["extract", url, "--access", "value", "--request", f"@{tmp_path / 'template.json'}", "--response",
         "result.scores", "--input-shape", "3", "--out", str(tmp_path / "copy"), "--json"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["exact"] is True
