"""Can they copy my model?"""

from divulge.extraction.from_values import from_values
from divulge.extraction.result import Extraction

__all__ = ["Extraction", "from_values"]
