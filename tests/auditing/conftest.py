"""What several tests of the audit share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from divulge.auditing import registry


@pytest.fixture
def only_probes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that leaves the audit the probes of these names: a test of one finding needs no others."""

    def choose(*names: str) -> None:
        chosen = [probe for probe in registry.available_probes() if probe.name in names]
        assert {probe.name for probe in chosen} == set(names)
        monkeypatch.setattr(registry, "available_probes", lambda: chosen)

    return choose
