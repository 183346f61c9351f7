"""From a name on the command line to the model it stands for. A file that can run code is refused unless trusted.

TorchScript archives and ``torch.export`` programs run their own code when they are asked, and pickles when they are
loaded. PyTorch's security policy treats all of them as programs, so all of them need the user's word.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from divulge import models
from divulge.core.errors import InvalidInput, UnsupportedModel, UntrustedFile
from divulge.models.files import rebuilt
from divulge.models.user_code import import_function, import_object, is_reference, names_of_main
from divulge.oracles.local import keras_model
from divulge.oracles.local.hugging_face import is_hugging_face_folder, load_hugging_face
from divulge.oracles.local.trees import is_booster_file, load_booster

PICKLES = (".pkl", ".pickle", ".joblib")
CHECKPOINTS = (".pt", ".pth", ".ckpt", ".bin")
STATE_DICT_KEYS = ("state_dict", "model_state_dict", "model", "net", "module")
WRAPPER_PREFIXES = ("module.", "_orig_mod.")  # what DataParallel and torch.compile put before every name
KINDS = (
    "a folder written by divulge or transformers, a .safetensors file with its .json, an .onnx file, a .pt file of "
    "weights with its .json, a .pt2 program, a .keras file, a .json, .ubj, .txt or .cbm file of XGBoost, LightGBM or "
    "CatBoost, a pickle, an http(s):// address, module:function, or module:function@weights.pt"
)
_CODE_AND_WEIGHTS = re.compile(r"(?P<code>.+?:[A-Za-z_]\w*)@(?P<weights>.+)")


def load_model(spec: object, *, trust_pickle: bool = False) -> object:
    """The model that a name stands for.

    Parameters
    ----------
    spec : str, Path or model
        A folder that ``divulge.models.save`` or transformers wrote; a ``.safetensors`` or ``.pt`` file of weights with
        a JSON description beside it; an ``.onnx`` file, which is read into torch; a TorchScript ``.pt`` or exported
        ``.pt2`` program; a ``.keras`` file; a ``.json``, ``.ubj``, ``.txt`` or ``.cbm`` file of XGBoost, LightGBM or
        CatBoost; a pickle; ``module:function`` or ``file.py:function``, which is called; or
        ``module:function@weights.pt``, which is called and given the weights. A pickle of a class from a script is
        ``file.py:Class@model.pkl``.
        What is not a name is returned as it is.
    trust_pickle : bool, default False
        Whether files that can run code are loaded.

    Returns
    -------
    nn.Module, estimator or callable

    Raises
    ------
    UntrustedFile
        If the file could run code and ``trust_pickle`` is False.
    InvalidInput
        If there is no such model, or it cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> from divulge import models, oracles
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = models.save(models.MLP([4, 3, 2]), folder)
    ...     oracles.load_model(folder).input_shape
    (4,)
    """
    if not isinstance(spec, str | Path):
        return spec
    path = Path(spec)
    if str(spec) and path.is_dir():
        return _from_folder(path, trust_pickle)
    if is_reference(spec):
        return _from_code(str(spec))
    both = _CODE_AND_WEIGHTS.fullmatch(str(spec))
    if both is not None and not path.exists():
        return _code_with_weights(both["code"], Path(both["weights"]), trust_pickle)
    if not path.is_file():
        raise InvalidInput(f"There is no model at {str(spec)!r}; give {KINDS}.")
    return _from_file(path, trust_pickle)


def _from_folder(path: Path, trust_pickle: bool) -> nn.Module:
    """A model that divulge or transformers wrote."""
    if not (path / "model.json").is_file():
        if is_hugging_face_folder(path):
            return load_hugging_face(path, trust_code=trust_pickle)
        if (path / "saved_model.pb").is_file():
            raise UnsupportedModel(
                f"{path} is a TensorFlow SavedModel; convert it with python -m tf2onnx.convert --saved-model {path} "
                "--output model.onnx, and give model.onnx."
            )
    return models.load(path, trust_code=trust_pickle)


def _from_file(path: Path, trust_pickle: bool) -> object:
    suffix = path.suffix.lower()
    if suffix == ".onnx":
        from divulge.oracles.onnx.graph import read_onnx

        return read_onnx(path)
    if suffix == ".pt2":
        from divulge.oracles.local.exported import load_exported

        _refuse_untrusted(path, "is an exported program, which runs code of its own", trust_pickle)
        return load_exported(path)
    if suffix in CHECKPOINTS and _is_torchscript(path):
        _refuse_untrusted(path, "is a TorchScript program, which runs code of its own", trust_pickle)
        return _loaded(path, lambda: torch.jit.load(path, map_location="cpu").eval())  # type: ignore[no-untyped-call]
    if suffix in CHECKPOINTS:
        return _checkpoint(path, trust_pickle)
    if suffix == ".safetensors":
        return _described(path, _safe_tensors(path), trust_pickle)
    if is_booster_file(path):
        return load_booster(path)
    if suffix in keras_model.FILES:
        return keras_model.load_keras(path, trust_code=trust_pickle)
    if suffix in PICKLES:
        return _pickled(path, trust_pickle)
    raise InvalidInput(f"{path.name} is not a kind of model file that can be read; give {KINDS}.")


# -- code -------------------------------------------------------------------------------------------------------------


def _from_code(reference: str) -> object:
    """What the user's own function returns, or the model that the name already is."""
    found = import_object(reference)
    if isinstance(found, nn.Module) or (hasattr(found, "predict") and not isinstance(found, type)):
        return found
    if not callable(found):
        raise InvalidInput(f"{reference} is a {type(found).__name__}; name a function that returns the model.")
    return _called(reference, found)


