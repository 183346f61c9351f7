"""Can they tell what somebody did not say? Attribute inference, against imputation without the model."""

from __future__ import annotations

from divulge.attributes.attack import METHODS, attack
from divulge.attributes.every_column import attack_columns
from divulge.attributes.result import Attribute

__all__ = ["METHODS", "Attribute", "attack", "attack_columns"]
