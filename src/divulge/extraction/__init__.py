"""Can they copy my model?"""

from divulge.extraction.result import Extraction

__all__ = ["Extraction"]
