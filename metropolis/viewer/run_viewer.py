"""The viewer of a run that goes on in this process: a child process that reads the run's folder.

The run's status goes to it through a pipe, and commands come back through another one, so that
watchers cost the run nothing more. It ends with this process, because its input does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from metropolis.runtime.live.simulation import Simulation

INTERVAL_S = 0.5
CLOSE_S = 5.0


class RunViewer:
    """Shows `simulation`, a run in `folder`, from its beginning until `close`.

    `on_url` receives the URL, or the sentence of an error and False, in another thread.
    """

    def __init__(
        self, simulation: Simulation, folder: Path, on_url: Callable[[str, bool], None]
    ) -> None:
        self._simulation, self._on_url = simulation, on_url
        self._child = subprocess.Popen(
            [sys.executable, "-m", "metropolis.viewer.serving", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the run
        )
        self._ended = threading.Event()
        self._first: int | None = None
        """The floor at the first status."""
        self._moving_wall_s = 0.0
        """Wall time since the first status, without pauses, in seconds."""
        for target in (self._report, self._obey):
            threading.Thread(target=target, name="viewer", daemon=True).start()

    def end(self) -> None:
        """The run has ended; the page stays."""
        self._ended.set()

    def close(self) -> None:
        """End the page."""
        self._ended.set()
        assert self._child.stdin is not None
        with suppress(OSError):
            self._child.stdin.close()
        try:
            self._child.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _report(self) -> None:
        """Send the status until the run ends."""
        assert self._child.stdin is not None
        with suppress(OSError, ValueError):  # the child has ended, or the pipe is closed
            while True:
                has_ended = self._ended.wait(INTERVAL_S)
                if (status := self._status(has_ended=has_ended)) is not None:
                    self._child.stdin.write(json.dumps(status).encode() + b"\n")
                    self._child.stdin.flush()
                if has_ended:
                    return

    def _status(self, *, has_ended: bool) -> dict[str, Any] | None:
        progress = self._simulation.control.progress()
        if progress is None:
            return None
        if self._first is None:
            self._first = progress.floor
        elif not progress.paused:
            self._moving_wall_s += INTERVAL_S
        state = "paused" if progress.paused else "runs"
        left_s = None
        if progress.floor > self._first and not (progress.paused or has_ended):
            per_step_s = self._moving_wall_s / (progress.floor - self._first)
            left_s = per_step_s * (progress.target - progress.floor)
        return {
            "state": "ended" if has_ended else state,
            "calls": progress.calls,
            "tokens": progress.tokens,
            "cost": progress.cost,
            "floor": progress.floor,
            "newest": progress.newest,
            "in_flight": progress.in_flight,
            "time_left_s": left_s,
            "paused": progress.paused,
            "can_control": self._simulation.control.can_pause and not has_ended,
        }

    def _obey(self) -> None:
        """Obey the commands of the page."""
        assert self._child.stdout is not None
        control = self._simulation.control
        commands = {
            "pause": control.pause,
            "resume": control.resume,
            "stop": self._simulation.interrupt,
        }
        for line in self._child.stdout:
            match json.loads(line):
                case {"url": url}:
                    self._on_url(url, True)
                case {"error": sentence}:
                    self._on_url(sentence, False)
                case {"command": command}:
                    commands[command]()
