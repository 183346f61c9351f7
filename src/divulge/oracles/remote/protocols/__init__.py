"""The protocols of remote models, distinguished by the path of the address."""

from __future__ import annotations

from collections.abc import Sequence

from divulge.core.errors import InvalidInput
from divulge.oracles.remote.protocols.base import ModelProtocol
from divulge.oracles.remote.protocols.kserve_v1 import KServeV1
from divulge.oracles.remote.protocols.mlflow import MLflow
from divulge.oracles.remote.protocols.open_inference import OpenInferenceV2


def protocol_for(url: str, columns: Sequence[str] | None = None) -> ModelProtocol:
    """The protocol of an address, by its path."""
    if "/v2/models/" in url:
        return OpenInferenceV2(url.removesuffix("/infer"))
    if "/v1/models/" in url:
        return KServeV1(url.removesuffix(":predict").removesuffix(":explain"))
    if url.endswith("/invocations"):
        return MLflow(url, columns)
    raise InvalidInput(
        f"{url} does not say which protocol it speaks; give http://HOST/v2/models/NAME (Open Inference Protocol), "
        "http://HOST/v1/models/NAME (KServe v1) or http://HOST/invocations (MLflow)."
    )
