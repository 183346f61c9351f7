"""Models of the ``transformers`` library: a folder with ``config.json`` and weights, or an object.

Text models take token ids, picture models take pixels in the shape that their configuration states. The answer is
``logits``; of a language model those after the last token. Nothing is downloaded, and a folder's own code is not run
unless it is trusted.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from divulge.core.errors import InvalidInput, MissingPackage, UnsupportedModel, UntrustedFile
from divulge.oracles.local.named_inputs import WHOLE_NUMBERS, vocabulary_of, whole

LENGTH = 16
"""Tokens of an input where nothing says how many it has."""


class HuggingFaceModel(nn.Module):
    """A model of ``transformers`` from rows to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.vocabulary = vocabulary_of(model)
        self.language = "CausalLM" in type(model).__name__ or type(model).__name__.endswith("LMHeadModel")
        shape = _picture(getattr(model, "config", None)) if self.vocabulary is None else None
        if self.vocabulary is not None:
            self.values_only = WHOLE_NUMBERS
        if shape is not None:
            self.input_shape = shape

    def forward(self, X: Tensor) -> Tensor:
        answer = self.model(X if self.vocabulary is None else whole(X, self.vocabulary))
        logits = answer.get("logits") if isinstance(answer, Mapping) else getattr(answer, "logits", None)
        if not isinstance(logits, Tensor):
            raise UnsupportedModel(
                f"{type(self.model).__name__} answers with hidden states and no logits; give the model with its head, "
                "or a function that picks the tensor."
            )
        return logits[:, -1] if self.language and logits.ndim == 3 else logits


def is_hugging_face(model: object) -> bool:
    """Whether this is a model of the ``transformers`` library."""
    return (
        isinstance(model, nn.Module)
        and hasattr(model, "config")
        and any(base.__module__.startswith("transformers.") for base in type(model).__mro__)
    )


def text_length(model: nn.Module) -> int:
    """Tokens of an input, where nothing says how many it has: as many as the model has places for, up to ``LENGTH``."""
    config = getattr(model.model if isinstance(model, HuggingFaceModel) else model, "config", None)
    places = getattr(config, "max_position_embeddings", None)
    return min(LENGTH, places) if isinstance(places, int) and places > 0 else LENGTH


def is_hugging_face_folder(folder: Path) -> bool:
    """Whether a folder holds a model that ``transformers`` wrote."""
    try:
        described = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(described, dict) and ("architectures" in described or "model_type" in described)


def load_hugging_face(folder: Path, *, trust_code: bool = False) -> HuggingFaceModel:
    """The model in a folder, from what is on disk only."""
    try:
        import transformers
    except ImportError as error:
        raise MissingPackage(f"{folder} is a model of transformers; install divulge[transformers].") from error
    described = json.loads((folder / "config.json").read_text())
    names = described.get("architectures") or []
    if described.get("auto_map") and not trust_code:
        raise UntrustedFile(
            f"{folder} brings code of its own; if you trust whoever made it, load it with "
            f'divulge.oracle("{folder}", trust_pickle=True).'
        )
    found: Any = getattr(transformers, str(names[0]), None) if names else None
    if found is None and described.get("auto_map"):
        kind = next((kind for kind in described["auto_map"] if kind.startswith("AutoModelFor")), "AutoModel")
        found = getattr(transformers, kind)
    if found is None:
        said = f"names {names[0]!r}, which transformers {transformers.__version__} does not have" if names else (
            "does not name the class of the model")  # fmt: skip
        raise UnsupportedModel(f"The config.json in {folder} {said}.")
    options = {"trust_remote_code": True} if described.get("auto_map") else {}
    try:
        with warnings.catch_warnings(), _quiet(transformers):
            warnings.simplefilter("ignore")
            model = found.from_pretrained(folder, local_files_only=True, dtype=torch.float32, **options)
    except Exception as error:  # a damaged folder can fail in many ways
        fault = next(iter(str(error).splitlines()), "")[:200]
        raise InvalidInput(f"{folder} does not hold a readable model: {type(error).__name__}: {fault}") from error
    return HuggingFaceModel(model.eval())


class _quiet:  # noqa: N801 - a context manager, used as one
    """No progress bars and no messages of the library while a model is loaded."""

    def __init__(self, library: Any) -> None:
        self.logging = library.logging

    def __enter__(self) -> None:
        self.level = self.logging.get_verbosity()
        self.logging.set_verbosity_error()
        self.bars = getattr(self.logging, "is_progress_bar_enabled", lambda: True)()
        self.logging.disable_progress_bar()

    def __exit__(self, *failure: object) -> None:
        self.logging.set_verbosity(self.level)
        if self.bars:
            self.logging.enable_progress_bar()


def _picture(config: Any) -> tuple[int, int, int] | None:
    """(channels, height, width) of one picture, where the configuration states them."""
    size = getattr(config, "image_size", None)
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    return int(getattr(config, "num_channels", 3)), int(height), int(width)
