"""The column of dependencies by value: what is wrong in it is refused in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metropolis.trace.parquet import read_trace
from metropolis.types import MetropolisError
from tests.trace.damage import assert_sentence, rows, write_rows

Listed = list[dict[str, Any] | None]
WRONG: list[tuple[int, Listed, list[str]]] = [
    (2, [{"agent": 0, "ago": 1}], ["row 2", "depends_on.agent is 0", "another agent"]),
    (2, [{"agent": 2, "ago": 1}], ["row 2", "depends_on.agent is 2", "another agent"]),
    (3, [{"agent": 0, "ago": 0}], ["row 3", "step 1", "'Bo'", "depends_on.ago is 0", "from 1 to"]),
    (3, [{"agent": 0, "ago": 2}], ["row 3", "depends_on.ago is 2", "to the step of its row"]),
    (3, [{"agent": 0, "ago": 1}, None], ["row 3", "depends_on.agent is -1"]),
]


@pytest.mark.parametrize(("row", "listed", "expected"), WRONG)
def test_wrong_dependencies(row: int, listed: Listed, expected: list[str], tmp_path: Path) -> None:
    content = rows()
    content[row]["depends_on"] = listed
    path = write_rows(tmp_path / "damaged.parquet", content)
    with pytest.raises(MetropolisError) as caught:
        read_trace(path)
    assert_sentence(caught.value, path, expected)


def test_null_is_none(tmp_path: Path) -> None:
    content = rows()
    content[5]["depends_on"] = [{"agent": 0, "ago": 2}]
    known = read_trace(write_rows(tmp_path / "a.parquet", content)).dependencies
    assert known is not None
    assert known.offsets.tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert (known.writer.tolist(), known.ago.tolist()) == ([0], [2])
