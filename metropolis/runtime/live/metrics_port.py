"""The port of a run's metrics, without the imports of their server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metropolis.runtime.live.metrics import MetricsServer


def metrics_server(port: int | None) -> MetricsServer | None:
    """The server of a run's metrics, if it has a port."""
    if port is None:
        return None
    # Imported here: it takes 40 ms, and few runs serve metrics.
    from metropolis.runtime.live.metrics import MetricsServer

    return MetricsServer(port)
