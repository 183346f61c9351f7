"""Fresh oracles of the model under audit, one for each adversary, with a ledger of its own and behind the guards."""

from __future__ import annotations

from typing import Any

from divulge.auditing.options import AuditOptions
from divulge.oracles import Access, Oracle, TorchOracle, oracle
from divulge.oracles.guards import LabelOnly, guard
from divulge.oracles.onnx.oracle import OnnxOracle


def local_options(options: AuditOptions) -> dict[str, Any]:
    """The options of an oracle on this machine."""
    names = ("precision", "input_shape", "output", "fixed", "table")
    return {name: getattr(options, name) for name in names}


class OracleMaker:
    """From an access level to a fresh oracle behind the guards; every one is added to ``oracles``.

    A network is copied once for each access level. ``threshold`` is where a single answer decides, if not where the
    model's layers say.
    """

    def __init__(self, source: Any, options: AuditOptions, oracles: list[Oracle], *, remote: bool) -> None:
        self.source, self.options, self.oracles = source, options, oracles
        self.threshold: float | None = None
        self._opened = {**local_options(options), "budget": options.budget}
        if remote:
            remotely = ("journal", "token_env", "rate_limit", "request", "response")
            self._opened |= {name: getattr(options, name) for name in remotely}
        self._kept: dict[Access, Oracle] = {}

    @property
    def knows_layers(self) -> bool:
        """Whether the model is a torch module, whose oracle says where it decides."""
        return any(isinstance(view, TorchOracle) for view in self._kept.values())

    def __call__(self, access: Access) -> Oracle:
        inner: Access = "value" if access == "label" and self.options.guard else access
        view = self._kept[inner] if inner in self._kept else oracle(self.source, access=inner, **self._opened)
        if isinstance(view, TorchOracle | OnnxOracle):  # which may be large
            self._kept[inner] = view  # never handed out: an attack may lower the budget of the oracle that it asks
            view = view.renewed()
        if self.threshold is not None:
            view.threshold = self.threshold
        self.oracles.append(view)
        if self.options.guard:
            view = guard(self.options.guard, seed=self.options.seed)(view)
        return LabelOnly(view) if access == "label" and view.access != "label" else view
