"""A model behind real HTTP, so that its owner can rehearse what a client of it could learn."""

from divulge.core.errors import MissingPackage

try:
    import httptools  # noqa: F401
    import orjson  # noqa: F401
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise MissingPackage(
        "Serving needs httptools, orjson, starlette and uvicorn: pip install 'divulge[serve]'."
    ) from error

from divulge.serving.application import ModelServer
from divulge.serving.run import open_model, running, serve

__all__ = ["ModelServer", "open_model", "running", "serve"]
