"""Seals of a store's folder: which changes they detect, and which they accept."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from zlib import crc32

import pytest

from metropolis.store import seals
from metropolis.store.base import StoreError
from metropolis.store.embedded import EmbeddedServer
from tests.waiting import PATIENCE_S, eventually


def seal_of(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / seals.SEAL).read_bytes())["is"]
    return found


def log_of(folder: Path) -> Path:
    (found,) = folder.glob("appendonlydir/*.incr.aof")
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a store whose server was ended."""
    with EmbeddedServer(tmp_path / "store") as server:
        server.client.set("digits", 12345)
    return tmp_path / "store"


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    """The folder of a store whose machine failed; the last writes are not sealed."""
    server = EmbeddedServer(tmp_path / "store")
    server.client.set("early", 12345)
    log = log_of(tmp_path / "store")
    assert eventually(lambda: sealed_bytes(tmp_path / "store") == log.stat().st_size > 0)
    assert server._watch is not None
    os.kill(server._watch.pid, signal.SIGKILL)
    server.client.set("late", 67890)
    os.kill(server.pid, signal.SIGKILL)
    server.close()
    return tmp_path / "store"


def sealed_bytes(folder: Path) -> int:
    files = seal_of(folder)["files"]
    assert isinstance(files, dict)
    size_bytes: int = files.get(log_of(folder).name, [0])[0]
    return size_bytes


def refusal(folder: Path) -> str:
    with pytest.raises(StoreError) as refused:
        EmbeddedServer(folder)
    assert "\n" not in str(refused.value)
    assert "`metropolis resume RUN --store memory`" in str(refused.value)
    return str(refused.value)


def replace(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


def test_what_a_store_that_was_ended_is_sealed_for(folder: Path) -> None:
    for _ in range(3):
        assert seal_of(folder)["closed"]
        with EmbeddedServer(folder) as server:
            assert server.client.incr("digits") > 12345
            assert not seal_of(folder)["closed"]


def test_a_changed_digit(folder: Path) -> None:
    replace(log_of(folder), b"12345", b"12346")
    assert f"{log_of(folder)}: is damaged (its checksum does not fit)" in refusal(folder)


def test_an_end_that_is_missing_or_added(folder: Path) -> None:
    log = log_of(folder)
    content = log.read_bytes()
    log.write_bytes(content[:-7])
    size_bytes = len(content)
    assert f"{log}: is cut off after {size_bytes - 7} of {size_bytes} bytes" in refusal(folder)
    log.write_bytes(content + content[-7:])
    assert f"{log}: is damaged (something was added after {size_bytes}" in refusal(folder)


def test_files_that_are_missing_or_strange(folder: Path) -> None:
    log = log_of(folder)
    strange = log.with_name("appendonly.aof.9.incr.aof")
    strange.touch()
    assert f"{strange}: was not written by this store's server" in refusal(folder)
    log.rename(strange)
    assert f"{log}: is missing" in refusal(folder)


def test_a_seal_that_is_missing_or_damaged(folder: Path) -> None:
    replace(folder / seals.SEAL, b'"closed": true', b'"closed": null')
    assert "seal.json: is damaged (its checksum does not fit)" in refusal(folder)
    (folder / seals.SEAL).write_bytes(b"")
    assert "seal.json: is damaged" in refusal(folder)
    (folder / seals.SEAL).unlink()
    assert "seal.json: is missing" in refusal(folder)


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        '{"closed":true}',
        '{"closed":true,"files":[]}',
        '{"closed":true,"files":{"a":1}}',
        '{"closed":true,"files":{"a":[1e999,1]}}',
        '{"closed":true,"files":{"a":["x",1]}}',
        '{"a":' * 5000 + "1" + "}" * 5000,
        "{" + " " * seals.SEAL_BYTES_MAX + "}",
    ],
    ids=["empty", "no files", "a list", "no sums", "infinite", "a text", "deep", "long"],
)
def test_a_forged_seal(folder: Path, content: str) -> None:
    checksum = crc32(content.encode())
    (folder / seals.SEAL).write_text(f'{{"crc32":{checksum},"is":{content}}}\n')
    with pytest.raises(StoreError, match=r"seal.json: is (not a seal of this version|damaged)"):
        EmbeddedServer(folder)


