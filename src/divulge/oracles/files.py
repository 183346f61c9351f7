"""From a name on the command line to the model it stands for. Files stay data unless the user says to trust them."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from divulge import models
from divulge.errors import InvalidInput, UnsupportedModel, UntrustedFile
from divulge.models.storage import refuse_code

PICKLES = (".pkl", ".pickle", ".joblib")
CHECKPOINTS = (".pt", ".pth", ".ckpt", ".bin")
KINDS = (
    "a folder written by divulge, a .safetensors file with its .json, an .onnx file, a .pt file of weights with its "
    ".json, an http(s):// address, or module:function"
)


def load_model(spec: Any, *, trust_pickle: bool = False) -> Any:
    """The nn.Module or scikit-learn estimator that ``spec`` names; what is no name is handed back as it is.

    An ONNX file is read into torch, which works for the usual layers. Pickles (.pkl, .joblib, whole modules in .pt)
    run code when they are loaded, so they are refused unless ``trust_pickle`` says that their writer is known.
    """
    if not isinstance(spec, str | Path):
        return spec
    path = Path(spec)
    if str(spec) and path.is_dir():
        return models.load(path, trust_code=trust_pickle)
    suffix = path.suffix.lower()
    if is_reference(spec):
        return _from_code(str(spec))
    if not path.is_file():
        raise InvalidInput(f"There is no model at {str(spec)!r}; give {KINDS}.")
    if suffix == ".onnx":
        from divulge.oracles.onnx_graph import read_onnx

        return read_onnx(path)
    if suffix == ".safetensors":
        return _rebuilt(path, _safe_tensors(path), trust_pickle)
    if suffix in CHECKPOINTS:
        return _checkpoint(path, trust_pickle)
    if suffix in PICKLES:
        return _pickled(path, trust_pickle)
    raise InvalidInput(f"{path.name} is not a kind of model file that can be read; give {KINDS}.")


def is_reference(spec: str | Path) -> bool:
    """Whether this reads as ``package.module:function`` or ``file.py:function`` rather than as a path."""
    where, colon, name = str(spec).rpartition(":")
    return bool(colon) and name.isidentifier() and len(where) > 1 and not Path(spec).exists()


def _from_code(reference: str) -> Any:
    """What the user's own function returns, or the model that the name already is."""
    where, _, name = reference.rpartition(":")
    module = _imported(where)
    if not hasattr(module, name):
        raise InvalidInput(f"{where} has no {name!r}; name a function in it that returns the model.")
    found = getattr(module, name)
    if isinstance(found, nn.Module) or (hasattr(found, "predict") and not isinstance(found, type)):
        return found
    if not callable(found):
        raise InvalidInput(f"{reference} is a {type(found).__name__}; name a function that returns the model.")
    try:
        return found()
    except Exception as error:
        raise InvalidInput(f"{reference}() did not return a model: {type(error).__name__}: {error}") from error


def _imported(where: str) -> Any:
    try:
        with _working_folder_first():
            if not where.endswith(".py"):
                return importlib.import_module(where)
            path = Path(where)
            spec = importlib.util.spec_from_file_location(path.stem, path)
            if spec is None or spec.loader is None or not path.is_file():
                raise ImportError(f"there is no file {path}")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    except Exception as error:
        raise InvalidInput(f"{where} cannot be imported: {type(error).__name__}: {error}") from error


@contextmanager
def _working_folder_first() -> Iterator[None]:
    """Let an installed command find modules that lie in the folder it is called from."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path.remove(str(Path.cwd()))


def _safe_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except Exception as error:  # a damaged file can fail in many ways; all mean the same to the user
        raise InvalidInput(f"{path} does not hold readable safetensors: {error}.") from error


def _checkpoint(path: Path, trust_pickle: bool) -> nn.Module:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's refusals are of several classes, a damaged file's too
        if not trust_pickle:
            raise UntrustedFile(
                f"{path.name} holds more than weights, and loading it could run code; save the state_dict, or say that "
                "you trust whoever made it (trust_pickle=True, --trust-pickle)."
            ) from error
        content = _unpickled(path, lambda: torch.load(path, map_location="cpu", weights_only=False))
    if isinstance(content, nn.Module):
        return content.eval()
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise UnsupportedModel(f"{path.name} holds {type(content).__name__} and no model; save its state_dict.")
    return _rebuilt(path, content, trust_pickle)


def _pickled(path: Path, trust_pickle: bool) -> Any:
    if not trust_pickle:
        raise UntrustedFile(
            f"{path.name} is a pickle, and loading one can run any code; say that you trust whoever made it "
            "(trust_pickle=True, --trust-pickle), or save the model as safetensors or ONNX."
        )
    import joblib

    return _unpickled(path, lambda: joblib.load(path))


def _unpickled(path: Path, load: Any) -> Any:
    try:
        return load()
    except Exception as error:
        raise InvalidInput(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error


def _rebuilt(path: Path, tensors: dict[str, Tensor], trust_code: bool) -> nn.Module:
    """The architecture described in the JSON beside ``path``, with these weights."""
    described = next((p for p in (path.with_suffix(".json"), path.parent / "model.json") if p.is_file()), None)
    if described is None:
        raise InvalidInput(
            f"{path.name} holds weights but not what they belong to; put {path.stem}.json beside it, as divulge writes "
            'it ({"architecture": "mlp", "widths": [...]}), or name code that builds the model (module:function).'
        )
    try:
        spec = json.loads(described.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{described} is not readable JSON: {error}.") from error
    if not isinstance(spec, dict):
        raise InvalidInput(f"{described} should hold one JSON object that describes the model.")
    refuse_code(spec.get("architecture"), described, trust_code=trust_code)
    dtype = next((tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), torch.float32)
    model = models.build(spec, dtype=dtype)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        fault = str(error).splitlines()[-1].strip()
        raise InvalidInput(f"The weights in {path.name} do not fit {described.name}: {fault}") from error
    return model.eval()
