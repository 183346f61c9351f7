"""Oracles: how an attack may query a model. ``divulge.oracle(...)`` builds the right one for what it is given."""

from divulge.oracles import guards
from divulge.oracles.base import ACCESS_LEVELS, Access, Oracle
from divulge.oracles.factory import oracle
from divulge.oracles.guards import Guard, LabelOnly, LogitBias, Noisy, Rounded, Smoothed, TopK, guard
from divulge.oracles.ledger import Ledger, Spent
from divulge.oracles.load_model import load_model
from divulge.oracles.local.torch_module import TorchOracle
from divulge.oracles.onnx.export import export_onnx
from divulge.oracles.options import OracleOptions
from divulge.oracles.region import Region, RegionOracle
from divulge.oracles.registry import OracleOpener, register, unregister

__all__ = [
    "ACCESS_LEVELS", "Access", "Guard", "LabelOnly", "Ledger", "LogitBias", "Noisy", "Oracle", "OracleOpener",
    "OracleOptions", "Region", "RegionOracle", "Rounded", "Smoothed", "Spent", "TopK", "TorchOracle", "export_onnx",
    "guard", "guards", "load_model", "oracle", "register", "unregister",
]  # fmt: skip
