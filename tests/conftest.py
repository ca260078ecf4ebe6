"""Settings of all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # how long an example takes is no failure
settings.load_profile("untimed")

SERVERS = {"cluster": "ray", "sglang_url": "engines", "vllm_url": "engines"}
"""Fixtures that take seconds to start and much memory, with the group of their tests."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one process run all tests of a file, and one process all tests of a server."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        group = next((SERVERS[name] for name in fixtures if name in SERVERS), None)
        item.add_marker(pytest.mark.xdist_group(group or item.nodeid.partition("::")[0]))


@pytest.fixture(scope="session", autouse=True)
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A user's configuration folder of the tests' own, where the key of their runs is made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
        yield