def _called(reference: str, function: Callable[[], object]) -> object:
    try:
        return function()
    except Exception as error:
        raise InvalidInput(f"{reference}() did not return a model: {type(error).__name__}: {error}") from error


def _code_with_weights(reference: str, path: Path, trust_pickle: bool) -> object:
    """The module that the user's function returns, with the weights in the file; or the pickle that needs the code."""
    if not path.is_file():
        raise InvalidInput(f"There is no file {path}; write {reference}@FILE with the file that holds the weights.")
    if path.suffix.lower() in PICKLES or (path.suffix.lower() in CHECKPOINTS and not _holds_weights_only(path)):
        with names_of_main(reference):
            return _from_file(path, trust_pickle)
    tensors = _safe_tensors(path) if path.suffix.lower() == ".safetensors" else _state_dict(path, _weights_only(path))
    model = _called(reference, import_function(reference))
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(f"{reference} returned {type(model).__name__}, not a torch.nn.Module.")
    dtype = next((tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), None)
    model = model if dtype is None else model.to(dtype)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        fault = str(error).splitlines()[-1].strip()
        raise InvalidInput(f"The weights in {path.name} do not fit what {reference} returns: {fault}.") from error
    return model.eval()


# -- weights ----------------------------------------------------------------------------------------------------------


def load_weights(spec: object) -> dict[str, Tensor] | None:
    """The tensors in a file of weights without a description of their model; None for anything else.

    Parameters
    ----------
    spec : object
        What ``load_model`` takes.

    Returns
    -------
    dict of str to Tensor, or None

    Raises
    ------
    UntrustedFile
        If the file holds more than weights, so that loading it could run code.

    Examples
    --------
    >>> import tempfile, torch
    >>> from divulge.oracles.load_model import load_weights
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"weight": torch.zeros(2)}, f"{folder}/update.pt")
    ...     sorted(load_weights(f"{folder}/update.pt"))
    ['weight']
    """
    path = Path(spec) if isinstance(spec, str | Path) else None
    if path is None or not path.is_file() or path.suffix.lower() not in (*CHECKPOINTS, ".safetensors"):
        return None
    beside = (path.with_suffix(".json"), path.parent / "model.json", path.parent / "config.json")
    if _is_torchscript(path) or any(each.is_file() for each in beside):
        return None
    if path.suffix.lower() == ".safetensors":
        return _safe_tensors(path)
    return _state_dict(path, _weights_only(path)) if _holds_weights_only(path) else None


def _safe_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except Exception as error:  # a damaged file can fail in many ways; all mean the same to the user
        raise InvalidInput(f"{path} does not hold readable safetensors: {error}.") from error


