"""Files of other releases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from re import escape

import pytest

from metropolis.durable import write_object
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.folder.view_file import read_view
from metropolis.runtime.replays.recorded_replay import read_recorded_replay
from metropolis.types import MetropolisError


@pytest.mark.parametrize(
    ("name", "read", "known"),
    [
        ("run.json", lambda folder: RunDirectory(folder).read(), "metropolis-run, version 2: run"),
        (
            "view.json",
            lambda folder: read_view(folder, None),
            "metropolis-view, version 1: `metropolis resume`",
        ),
        ("replay.json", read_recorded_replay, "metropolis-replay, version 1: record the replay"),
    ],
)
def test_other_formats_and_versions_are_refused_in_a_sentence(
    tmp_path: Path, name: str, read: Callable[[Path], object], known: str
) -> None:
    for content in ({"format": known.partition(",")[0], "version": 9}, {"version": 1}):
        write_object(tmp_path / name, content)
        sentence = f"{name}: is of another format or version; this release reads {known}"
        with pytest.raises(MetropolisError, match=escape(sentence)):
            read(tmp_path)
