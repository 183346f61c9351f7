"""How an attack may look at a model. ``divulge.oracle(...)`` picks the right one for what it is given."""

from divulge.oracles.base import ACCESS_LEVELS, Access, Ledger, Oracle, Spent
from divulge.oracles.factory import oracle
from divulge.oracles.files import load_model
from divulge.oracles.torch_model import TorchOracle

__all__ = ["ACCESS_LEVELS", "Access", "Ledger", "Oracle", "Spent", "TorchOracle", "load_model", "oracle"]
