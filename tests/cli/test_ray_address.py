"""A run that began on a Ray cluster of the user, resumed without it."""

from __future__ import annotations

from typing import Any

import pytest

from metropolis.runtime.live import simulation
from metropolis.runtime.live.worker_pool import LocalWorkerPool
from metropolis.workers import ray_cluster
from tests.cli.conftest import summary
from tests.commands import Command

ON_RAY = "--store", "embedded", "--workers", "ray:1", "--ray-address", "10.0.0.1:6379"


@pytest.mark.parametrize("changed", [("--store", "memory"), ("--workers", "2")])
def test_it_is_resumed_by_workers_in_this_process(
    run: Command,
    uninterrupted: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    changed: tuple[str, str],
) -> None:
    with monkeypatch.context() as on_ray:
        on_ray.setattr(ray_cluster, "check_address", lambda _: None)
        on_ray.setattr(
            simulation,
            "make_worker_pool",
            lambda _workers, _address, spec, stored: LocalWorkerPool(spec, stored, 1),
        )
        status, _, err = run("interrupted.py", *ON_RAY, "--out", "it")
    assert status == 130, err
    resumed = summary(run, "resume", "it", *changed, "--quiet")
    assert resumed["history_sha256"] == uninterrupted["history_sha256"]
