"""The protocols of remote models, distinguished by the path of the address, or described by a template."""

from __future__ import annotations

from collections.abc import Sequence

from divulge.core.errors import InvalidInput
from divulge.oracles.remote.protocols.base import ModelProtocol
from divulge.oracles.remote.protocols.json_template import JsonTemplate
from divulge.oracles.remote.protocols.kserve_v1 import KServeV1
from divulge.oracles.remote.protocols.mlflow import MLflow
from divulge.oracles.remote.protocols.open_inference import OpenInferenceV2


def protocol_for(
    url: str, columns: Sequence[str] | None = None, request: object = None, response: str | None = None
) -> ModelProtocol:
    """The protocol of an address: a template of the user's own, or one of three by its path."""
    if request is not None:
        return JsonTemplate(url, request, response or "", columns)
    if response is not None:
        raise InvalidInput("response= says where the answer stands; say with request= what is sent, too.")
    if "/v2/models/" in url:
        return OpenInferenceV2(url.removesuffix("/infer"))
    if "/v1/models/" in url:
        return KServeV1(url.removesuffix(":predict").removesuffix(":explain"))
    if url.endswith("/invocations"):
        return MLflow(url, columns)
    raise InvalidInput(
        f"{url} does not say which protocol it speaks; give http://HOST/v2/models/NAME (Open Inference Protocol), "
        "http://HOST/v1/models/NAME (KServe v1) or http://HOST/invocations (MLflow), or describe its JSON with "
        "request= and response=."
    )
