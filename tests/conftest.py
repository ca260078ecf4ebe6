"""Settings of all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from tests.commands import metropolis
from tests.real_engines import sglang_url, vllm_url

__all__ = ["metropolis", "sglang_url", "vllm_url"]

# How long an example takes is no failure. 60 examples, not 100: there are 400 such tests, and every
# run draws others.
settings.register_profile("metropolis", deadline=None, max_examples=60)
settings.load_profile("metropolis")

SERVERS = {"cluster": "ray", "sglang_url": "engines", "vllm_url": "engines"}
"""Fixtures that take seconds to start and much memory, with the group of their tests."""
LONGEST = (
    "ray",
    "tests/test_cpp.py",
    "tests/test_install.py",
    "engines",
    "tests/runtime/test_check_world.py",
    "tests/test_style.py",
    "tests/runtime/test_nodes.py",
    "tests/runtime/test_lookahead.py",
    "tests/gateway/test_thousand.py",
    "tests/test_examples.py",
    "tests/test_docs.py",
)
"""The groups that take longest (25 to 400 s), which begin first: short ones fill what is left."""
GROUP = pytest.StashKey[str]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores: a third of a test process's time is waiting for servers."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order of groups; xdist would begin with those of the most tests.

    Tests send SIGINT, which a process that was started in the background of a script ignores.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Let one process run all tests of a file, and one process all tests of a server."""
    for item in items:
        item.stash[GROUP] = group_of(item)
        item.add_marker(pytest.mark.xdist_group(item.stash[GROUP]))
    yield  # pytest sorts by the parameters of fixtures
    ranks = {group: rank for rank, group in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.stash[GROUP], len(ranks)))


def pytest_collection_finish() -> None:
    """Spare the garbage collector what lives as long as the process: it visited it at each pass."""
    gc.collect()
    gc.freeze()


def group_of(item: pytest.Item) -> str:
    """The group of a test: that of its server, or its file."""
    for name in getattr(item, "fixturenames", ()):
        if name in SERVERS:
            return SERVERS[name]
    return item.nodeid.partition("::")[0]


@pytest.fixture(scope="session", autouse=True)
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A user's configuration folder of the tests' own, where the key of their runs is made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
        yield
