"""Servers that reason hold a run are refused at the start, in one sentence without secrets."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from metropolis.addresses import shown
from metropolis.store import seals
from metropolis.store.base import StoreError, StoreUnavailableError
from metropolis.store.check import check_store
from metropolis.store.connect import reason_unsuitable, store_errors, warnings
from metropolis.store.embedded import EmbeddedServer, _valkey
from metropolis.store.factory import address_from_environment, open_server
from metropolis.store.memory import MemoryServer
from metropolis.store.server import RedisServer
from tests.store.conftest import REDIS
from tests.store.lines import begin, claimed, commit, dispatch

FINE = {"redis_version": "7.0.15", "role": "master", "maxmemory": 0, "used_memory": 10**6}


def test_a_fine_server_is_accepted() -> None:
    assert reason_unsuitable(FINE) is None
    limited = {"maxmemory": 10**9, "maxmemory_policy": "noeviction"}
    assert reason_unsuitable(FINE | limited) is None
    assert (
        reason_unsuitable(FINE | {"redis_version": "10.0.1", "maxmemory_policy": "allkeys-lru"})
        is None
    )


@pytest.mark.parametrize(
    ("otherwise", "sentence"),
    [
        ({"redis_version": "6.2.14"}, "the server's version is 6.2.14"),
        ({"cluster_enabled": 1}, "part of a cluster"),
        ({"role": "slave"}, "is a replica"),
        ({"maxmemory": 10**9, "maxmemory_policy": "allkeys-lru"}, "allkeys-lru"),
        ({"maxmemory": 10**9, "maxmemory_policy": "volatile-ttl"}, "volatile-ttl"),
        ({"maxmemory": 10**6, "maxmemory_policy": "noeviction"}, "memory is full"),
    ],
)
def test_what_cannot_keep_a_run(otherwise: Mapping[str, Any], sentence: str) -> None:
    told = reason_unsuitable(FINE | otherwise)
    assert told is not None
    assert sentence in told


def test_warnings() -> None:
    assert warnings({"aof_enabled": 1}) == []
    (warning,) = warnings({"aof_enabled": 0})
    assert "appendonly yes" in warning


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:hunter2@example.org:7000/3?password=hunter2&x=hunter2",
        "rediss://:hunter2@example.org:7000/3",
        "unix://me:hunter2@/run/redis.sock?password=hunter2",
    ],
)
def test_no_secret_is_shown(url: str) -> None:
    assert "hunter2" not in shown(url)
    assert shown(url).startswith(url.partition(":")[0] + "://")
    assert shown(url).endswith(("example.org:7000/3", "/run/redis.sock"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def served(folder: Path, *options: str, binary: str | None = None) -> Iterator[int]:
    """Run a server on a port of 127.0.0.1; end it afterwards."""
    port = free_port()
    plain = [] if "--tls-port" in options else ["--port", str(port)]
    secured = [str(port) if option == "PORT" else option for option in options]
    server = subprocess.Popen(
        [binary or _valkey(), *plain, "--dir", str(folder), "--save", "", *secured],
        stdout=subprocess.DEVNULL,
    )
    try:
        while server.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        yield port
    finally:
        server.terminate()
        server.wait()


def test_a_password_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, "--requirepass", "hunter2") as port:
        url = f"redis://127.0.0.1:{port}"
        for wrong in (url, f"redis://:hunter3@127.0.0.1:{port}"):
            with pytest.raises(StoreError, match="refuses this user") as refused:
                RedisServer(wrong)
            assert "hunter" not in str(refused.value)
        monkeypatch.setenv("METROPOLIS_STORE_PASSWORD", "hunter2")
        with RedisServer(url) as server:
            assert server.runs() == []


PERMITTED = "~metropolis:* +@all -@admin -@dangerous +info"


@pytest.mark.parametrize("binary", [None, REDIS])
def test_a_user_with_few_permissions(tmp_path: Path, binary: str | None) -> None:
    for rules, refused in (
        (PERMITTED, None),
        (f"{PERMITTED} -evalsha", "evalsha"),
        (f"{PERMITTED} -time", "may not use TIME"),
        (f"{PERMITTED} -xadd", "may not use XADD"),  # which follows other writes of a commit
        (PERMITTED.replace("metropolis", "other"), "key"),
    ):
        user = f"--user me on >secret {rules}".split()
        with served(tmp_path, *user, binary=binary) as port:
            url = f"redis://me:secret@127.0.0.1:{port}"
            if refused is None:
                with RedisServer(url) as server:
                    check_store(server)
                continue
            with pytest.raises(StoreError, match=rf"{refused}.*; the user needs the keys .*\+info"):
                RedisServer(url)


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        ("?foo=1", r"the options of the address should be of client_name, db, .*, username"),
        ("?protocol=3", r"the options of the address should be of"),
        ("?decode_responses=true", r"the options of the address should be of"),
        ("?ssl_ca_certs=file", r"the options of the address should be of"),
        ("/first", "should end with the number of a database"),
        ("/0/sec@ret", "should end with the number of a database"),
    ],
)
def test_an_address_with_options_of_no_use(end: str, sentence: str) -> None:
    with pytest.raises(StoreError, match=sentence) as refused:
        RedisServer(f"redis://127.0.0.1:1{end}")
    assert "sec" not in str(refused.value)


def test_a_short_time_out_of_an_address_is_not_that_of_waiting_calls(tmp_path: Path) -> None:
    with (
        served(tmp_path) as port,
        RedisServer(f"redis://127.0.0.1:{port}?socket_timeout=0.1") as server,
    ):
        begin(server.store("run"), 1)

        async def wait() -> None:
            store = server.store("run").async_store()
            assert await store.acknowledgements("0", 0.25) == []
            await store.close()

        asyncio.run(wait())


def test_a_password_is_not_for_a_server_of_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METROPOLIS_STORE_PASSWORD", "hunter2")
    with open_server(f"embedded:{tmp_path}") as server:
        begin(server.store("run"), 1)
        with open_server(f"embedded:{tmp_path}", attach=True) as again:
            assert "run" in again.runs()


@pytest.mark.parametrize("attach", [False, True])
def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attach: bool
) -> None:
    with open_server(f"embedded:{tmp_path}") as server:
        begin(server.store("run"), 1)

    def lock(folder: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", f"{folder / 'lock'}")

    monkeypatch.setattr("metropolis.store.embedded._lock", lock)
    with pytest.raises(StoreError, match=rf"embedded:{tmp_path}: Read-only file system"):
        open_server(f"embedded:{tmp_path}", attach=attach)


@pytest.mark.parametrize("address", ["redis://127.0.0.1:{port}", "unix://socket", "\x1b[2J", ""])
def test_a_folder_does_not_say_where_a_password_goes(tmp_path: Path, address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        (tmp_path / "address").write_text(address.format(port=listener.getsockname()[1]))
        with pytest.raises(StoreError, match="address: does not name a server of this user"):
            open_server(f"embedded:{tmp_path}", attach=True)
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("command", ["REPLICAOF 127.0.0.1 {port}", "CONFIG SET port {port}"])
def test_a_folder_does_not_make_its_server_connect(tmp_path: Path, command: str) -> None:
    with EmbeddedServer(tmp_path) as server:
        begin(server.store("run"), 1)
    files = [*tmp_path.glob("appendonlydir/*.incr.aof")]
    words = command.format(port=free_port()).split()
    with files[-1].open("a") as file:
        file.write(f"*{len(words)}\r\n" + "".join(f"${len(w)}\r\n{w}\r\n" for w in words))
    seals.Seals(tmp_path).write(closed=True)  # an attacker can do this, too
    with pytest.raises(StoreError, match=r"did not start: .*nknown command"):
        EmbeddedServer(tmp_path)


@pytest.mark.parametrize("written", ["%2e", "?", "/../metropolis-a/socket?x=", "plain"])
def test_a_folder_names_no_other_socket(tmp_path: Path, written: str) -> None:
    """Neither by special characters of URLs, nor any socket that we did not make."""
    folder = tmp_path / "store"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        path = tempfile.mktemp(prefix="metropolis.", dir="/tmp")
        listener.bind(path)
        listener.listen()
        named = path if written == "plain" else path.replace(".", "%2e") + written
        (folder / "address").write_text(f"unix://{named}#embedded")
        try:
            with pytest.raises(StoreError, match="address: does not name a server of this user"):
                open_server(f"embedded:{folder}", attach=True)
            listener.settimeout(0)
            with pytest.raises(BlockingIOError):
                listener.accept()
        finally:
            Path(path).unlink()


@pytest.mark.parametrize("name", ["lock", "server.log", "address", "appendonlydir/x.aof", "temp-1"])
@pytest.mark.parametrize("way", ["link", "hard link", "pipe"])
def test_a_store_does_not_write_elsewhere(tmp_path: Path, name: str, way: str) -> None:
    folder, precious = tmp_path / "store", tmp_path / "precious"
    (folder / "appendonlydir").mkdir(parents=True)
    precious.write_text("precious")
    (folder / "address").write_text("unix:///nowhere/metropolis-x/socket#embedded")
    (folder / name).unlink(missing_ok=True)
    match way:
        case "link":
            (folder / name).symlink_to(precious)
        case "hard link":
            (folder / name).hardlink_to(precious)
        case "pipe":
            os.mkfifo(folder / name)
    for attach in (True, False):
        with pytest.raises(StoreError, match=f"{name}: (is|does not name) "):
            open_server(f"embedded:{folder}", attach=attach)
    assert precious.read_text() == "precious"


def test_an_address_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "address").symlink_to("/dev/zero")
    with pytest.raises(StoreError, match="address: is not a readable regular file"):
        open_server(f"embedded:{tmp_path}", attach=True)


def test_an_odd_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "50%25 & more"
    odd.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    with EmbeddedServer(tmp_path / "store") as server:
        begin(server.store("here"), 1)
        with open_server(f"embedded:{tmp_path / 'store'}", attach=True) as guest:
            assert guest.runs() == ["here"]
    assert list(odd.iterdir()) == []


def test_dead_addresses_and_wrong_ones() -> None:
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:\d+: the store does not answer"):
        RedisServer(f"redis://:hunter2@127.0.0.1:{free_port()}")
    with pytest.raises(StoreError, match="'http' is not a store; write memory, embedded"):
        open_server("http://localhost")
    with pytest.raises(StoreError, match="should look like redis://localhost") as refused:
        open_server("redis://:hunter2@localhost:x/0")
    assert "hunter2" not in str(refused.value)
    with pytest.raises(StoreError, match="is not an address of a store; it should look") as refused:
        open_server("redis://:hunt/er2@localhost/0")
    assert not {"hunt", "er2"} & {*re.findall(r"\w+", str(refused.value))}
    with pytest.raises(StoreError, match=r"cannot be used \(Invalid SSL Cert.* name a Redis"):
        open_server("rediss://localhost/0?ssl_cert_reqs=never")
    with pytest.raises(StoreError, match="cannot be used"), store_errors("redis://localhost"):
        raise redis.InvalidResponse  # a server that is none


def test_a_server_that_runs_a_long_script_will_answer_again() -> None:
    with (
        pytest.raises(StoreUnavailableError, match="runs a long script"),
        store_errors("redis://localhost"),
    ):
        raise redis.ResponseError("BUSY Redis is busy running a script. You can only call …")


def test_a_silent_server_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As is one without TLS, which waits for the rest of what it takes for a command."""
    monkeypatch.setattr("metropolis.store.connect.TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        port = silent.getsockname()[1]
        with pytest.raises(StoreUnavailableError, match="another one; a server without TLS has an"):
            RedisServer(f"rediss://127.0.0.1:{port}")
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


def refusal(port: int) -> str:
    with pytest.raises(StoreError) as refused:
        RedisServer(f"redis://127.0.0.1:{port}")
    return str(refused.value)


def test_real_servers_that_are_refused(tmp_path: Path) -> None:
    with served(tmp_path, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as port:
        assert "set maxmemory-policy noeviction" in refusal(port)
        with served(tmp_path, "--replicaof", "127.0.0.1", str(port)) as replica:
            assert "is a replica" in refusal(replica)
    with served(tmp_path, "--maxmemory", "1000") as port:
        assert "memory is full" in refusal(port)
    bus = str(free_port())
    with served(tmp_path, "--cluster-enabled", "yes", "--cluster-port", bus) as port:
        assert "part of a cluster" in refusal(port)


def test_a_commit_into_a_full_memory_is_refused_whole() -> None:
    with EmbeddedServer() as server:
        store = server.store("full")
        fence = begin(store, 1)
        dispatch(store, fence, 0, 0)
        claim = claimed(store)
        before = store.nodes(), store.world(0), store.minds([0])
        server.client.config_set("maxmemory", server.client.info("memory")["used_memory"] + 1)
        with pytest.raises(StoreUnavailableError, match="the store's memory is full"):
            commit(store, claim, 1_000_000 * "x")
        store.collect(fence, 0)
        assert before == (store.nodes(), store.world(0), store.minds([0]))
        server.client.config_set("maxmemory", 0)
        assert commit(store, claim)


def test_addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("METROPOLIS_STORE", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert address_from_environment() is None
    monkeypatch.setenv("REDIS_URL", "redis://other")
    assert address_from_environment() == "redis://other"
    monkeypatch.setenv("METROPOLIS_STORE", "memory")
    assert address_from_environment() == "memory"
    assert isinstance(open_server("memory"), MemoryServer)
    with open_server(f"embedded:{tmp_path}") as owner:
        begin(owner.store("here"), 1)
        with open_server(f"embedded:{tmp_path}", attach=True) as guest:
            assert not isinstance(guest, EmbeddedServer)
            assert guest.runs() == ["here"]
    with open_server(f"embedded:{tmp_path}", attach=True) as alone:
        assert isinstance(alone, EmbeddedServer)
        assert alone.runs() == ["here"]


def test_a_server_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="true did not start: it left no log"):
        EmbeddedServer(binary="true")
    (tmp_path / "appendonlydir").write_text("in the way")
    with pytest.raises(StoreError, match=r"did not start: .*append"):
        EmbeddedServer(tmp_path)


def test_a_server_that_still_reads_what_it_keeps_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While loading, the server answers only INFO."""
    info, loading = redis.Redis.info, [1, 1, *[0] * 100]

    def slow(client: Any, *sections: str) -> Any:
        return {**info(client, *sections), "loading": loading.pop(0)}

    monkeypatch.setattr(redis.Redis, "info", slow)
    with EmbeddedServer(tmp_path) as server:
        assert server.runs() == []
    assert not [still for still in loading if still]