def test_a_server_that_was_killed_is_sealed(folder: Path) -> None:
    server = EmbeddedServer(folder)
    server.client.set("late", 67890)
    os.kill(server.pid, signal.SIGKILL)
    assert eventually(lambda: bool(seal_of(folder)["closed"]))
    server.close()
    replace(log_of(folder), b"67890", b"67891")
    assert "is damaged" in refusal(folder)


def test_a_failure_of_the_machine_leaves_its_last_moment_without_a_seal(lost: Path) -> None:
    assert not seal_of(lost)["closed"]
    with EmbeddedServer(lost) as server:
        assert server.client.mget("early", "late") == [b"12345", b"67890"]


def test_the_end_that_is_not_sealed_may_be_torn(lost: Path) -> None:
    log = log_of(lost)
    log.write_bytes(log.read_bytes()[:-9])
    for _ in range(2):  # the server has repaired it
        with EmbeddedServer(lost) as server:
            assert server.client.mget("early", "late") == [b"12345", None]


def test_the_end_that_is_not_sealed_may_be_no_command(lost: Path) -> None:
    replace(log_of(lost), b"$5\r\n67890", b"%5\r\n67890")
    assert "did not start: " in (said := refusal(lost))
    assert f"if {lost} is damaged" in said


def test_what_was_sealed_before_the_machine_failed(lost: Path) -> None:
    log = log_of(lost)
    replace(log, b"12345", b"12346")
    assert f"{log}: is damaged" in refusal(lost)
    log.write_bytes(log.read_bytes()[: sealed_bytes(lost) - 1])
    assert f"{log}: is cut off" in refusal(lost)


def rewrite(server: EmbeddedServer) -> None:
    server.client.bgrewriteaof()
    assert eventually(lambda: not server.client.info("persistence")["aof_rewrite_in_progress"])
    assert eventually(lambda: not server.client.info("persistence")["aof_rewrite_scheduled"])


def test_a_file_that_the_server_has_rewritten(folder: Path) -> None:
    before = log_of(folder)
    with EmbeddedServer(folder) as server:
        rewrite(server)
        server.client.set("more", 1)
    assert log_of(folder) != before
    with EmbeddedServer(folder) as server:
        assert server.client.mget("digits", "more") == [b"12345", b"1"]


def test_a_machine_that_fails_after_its_server_has_rewritten_the_file(lost: Path) -> None:
    server = EmbeddedServer(lost)
    assert server._watch is not None
    os.kill(server._watch.pid, signal.SIGKILL)  # before it seals the rewrite
    rewrite(server)
    os.kill(server.pid, signal.SIGKILL)
    server.close()
    with EmbeddedServer(lost) as server:
        assert server.client.mget("early", "late") == [b"12345", b"67890"]


def test_who_watches_may_be_killed(folder: Path) -> None:
    server = EmbeddedServer(folder)
    assert server._watch is not None
    os.kill(server._watch.pid, signal.SIGKILL)
    server.client.set("more", 1)
    server.close()
    with EmbeddedServer(folder) as server:  # the lock is free
        assert server.client.get("more") == b"1"


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(StoreError, match="the server /no/such cannot be run; name its binary"):
        EmbeddedServer(binary="/no/such")


def test_a_seal_that_cannot_be_written_is_made_good(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        (folder / f"{seals.SEAL}.partial").mkdir()
        server.client.set("more", 1)
        time.sleep(2 * seals.SEAL_S)
        (folder / f"{seals.SEAL}.partial").rmdir()
    assert seal_of(folder)["closed"]
    replace(log_of(folder), b"more", b"mors")
    assert "is damaged" in refusal(folder)


def test_an_owner_that_is_killed_before_it_knows_the_server_leaves_none(tmp_path: Path) -> None:
    alive, held = os.pipe()
    read_end, closed_pipe = os.pipe()
    os.close(read_end)
    watch = subprocess.Popen(
        [sys.executable, "-IS", seals.__file__, str(tmp_path / "sockets"), "", "sleep", "600"],
        stdin=subprocess.DEVNULL,
        stdout=closed_pipe,
        pass_fds=(held,),
    )
    os.close(held)
    os.close(closed_pipe)
    ended, _, _ = select.select([alive], [], [], PATIENCE_S)
    os.close(alive)
    assert ended
    assert watch.wait() == 0
