"""Models of transformers: folders on disk and objects, text and pictures, made small and never downloaded."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="runs in make test-extras: transformers is not installed")

import divulge  # noqa: E402
from divulge.core.errors import AccessDenied, InvalidInput, UnsupportedModel, UntrustedFile  # noqa: E402

IDS = torch.randint(0, 60, (200, 6), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def text():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, num_labels=3,
        max_position_embeddings=12,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config).eval()


@pytest.fixture(scope="module")
def folder(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("text")
    text.save_pretrained(path)
    return path


def answers(model, ids):
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize("name", ["", "model.safetensors"])
def test_a_folder_of_a_text_classifier_is_asked_with_token_ids(text, folder, name):
    oracle = divulge.oracle(folder / name, input_shape=(6,))
    torch.testing.assert_close(oracle.value(IDS), answers(text, IDS))
    assert torch.equal(oracle.label(IDS), answers(text, IDS).argmax(dim=1))
    nearest = oracle.value(IDS[:1] + 0.3)
    torch.testing.assert_close(nearest, answers(text, IDS[:1]))
    torch.testing.assert_close(
        oracle.value([[99.0, -5.0, 0, 0, 0, 0]]), answers(text, torch.tensor([[59, 0, 0, 0, 0, 0]]))
    )


def test_the_length_comes_from_the_user_or_the_data_and_the_sentence_says_so(text, folder):
    with pytest.raises(UnsupportedModel, match=r"input_shape=\(16,\)"):
        divulge.oracle(folder)
    with pytest.raises(AccessDenied, match="whole numbers"):
        divulge.oracle(text, access="gradient", input_shape=(6,))


def test_a_text_classifier_is_copied_scored_for_members_and_audited(text, folder):
    y = answers(text, IDS).argmax(dim=1)
    inside, outside = (IDS[:100].numpy(), y[:100].numpy()), (IDS[100:].numpy(), y[100:].numpy())
    oracle = divulge.oracle(folder, input_shape=(6,))
    assert 0 <= divulge.membership.attack(oracle, inside, outside, seed=0).auc <= 1
    copy = divulge.extraction.by_training(oracle, "trees", IDS[:100].float(), queries=100, match="values", seed=0)
    assert copy.ledger.value == 100
    report = divulge.audit(str(folder), inside, unseen=outside, time=2)
    assert (report.target["inputs"], report.target["access_granted"]) == (6, "value")
    assert not [skip for skip in report.skipped if "fault of its own" in skip.reason]


def test_a_picture_classifier_states_its_own_shape(tmp_path):
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, num_labels=4,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config).eval()
    model.save_pretrained(tmp_path)
    X = torch.randn(5, 1, 8, 8)
    oracle = divulge.oracle(tmp_path, access="gradient")
    assert (oracle.input_shape, oracle.output_dim) == ((1, 8, 8), 4)
    values, gradients = oracle.gradient(X)
    torch.testing.assert_close(values, answers(model, X))
    assert float(gradients.abs().max()) > 0


def test_a_language_model_answers_with_the_logits_after_the_last_token():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=60, n_positions=12, n_embd=8, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    oracle = divulge.oracle(model, input_shape=(6,))
    torch.testing.assert_close(oracle.value(IDS[:4]), answers(model, IDS[:4])[:, -1])


def test_what_cannot_be_asked_is_one_sentence(text, folder, tmp_path):
    with pytest.raises(UnsupportedModel, match="hidden states"):
        divulge.oracle(text.bert, input_shape=(6,))
    described = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**described, "architectures": ["NoSuchModel"]}))
    with pytest.raises(UnsupportedModel, match="NoSuchModel"):
        divulge.oracle(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**described, "auto_map": {"AutoModel": "mine.Model"}}))
    with pytest.raises(UntrustedFile, match="trust_pickle=True"):
        divulge.oracle(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(described))
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InvalidInput, match="readable"):
        divulge.oracle(tmp_path)


def test_ids_may_come_as_any_array(text):
    oracle = divulge.oracle(text, input_shape=(6,))
    assert torch.equal(oracle.value(IDS.numpy().astype(np.int32)), oracle.value(IDS.double()))
