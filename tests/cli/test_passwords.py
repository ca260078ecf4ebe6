"""Passwords and keys: a run does not write, print or show them to other users."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from metropolis.addresses import shown, without_secrets
from metropolis.bench.stub_server import stub_server
from metropolis.store.embedded import _valkey
from metropolis.store.server import RedisServer
from metropolis.types import MetropolisError
from tests.cli.conftest import summary
from tests.cli.test_trust import files
from tests.commands import Command
from tests.store.test_connect import free_port

PASSWORD = "METROPOLIS_STORE_PASSWORD"


@pytest.fixture
def guarded() -> Iterator[tuple[int, str]]:
    """Yield the port of a store, and its password."""
    port, password = free_port(), f"hunter{secrets.token_hex(8)}"
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--requirepass", password]
    server = subprocess.Popen([_valkey(), *options], stdout=subprocess.DEVNULL)
    try:
        while True:
            try:
                RedisServer(f"redis://:{password}@127.0.0.1:{port}").close()
                break
            except MetropolisError:
                assert server.poll() is None
        yield port, password
    finally:
        server.terminate()
        server.wait()


def test_the_password_of_a_store_is_kept_nowhere(
    run: Command, guarded: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, password = guarded
    url = f"redis://default:{password}@127.0.0.1:{port}/0"
    status, out, err = run("meadow.py", "--steps", "3", "--store", url, "--out", "it", "--json")
    assert status == 0
    whole = json.loads(out)["history_sha256"]
    assert password not in out + err
    assert not [path for path, content in files("it").items() if password.encode() in content]
    kept = f"redis://default@127.0.0.1:{port}/0"
    assert json.loads(Path("it/run.json").read_text())["about"]["store"] == kept
    assert json.loads(Path("it/store.json").read_text())["address"] == kept
    status, _, err = run("resume", "it")
    assert (status, f"give the password in {PASSWORD}" in err) == (2, True)
    monkeypatch.setenv(PASSWORD, f"{password}x")
    status, _, err = run("resume", "it")
    assert (status, password in err) == (2, False)
    monkeypatch.setenv(PASSWORD, password)
    status, out, err = run("resume", "it", "--json")
    assert status == 0, err
    assert json.loads(out)["history_sha256"] == whole
    assert run("store", "rm", json.loads(Path("it/store.json").read_text())["run"])[0] != 0


def test_a_password_does_not_break_the_embedded_store(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, "hunter2")
    summary(run, "meadow.py", "--steps", "3", "--store", "embedded", "--out", "it")
    summary(run, "resume", "it", "--steps", "4")


def test_the_key_of_a_model_is_kept_nowhere(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2")
    with stub_server(0.0, 0) as url:
        told = url.replace("http://", "http://ada:hunter3@")
        how = ("minimal", "--llm", f"vllm:{told}?token=hunter4", "--steps", "2")
        status, out, err = run(*how, "--out", "it", "--json")
        assert status == 0, err
        assert "hunter" not in out + err
        assert not [path for path, content in files("it").items() if b"hunter" in content]
        status, _, err = run("resume", "it")
        assert (status, "http://***@" in err, "give --llm again" in err) == (2, True, True)
        assert run("resume", "it", "--llm", f"vllm:{told}")[0] == 0


@pytest.mark.parametrize(
    ("address", "written", "said"),
    [
        ("redis://h:1/0", "redis://h:1/0", "redis://h:1/0"),
        ("redis://:p@h:1/0?db=2", "redis://h:1/0?db=2", "redis://h:1/0"),
        ("rediss://u:p@h?ssl_password=p", "rediss://u@h?ssl_password=***", "rediss://h"),
        ("redis://h/0?password=p&db=2", "redis://h/0?db=2", "redis://h/0"),
        ("unix:///tmp/socket?db=2&password=p", "unix:///tmp/socket?db=2", "unix:///tmp/socket"),
        ("redis://h?password=p", "redis://h", "redis://h"),
        ("rediss://h?ssl_keyfile=k", "rediss://h?ssl_keyfile=k", "rediss://h"),
        ("unix://u:p@/tmp/socket", "unix://u@/tmp/socket", "unix:///tmp/socket"),
        ("unix:///tmp/a@b/socket", "unix:///tmp/a@b/socket", "unix:///tmp/a@b/socket"),
        ("http://u:p@h:1/v1", "http://***@h:1/v1", "http://h:1/v1"),
        ("sglang:http://p@h", "sglang:http://***@h", None),
        (
            "https://h/v1?api-version=1&api_key=p#x",
            "https://h/v1?api-version=1&api_key=***#x",
            None,
        ),
        ("replay:a@b/journal.jsonl", "replay:a@b/journal.jsonl", None),
        ("scripted", "scripted", None),
        ("redis://:p/q@h/0", "redis://h/0", "redis://h/0"),
        ("http://u:p/q#r?@h:1/v1", "http://***@h:1/v1", "http://***"),
        ("http://u:p://q@h", "http://***@h", "http://h"),
        ("http://h:1/v1@2", "http://h:1/v1@2", None),
        ("http://[::1]:80/v1@2", "http://[::1]:80/v1@2", None),
        ("htp:/u:p@h", None, "h"),
    ],
)
def test_addresses(address: str, written: str | None, said: str | None) -> None:
    assert written is None or without_secrets(address) == written
    assert said is None or shown(address) == said


@pytest.mark.parametrize("option", ["--llm", "--engine"])
@pytest.mark.parametrize(
    "address",
    [
        "htp://u:hunter2@h",
        "http:u:hunter2@h",
        "http:///u:hunter2@h",
        "http://u:hun/hunter2@h",
        "http://u:hunter2#hunter2@h",
        "http://u:hunter2?hunter2@h",
        "vllm:http://u:hunter2://hunter2@h",
        "sglang:u:hunter2@h",
    ],
)
def test_a_mistyped_address_is_shown_without_its_password(
    run: Command, option: str, address: str
) -> None:
    status, out, err = run("minimal", option, address, "--steps", "2")
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert "hun" not in err
