"""What tests of the gateway share."""

from __future__ import annotations

import pytest

from metropolis.gateway import engine_client


@pytest.fixture
def patient_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients and engines keep the event loop busy, so that probes may wait longer than usual."""
    monkeypatch.setattr(engine_client, "PROBE_S", 60.0)
