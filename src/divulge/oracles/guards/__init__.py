"""Defences in front of an oracle. Each is itself an oracle, so that guards stack."""

from divulge.oracles.guards.base import Guard
from divulge.oracles.guards.explained import Explained
from divulge.oracles.guards.label_only import LabelOnly
from divulge.oracles.guards.logit_bias import LogitBias
from divulge.oracles.guards.noisy import Noisy
from divulge.oracles.guards.registry import GuardParser, guard, register, unregister
from divulge.oracles.guards.rounded import Rounded
from divulge.oracles.guards.smoothed import Smoothed
from divulge.oracles.guards.top_k import TopK

__all__ = [
    "Explained", "Guard", "GuardParser", "LabelOnly", "LogitBias", "Noisy", "Rounded", "Smoothed", "TopK", "guard",
    "register", "unregister",
]  # fmt: skip