def _weights_only(path: Path) -> object:
    """The content of a checkpoint, without running code."""
    try:
        content: object = torch.load(path, map_location="cpu", weights_only=True)
        return content
    except Exception as error:  # torch's refusals are of several classes, a damaged file's too
        raise UntrustedFile(
            f"{path.name} holds more than weights, and loading it could run code; save the state_dict, or, if you "
            f"trust whoever made it, load it with {_trusting(path)}."
        ) from error


def _holds_weights_only(path: Path) -> bool:
    try:
        _weights_only(path)
    except UntrustedFile:
        return False
    return True


def _checkpoint(path: Path, trust_pickle: bool) -> nn.Module:
    try:
        content = _weights_only(path)
    except UntrustedFile:
        if not trust_pickle:
            raise
        content = _loaded(path, lambda: torch.load(path, map_location="cpu", weights_only=False))
    if isinstance(content, nn.Module):
        return content.eval()
    return _described(path, _state_dict(path, content), trust_pickle)


def _state_dict(path: Path, content: object) -> dict[str, Tensor]:
    """The tensors in a checkpoint: the dictionary itself, or the one under a usual key."""
    if isinstance(content, Mapping):
        for key in STATE_DICT_KEYS:
            if isinstance(content.get(key), Mapping):
                content = content[key]
                break
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        held = f"a dictionary with {', '.join(map(str, content))[:100]}" if isinstance(content, Mapping) else (
            type(content).__name__)  # fmt: skip
        raise UnsupportedModel(f"{path.name} holds {held} and no model; save its state_dict.")
    tensors = {str(name): tensor for name, tensor in content.items()}
    for prefix in WRAPPER_PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def _described(path: Path, tensors: Mapping[str, Tensor], trust_code: bool) -> nn.Module:
    """The architecture described in the JSON beside ``path``, with these weights."""
    if is_hugging_face_folder(path.parent) and not path.with_suffix(".json").is_file():
        return load_hugging_face(path.parent, trust_code=trust_code)
    candidates = (path.with_suffix(".json"), path.parent / "model.json")
    described_by = next((candidate for candidate in candidates if candidate.is_file()), None)
    if described_by is None:
        raise InvalidInput(
            f"{path.name} holds weights but not the model they belong to; name the function that builds it: "
            f'divulge.oracle("my_code.py:make_model@{path}"), or put {path.stem}.json beside it, as divulge writes it '
            '({"architecture": "mlp", "widths": [...]}).'
        )
    try:
        spec = json.loads(described_by.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{described_by} is not readable JSON: {error}.") from error
    if not isinstance(spec, dict):
        raise InvalidInput(f"{described_by} should hold one JSON object that describes the model.")
    return rebuilt(spec, tensors, described_by=described_by, trust_code=trust_code)


# -- files that run code ----------------------------------------------------------------------------------------------


def _is_torchscript(path: Path) -> bool:
    """Whether this archive holds the code of a TorchScript program."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".py") and "/code/" in name for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def _pickled(path: Path, trust_pickle: bool) -> object:
    _refuse_untrusted(path, "is a pickle, and loading one can run any code", trust_pickle)
    import joblib

    return _loaded(path, lambda: joblib.load(path))


def _refuse_untrusted(path: Path, why: str, trust_pickle: bool) -> None:
    if not trust_pickle:
        raise UntrustedFile(
            f"{path.name} {why}; if you trust whoever made it, load it with {_trusting(path)}, or save the model as "
            "safetensors or ONNX."
        )


def _trusting(path: Path) -> str:
    return f'divulge.oracle("{path}", trust_pickle=True)'


def _loaded(path: Path, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:
        lost = re.search(r"attribute '(\w+)' on <module '[\w.]*__main__'", str(error))
        if lost is not None:
            raise InvalidInput(
                f"{path.name} needs {lost[1]}, which was defined in the script that wrote it; name the file that "
                f'defines it: divulge.oracle("my_script.py:{lost[1]}@{path}", trust_pickle=True).'
            ) from error
        fault = next(iter(str(error).splitlines()), "")
        raise InvalidInput(f"{path} cannot be loaded: {type(error).__name__}: {fault}") from error
