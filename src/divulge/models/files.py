"""A model on disk: ``model.safetensors`` for the weights and ``model.json`` for the description that rebuilds it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from divulge.core.errors import InvalidInput, UnsupportedModel, UntrustedFile
from divulge.core.storage import write_json, write_tensors
from divulge.models.build import build, build_empty


def save(model: nn.Module, folder: str | Path) -> Path:
    """Write ``model.safetensors`` and ``model.json`` to a folder.

    Parameters
    ----------
    model : nn.Module
        One of divulge's architectures, or a module built by ``build`` from the user's own code.
    folder : str or Path
        Where to write; it is created where it is missing.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    UnsupportedModel
        If the model has no ``spec`` that rebuilds it.

    Examples
    --------
    >>> import tempfile
    >>> from divulge import models
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = models.save(models.MLP([4, 3, 2]), folder)
    ...     models.load(folder).spec["widths"]
    [4, 3, 2]
    """
    spec = getattr(model, "spec", None)
    if spec is None:
        raise UnsupportedModel(
            f"{type(model).__name__} is not one of divulge's architectures; save it with torch or export it to ONNX."
        )
    folder = Path(folder)
    write_tensors(folder / "model.safetensors", model.state_dict())
    write_json(folder / "model.json", spec)
    return folder


def load(folder: str | Path, *, trust_code: bool = False) -> nn.Module:
    """The model that ``save`` wrote, in evaluation mode and in the precision it was saved in.

    Parameters
    ----------
    folder : str or Path
        What ``save`` was given.
    trust_code : bool, default False
        Whether code that ``model.json`` names ("module:function") is imported and run. Whoever wrote the folder chose
        that code.

    Returns
    -------
    nn.Module

    Raises
    ------
    UntrustedFile
        If the folder names code and ``trust_code`` is False.
    InvalidInput
        If the folder does not hold a readable model.

    Examples
    --------
    >>> import tempfile
    >>> from divulge import models
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = models.save(models.MLP([4, 3, 2]), folder)
    ...     models.load(folder).training
    False
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
        raise InvalidInput(f"{folder} does not hold a readable model: {str(error)[:200]}.") from error
    if not isinstance(spec, dict):
        raise InvalidInput(f"{folder / 'model.json'} does not describe a model.")
    return rebuilt(spec, tensors, described_by=folder / "model.json", trust_code=trust_code)


def rebuilt(
    spec: Mapping[str, object], tensors: Mapping[str, Tensor], *, described_by: Path, trust_code: bool
) -> nn.Module:
    """The model that ``spec`` describes, with these weights, in evaluation mode."""
    name = spec.get("architecture")
    refuse_code(name, described_by, trust_code=trust_code)
    if isinstance(name, str) and ":" in name:
        dtype = next((tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), torch.float32)
        model = build(spec, dtype=dtype)
    else:  # the model takes the tensors as they are, so a description cannot ask for more memory than they fill
        model = build_empty(name, {option: value for option, value in spec.items() if option != "architecture"})
    try:
        model.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        fault = str(error).splitlines()[-1].strip()
        raise InvalidInput(
            f"The weights in {described_by.parent} do not fit its {described_by.name}: {fault}."
        ) from error
    return model.eval()


def refuse_code(architecture: object, path: Path, *, trust_code: bool) -> None:
    """Refuse a file that names code to import and run, unless the user said to trust it."""
    if isinstance(architecture, str) and ":" in architecture and not trust_code:
        raise UntrustedFile(
            f"{path} asks to import and run {architecture}; load it with trust_code=True if you trust who wrote it."
        )
