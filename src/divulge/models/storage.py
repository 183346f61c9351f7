"""A model on disk: ``model.safetensors`` for the weights and ``model.json`` for what builds it again."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from divulge.errors import InvalidInput, UnsupportedModel, UntrustedFile
from divulge.models.build import build, skeleton


def save(model: nn.Module, folder: str | Path) -> Path:
    """Write ``model.safetensors`` and ``model.json`` to ``folder``."""
    from safetensors.torch import save_file

    spec = getattr(model, "spec", None)
    if spec is None:
        raise UnsupportedModel(
            f"{type(model).__name__} is not one of divulge's architectures; save it with torch or export it to ONNX."
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "model.json").write_text(json.dumps(spec, indent=2) + "\n")
    return folder


def load(folder: str | Path, *, trust_code: bool = False) -> nn.Module:
    """The model that ``save`` wrote, in the precision it was saved in.

    A folder whose ``model.json`` names code of the user's own ("module:function") is refused unless ``trust_code``,
    since whoever wrote the folder chose that code.
    """
    from safetensors.torch import load_file

    folder = Path(folder)
    try:
        spec = json.loads((folder / "model.json").read_text())
        tensors = load_file(folder / "model.safetensors")
    except FileNotFoundError as error:
        raise InvalidInput(
            f"{error.filename or folder / 'model.safetensors'} is not there; a saved model is a folder with "
            "model.json and model.safetensors."
        ) from error
    except Exception as error:  # a damaged file can fail in many ways; all mean the same to the user
        raise InvalidInput(f"{folder} does not hold a readable model: {error}.") from error
    if not isinstance(spec, dict):
        raise InvalidInput(f"{folder / 'model.json'} does not describe a model.")
    refuse_code(spec.get("architecture"), folder / "model.json", trust_code=trust_code)
    name = spec.get("architecture")
    if isinstance(name, str) and ":" in name:
        dtype = next((tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), torch.float32)
        model = build(spec, dtype=dtype)
    else:  # takes the tensors as they are, so that a file cannot ask for more memory than it fills
        model = skeleton(name, {option: value for option, value in spec.items() if option != "architecture"})
    try:
        model.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise InvalidInput(
            f"The weights in {folder} do not fit its model.json: {str(error).splitlines()[-1].strip()}."
        ) from error
    return model.eval()


def refuse_code(architecture: object, path: Path, *, trust_code: bool) -> None:
    """Refuse a file that would have code imported and run, unless the user said to trust it."""
    if isinstance(architecture, str) and ":" in architecture and not trust_code:
        raise UntrustedFile(
            f"{path} asks to import and run {architecture}; load it with trust_code=True if you trust who wrote it."
        )
