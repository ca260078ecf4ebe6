"""Fuzzing of the HTTP front: a few hostile requests by default, many in a campaign."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.gateway.fuzz_front import fuzz

INPUTS = int(os.environ.get("METROPOLIS_FUZZ_INPUTS", "20000"))


@pytest.mark.parametrize("has_keys", [True, False])
def test_hostile_requests(tmp_path: Path, has_keys: bool) -> None:
    asyncio.run(fuzz(tmp_path, 1, 512, has_keys))


@pytest.mark.campaign
@pytest.mark.parametrize("has_keys", [True, False])
def test_many_hostile_requests(tmp_path: Path, has_keys: bool) -> None:
    asyncio.run(fuzz(tmp_path, int(os.environ.get("METROPOLIS_FUZZ_SEED", "2")), INPUTS, has_keys))
