"""The errors that divulge raises, under the name that programs import them by."""

from divulge.core.errors import *  # noqa: F403
from divulge.core.errors import DivulgeError as DivulgeError
