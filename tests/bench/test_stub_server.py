"""The stub server: chats, whole or streamed; other requests are refused, not dropped."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metropolis.bench import METROPOLIS
from metropolis.bench.stub_server import MODEL, TEXT, WORDS, stub_server

QUESTION = [{"role": "user", "content": "How are you?"}]
CHAT = {"model": MODEL, "messages": QUESTION}
CHATS = "/v1/chat/completions"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with stub_server(1e-6, 0) as url:
        yield url


def send(url: str, path: str, body: str | bytes | None, method: str = "POST") -> tuple[int, Any]:
    """Return the status and the content; the connection must stay open."""
    connection = HTTPConnection(url.removeprefix("http://"), timeout=10)
    connection.request(method, path, body)
    response = connection.getresponse()
    content = json.loads(response.read())
    connection.request("GET", "/v1/models")
    assert json.loads(connection.getresponse().read())["data"][0]["id"] == MODEL
    connection.close()
    return response.status, content


def assert_refused(found: tuple[int, Any]) -> None:
    status, content = found
    assert status == 400
    assert content["error"]["type"] == "invalid_request_error"
    assert content["error"]["message"]


@pytest.mark.parametrize("question", ["How are you?", "\ud800", None, [{"type": "text"}]])
def test_a_chat_is_answered(url: str, question: Any) -> None:
    chat = {**CHAT, "messages": [{"role": "user", "content": question}]}
    status, content = send(url, CHATS, json.dumps(chat))
    assert status == 200
    assert content["choices"][0]["message"]["content"] == TEXT


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/completions", json.dumps({"model": MODEL, "prompt": "Hello"})),
        ("POST", "/v1/completions", json.dumps(CHAT)),
        ("POST", CHATS, None),
        ("POST", CHATS, "{"),
        ("POST", CHATS, b"\xff"),
        ("POST", CHATS, "[" * 100_000),
        ("POST", CHATS, "[1]"),
        ("POST", CHATS, json.dumps({"messages": []})),
        ("POST", CHATS, json.dumps({"messages": "x"})),
        ("POST", CHATS, json.dumps({"messages": [["content"]]})),
        ("POST", CHATS, json.dumps({"messages": [{"role": "user"}]})),
        ("GET", "/v2/nothing", None),
    ],
)
def test_what_is_no_chat_is_refused(
    url: str, method: str, path: str, body: str | bytes | None
) -> None:
    assert_refused(send(url, path, body, method))


def test_a_body_in_pieces_is_refused_and_the_connection_ended(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = f"POST {CHATS} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(f"{head}2\r\n{{}}\r\n0\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["content"]), inner)
    ),
)


@given(st.dictionaries(st.sampled_from(["messages", "stream", "stream_options", "seed"]), JSON))
def test_any_body_is_answered_or_refused(url: str, body: dict[str, Any]) -> None:
    connection = HTTPConnection(url.removeprefix("http://"), timeout=10)
    connection.request("POST", CHATS, json.dumps(body))
    assert connection.getresponse().status in (200, 400)
    connection.close()


@pytest.mark.parametrize("counted", [False, True])
def test_a_chat_streams_its_text_and_usage(url: str, counted: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if counted else {}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:
        chunks = list(client.chat.completions.create(**CHAT, stream=True, **options))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == TEXT
    assert choices[-1].finish_reason == "stop"
    assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == [18] * counted


def test_with_a_log_requests_need_a_seed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with stub_server(0.0, 0, "--log", str(log)) as url:
        assert_refused(send(url, CHATS, json.dumps(CHAT)))
        assert log.read_text() == ""
        with openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as client:
            whole = client.chat.completions.create(**CHAT, seed=7)
            chunks = list(client.chat.completions.create(**CHAT, seed=7, stream=True))
    text = whole.choices[0].message.content
    assert set(text.split()) <= set(WORDS)
    assert chunks[0].choices[0].delta.content == text
    noted = [line.split()[0::2] for line in log.read_text().splitlines()]
    assert noted[:3] == [["asked", "7"], ["answered", "7"], ["asked", "7"]]  # the last is slow


def test_a_scripted_author_answers_as_in_a_run_without_a_server() -> None:
    def summary(*llm: str) -> list[Any]:
        run = [*METROPOLIS, "run", *about, "--steps", "20", "--quiet", "--json", *llm]
        found = json.loads(subprocess.check_output(run))
        return [
            found[name] for name in ("history_sha256", "calls", "prompt_tokens", "output_tokens")
        ]

    about = ["largeville", "--agents", "30", "--seed", "5"]
    with stub_server(1e-4, 5, "--scenario", *about[:3]) as url:
        served, offline = summary("--llm", f"vllm:{url}"), summary()
        assert_refused(send(url, CHATS, json.dumps(CHAT)))
    assert served == offline
    assert offline[1] > 500


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--agents", "5"], "--agents requires --scenario"),
        (["--scenario", "smallville", "--log", "log"], "--log draws its own answers"),
        (["--scenario", "smalville"], "did you mean"),
        (["--port", "99999"], "99999 is not in the range"),
        (["--mean-ms", "nan"], "nan is not in the range"),
        (["--mean-ms", "inf"], "inf is not in the range"),
        (
            ["--port", "TAKEN"],
            r"cannot listen at 127.0.0.1:\d+: Address already in use; choose another --port",
        ),
    ],
)
def test_bad_options_are_one_sentence_and_status_2(options: list[str], sentence: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        found = subprocess.run(
            [*METROPOLIS, "bench", "stub-server", *(port if o == "TAKEN" else o for o in options)],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert (found.returncode, found.stdout) == (2, "")
    assert re.fullmatch(rf"metropolis: [^\n]*{sentence}[^\n]*\n", found.stderr), found.stderr
