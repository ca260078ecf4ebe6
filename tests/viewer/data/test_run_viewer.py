"""The page of a run in progress: a child process shows it, and passes on commands."""

from __future__ import annotations

import json
import queue
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from metropolis.runtime.live.result import INTERRUPTED
from metropolis.viewer.run_viewer import RunViewer
from tests.viewer.data.conftest import STEPS, simulation
from tests.viewer.data.test_control import Controlled, wait_until


def test_a_run_is_shown_and_controlled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metropolis.viewer.run_viewer.INTERVAL_S", 0.02)
    controlled = Controlled(simulation(tmp_path))
    control = controlled.run.control
    urls: queue.Queue[tuple[str, bool]] = queue.Queue()
    control.pause()
    viewer = RunViewer(controlled.run, tmp_path, lambda *found: urls.put(found))
    try:
        controlled.thread.start()
        url, is_url = urls.get(timeout=20)
        assert is_url
        base, _, token = url.partition("/#token=")

        def asked(path: str, method: str = "GET") -> Any:
            request = urllib.request.Request(
                base + path, method=method, headers={"Authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.readline() if path == "/events" else json.load(response)

        def status() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(asked("/events")[6:])["status"]
            return found

        assert asked("/data/0/meta/0")["live"]
        wait_until(lambda: status()["state"] == "paused")
        assert status()["can_control"]
        asked("/control/resume", "POST")
        wait_until(lambda: not control.paused)
        asked("/control/pause", "POST")
        asked("/control/stop", "POST")
        result = controlled.result()
        assert result.stopped in (INTERRUPTED, None)
        viewer.end()
        wait_until(lambda: status()["state"] == "ended")
        assert not status()["can_control"]
        assert asked("/data/0/meta/0")["steps"] == result.steps <= STEPS
    finally:
        viewer.close()
    assert viewer._child.poll() == 0


def test_a_run_that_never_begins(tmp_path: Path) -> None:
    viewer = RunViewer(simulation(tmp_path), tmp_path, lambda *_: None)
    viewer.close()
    assert viewer._child.poll() == 0
