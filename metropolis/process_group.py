"""A child process in a group of its own, which ends with this process, however that ends."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from signal import SIGKILL
from typing import IO


class ProcessGroup:
    """Runs `command`; its output goes to `output`. Raises OSError if it cannot be started.

    A shell reads from a pipe that closes when this process ends, and then kills the group.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
    ) -> None:
        self.leader = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self._watch = subprocess.Popen(
                ["/bin/sh", "-c", 'read -r _; kill -KILL "-$0"', str(self.leader.pid)],
                stdin=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            self.signal(SIGKILL)
            self.leader.wait()
            raise

    def signal(self, number: int) -> None:
        """Send a signal to all processes of the group that are left."""
        with suppress(ProcessLookupError):
            os.killpg(self.leader.pid, number)

    def close(self) -> None:
        """Kill what is left of the group. Does not wait for its end: a process that waits for a
        device may take long."""
        self.signal(SIGKILL)
        self.leader.poll()
        self._watch.kill()
        self._watch.communicate()
