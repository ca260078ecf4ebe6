"""A folder with the files that an application names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PROFILE = """
w_ms = 6.0
g_ms = 0.06
h_ms = 2.0
b_ms = 0.01
k_ms = 1e-5
q_ms = 1e-7
c_ms = 1.0
kv_capacity_tokens = {tokens}
source = "measured"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [
        {"key": "a", "text": "one two", "output_tokens": 7},
        {"key": "b", "parts": ["three", 4], "output_tokens": [8, 9]},
        {"tokens": 21},
    ]
    text = "\n\n".join(json.dumps(line) for line in lines)
    (tmp_path / "items.jsonl").write_text(text + "\n")
    (tmp_path / "lengths.json").write_text('{"l": [1, 2], "other": [3]}')
    (tmp_path / "own.toml").write_text(
        f"[one]{PROFILE.format(tokens=9000)}[two]{PROFILE.format(tokens=30000)}"
    )
    return tmp_path
