"""How an attack may look at a model. ``divulge.oracle(...)`` picks the right one for what it is given."""

from divulge.oracles.base import ACCESS_LEVELS, Access, Ledger, Oracle, Spent
from divulge.oracles.factory import oracle
from divulge.oracles.files import load_model
from divulge.oracles.guards import Guard, LabelOnly, Noisy, Rounded, Smoothed, TopK, guard
from divulge.oracles.onnx_export import export_onnx
from divulge.oracles.torch_model import TorchOracle

__all__ = [
    "ACCESS_LEVELS", "Access", "Guard", "LabelOnly", "Ledger", "Noisy", "Oracle", "Rounded", "Smoothed", "Spent",
    "TopK", "TorchOracle", "export_onnx", "guard", "load_model", "oracle",
]  # fmt: skip
