"""The options of ``divulge.oracle`` as one value, which the built-in oracles and the plug-ins share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from divulge.core.errors import InvalidInput
from divulge.oracles.arguments import Precision
from divulge.oracles.base import Access

if TYPE_CHECKING:
    import pandas as pd

REMOTE_ONLY = (
    "journal", "token_env", "rate_limit", "concurrency", "timeout", "retries", "gradient_output", "label_output",
    "input_name", "columns", "output_dim", "threshold", "request", "response",
)  # fmt: skip


@dataclass(frozen=True)
class OracleOptions:
    """What the caller of ``divulge.oracle`` asked for. An option that was left out is None.

    Parameters
    ----------
    access, budget, precision, input_shape, device, output, gradient, batch_size, table, trust_pickle, journal, \
token_env, rate_limit, concurrency, timeout, retries, gradient_output, label_output, input_name, columns, \
output_dim, threshold, request, response, fixed
        As for ``divulge.oracle``.

    Examples
    --------
    >>> from divulge.oracles import OracleOptions
    >>> options = OracleOptions(access="gradient", input_shape=(3,))
    >>> options.refuse("a table", "device")
    >>> options.refuse("a table", "input_shape")
    Traceback (most recent call last):
    divulge.core.errors.InvalidInput: input_shape= is not for a table; leave it out.
    """

    access: Access = "value"
    budget: int | None = None
    precision: Precision = "native"
    input_shape: Sequence[int] | Mapping[str, Sequence[int]] | None = None
    device: str | None = None
    output: str | None = None
    gradient: Callable[..., object] | None = None
    batch_size: int | None = None
    table: pd.DataFrame | None = None
    trust_pickle: bool = False
    journal: str | Path | None = None
    token_env: str | None = None
    rate_limit: float | None = None
    concurrency: int | None = None
    timeout: float | None = None
    retries: int | None = None
    gradient_output: str | None = None
    label_output: str | None = None
    input_name: str | None = None
    columns: Sequence[str] | None = None
    output_dim: int | None = None
    threshold: float | None = None
    request: object = None
    response: str | None = None
    fixed: Mapping[str, object] | None = None

    def given(self, *names: str) -> dict[str, Any]:
        """The named options, without those that were left out.

        Parameters
        ----------
        *names : str
            Names of options.

        Returns
        -------
        dict
            Keyword arguments for an oracle's constructor.
        """
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def refuse(self, what: str, *names: str) -> None:
        """Refuse options that would do nothing.

        Parameters
        ----------
        what : str
            The kind of model, for the error message.
        *names : str
            The options that it does not take.

        Raises
        ------
        InvalidInput
            If one of them was given.
        """
        for name in self.given(*names):
            raise InvalidInput(f"{name}= is not for {what}; leave it out.")
