"""The requests sent: documented fields only, priorities, streams, aborts, addresses."""

from __future__ import annotations

import asyncio
import pickle
import socket
import sys
import threading
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from metropolis.llm import (
    LLM,
    Backend,
    Client,
    Completion,
    Journal,
    LLMError,
    RefusedError,
    Request,
    UnavailableError,
)
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.backends.openai import OpenAIClient
from metropolis.llm.backends.replay import Replay
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.backends.sglang import SGLang
from metropolis.llm.connect import connect
from metropolis.types import MetropolisError
from tests.gateway.engines import StubEngine, until
from tests.llm.fakes import request
from tests.llm.faults import FaultyServer

# The fields that the servers document.
# docs.sglang.ai, "Sampling Parameters": the /generate endpoint and its sampling_params
# (SGLang 0.5.23: GenerateReqInput in srt/managers/io_struct.py, srt/sampling/sampling_params.py).
SGLANG_GENERATE = {
    "text", "input_ids", "rid", "sampling_params", "stream", "priority", "return_logprob",
    "lora_path", "session_params", "return_hidden_states", "input_embeds",
}  # fmt: skip
SGLANG_SAMPLING = {
    "max_new_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids",
    "stop_regex", "frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens",
    "json_schema", "regex", "ebnf", "structural_tag", "n", "ignore_eos", "skip_special_tokens",
    "spaces_between_special_tokens", "no_stop_trim", "sampling_seed", "custom_params",
}  # fmt: skip
# platform.openai.com/docs/api-reference/chat/create and /completions/create
OPENAI_SHARED = {
    "model", "frequency_penalty", "logit_bias", "max_tokens", "n", "presence_penalty", "seed",
    "stop", "stream", "stream_options", "temperature", "top_p", "user",
}  # fmt: skip
OPENAI_CHAT = OPENAI_SHARED | {"messages", "max_completion_tokens", "response_format", "logprobs"}
OPENAI_COMPLETIONS = OPENAI_SHARED | {"prompt", "best_of", "echo", "suffix", "logprobs"}
# SGLang's additions to chat completions (0.5.23: srt/entrypoints/openai/protocol.py)
SGLANG_CHAT = OPENAI_CHAT | {"rid", "priority", "regex", "ebnf", "ignore_eos", "min_tokens"}
# docs.vllm.ai, "OpenAI-Compatible Server", extra parameters of the chat API
VLLM_CHAT = OPENAI_CHAT | {"priority", "structured_outputs", "top_k", "ignore_eos"}
VLLM_COMPLETIONS = OPENAI_COMPLETIONS | {"priority", "structured_outputs", "top_k", "ignore_eos"}
DOCUMENTED = {
    "sglang": {"/generate": SGLANG_GENERATE, "/v1/chat/completions": SGLANG_CHAT},
    "compatible": {"/v1/chat/completions": OPENAI_CHAT, "/v1/completions": OPENAI_COMPLETIONS},
    "openai": {"/v1/chat/completions": OPENAI_CHAT, "/v1/completions": OPENAI_COMPLETIONS},
    "vllm": {"/v1/chat/completions": VLLM_CHAT, "/v1/completions": VLLM_COMPLETIONS},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CHAT = ({"role": "system", "content": "You are Ada."}, {"role": "user", "content": "hello"})


def everything(is_engine: bool) -> list[Request]:
    """Requests that together use every field."""
    plain: list[dict[str, object]] = [{}, {"stop": ("\n", "END")}]
    schema: list[dict[str, object]] = [{"json_schema": SCHEMA}]
    extended: list[dict[str, object]] = [{"regex": "yes|no"}, {"ignore_eos": True}]
    of_engines = extended if is_engine else []
    chats = [{"messages": CHAT, **option} for option in plain + schema + of_engines]
    prompts = [{"prompt": "hello", **option} for option in plain + schema * is_engine + of_engines]
    return [request(**fields) for fields in chats + prompts]


def send(backend_of: str, requests: list[Request]) -> list[tuple[str, dict[str, object]]]:
    async def ask() -> list[tuple[str, dict[str, object]]]:
        async with FaultyServer() as server:
            backend = connect(f"{backend_of}:{server.url}", "tiny")
            for wanted in requests:
                assert (await backend.complete(wanted)).text == "to hello"
            await backend.close()
            return server.requests

    return asyncio.run(ask())


@pytest.mark.parametrize("kind", DOCUMENTED)
def test_only_documented_fields_are_sent(kind: str) -> None:
    seen: dict[str, set[str]] = {}
    for path, body in send(kind, everything(is_engine=kind in ("sglang", "vllm"))):
        seen.setdefault(path, set()).update(body)
        if path == "/generate":
            assert set(body["sampling_params"]) <= SGLANG_SAMPLING  # type: ignore[call-overload]
    assert seen.keys() == DOCUMENTED[kind].keys()
    for path, fields in seen.items():
        assert fields <= DOCUMENTED[kind][path]


def test_a_chat_body_contains_the_whole_request() -> None:
    (_, body), *_ = send("sglang", [request(messages=CHAT, stop=("\n",), json_schema=SCHEMA)])
    rid = body.pop("rid")
    assert str(rid).startswith("metropolis-")
    assert body == {
        "model": "tiny", "messages": list(CHAT), "max_tokens": 20, "temperature": 0.5, "seed": 1,
        "priority": 0, "stop": ["\n"],
        "response_format": {
            "type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA},
        },
    }  # fmt: skip


def test_a_prompt_body_contains_the_whole_request() -> None:
    (_, body), *_ = send("sglang", [request(prompt="hello", regex="a|b", stop=("\n",))])
    body.pop("rid")
    assert body == {
        "text": "hello", "priority": 0,
        "sampling_params": {
            "max_new_tokens": 20, "temperature": 0.5, "sampling_seed": 1, "stop": ["\n"],
            "regex": "a|b",
        },
    }  # fmt: skip


@pytest.mark.parametrize("fields", [{"messages": CHAT}, {"prompt": "hello"}])
@pytest.mark.parametrize("kind", ["sglang", "vllm", "openai", "compatible"])
def test_seeds_can_be_left_out(kind: str, fields: dict[str, Any]) -> None:
    url = "http://127.0.0.1:1"
    spec = url if kind == "compatible" else f"{kind}:{url}"
    with_seed, without = (
        backend.body_of(request(**fields))
        for backend in (_connected(spec, sends_seed=sends_seed) for sends_seed in (True, False))
    )
    for body in (with_seed, without):
        body.pop("rid", None)
    within = "sampling_params" if "sampling_params" in with_seed else None
    seed = "seed" if within is None else "sampling_seed"
    assert (with_seed if within is None else with_seed[within]).pop(seed) == 1
    assert with_seed == without


def _connected(spec: str, *, sends_seed: bool) -> Any:
    if spec.startswith("http"):
        return Compatible(spec, sends_seed=sends_seed)
    return connect(spec, sends_seed=sends_seed)


def test_priorities_keep_the_order_of_steps_in_few_values() -> None:
    backend = SGLang("http://127.0.0.1:1")
    bodies = [backend.body_of(request(priority=step)) for step in range(320)]
    priorities = [body["priority"] for body in bodies]
    assert priorities == sorted(priorities)
    assert len(set(priorities)) == 10
    guess = backend.body_of(request(priority=0, speculative=True))
    assert guess["priority"] > priorities[-1]
    assert len({body["rid"] for body in bodies}) == 320


def test_openai_gets_max_completion_tokens_and_no_priority() -> None:
    openai = Compatible("https://api.openai.com/v1", "some-model")
    body = openai.body_of(request(messages=CHAT))
    assert body["max_completion_tokens"] == 20
    assert not {"max_tokens", "priority", "extra_body"} & body.keys()
    with pytest.raises(RefusedError, match="cannot follow a regex"):
        openai.body_of(request(regex="a"))
    with pytest.raises(RefusedError, match="cannot follow a JSON schema without a chat"):
        openai.body_of(request(json_schema=SCHEMA))
    with pytest.raises(RefusedError, match="cannot follow an exact length"):
        openai.body_of(request(ignore_eos=True))


@pytest.mark.parametrize("kind", [{"messages": CHAT}, {"prompt": "hello"}])
def test_engines_are_told_to_ignore_the_end(kind: dict[str, Any]) -> None:
    asked = request(ignore_eos=True, **kind)
    for spec in ("sglang", "vllm"):
        ((_, body),) = send(spec, [asked])
        assert body.get("sampling_params", body)["ignore_eos"] is True  # type: ignore[attr-defined]
    assert asked.digest != request(**kind).digest


@pytest.mark.parametrize("kind", ["sglang", "compatible", "openai"])
def test_a_chat_streams_to_the_agent(kind: str) -> None:
    async def ask() -> list[str]:
        async with FaultyServer() as server:
            client = Client(connect(f"{kind}:{server.url}", "tiny"))
            llm = LLM(client, agent=1, step=2, seed=3)
            pieces = [piece async for piece in llm.stream("hello")]
            assert llm.calls[0].output_tokens == 7
            await client.close()
        return pieces

    assert asyncio.run(ask()) == ["to", " hello"]


@pytest.mark.parametrize("kind", ["sglang", "compatible", "openai"])
def test_a_pickled_backend_works_in_another_process(kind: str) -> None:
    async def ask() -> list[str]:
        async with FaultyServer() as server:
            mine = connect(f"{kind}:{server.url}", "tiny")
            texts = [(await mine.complete(request(prompt="hello"))).text]
            other = pickle.loads(pickle.dumps(mine))
            for backend in (other, mine):
                texts.append((await backend.complete(request(prompt="hello"))).text)
                await backend.close()
        return texts

    assert asyncio.run(ask()) == ["to hello"] * 3


@pytest.mark.parametrize("kind", ["sglang", "vllm", "openai"])
def test_a_pickled_backend_with_tls_works_in_another_process(kind: str) -> None:
    backend = connect(f"{kind}:https://127.0.0.1:9/v1", "tiny")
    other = pickle.loads(pickle.dumps(backend))
    assert str(other) == str(backend)
    with pytest.raises(UnavailableError, match="cannot be reached"):
        asyncio.run(other.complete(request(prompt="hello")))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "the connection was closed"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "its answer is not TLS; write http:// if it serves"),
    ],
)
def test_https_to_a_server_without_tls_has_a_reason(answer: bytes, reason: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    async def ask() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            backend = connect(f"vllm:https://127.0.0.1:{port}", "tiny")
            with pytest.raises(LLMError, match=f"cannot be reached for .*: {reason}"):
                await backend.complete(request(prompt="hello"))
            await backend.close()

    asyncio.run(ask())


@pytest.mark.parametrize("kind", ["sglang", "compatible", "openai"])
def test_a_prompt_streams(kind: str) -> None:
    async def ask() -> list[str | Completion]:
        async with FaultyServer() as server:
            backend = connect(f"{kind}:{server.url}", "tiny")
            items = [item async for item in backend.stream(request(prompt="hello"))]
            await backend.close()
        return items

    assert asyncio.run(ask()) == ["to", " hello", Completion("to hello", 5, 7, "stop")]


def test_an_abort_in_sglang_hits_no_other_call() -> None:
    backend = SGLang("http://127.0.0.1:1")
    ids = [backend.body_of(request())["rid"] for _ in range(12)]
    assert not any(one.startswith(other) for one, other in permutations(ids, 2))


@pytest.mark.parametrize("stream", [False, True])
def test_sglang_gets_an_abort_when_a_call_is_cancelled(stream: bool) -> None:
    async def ask() -> None:
        async with FaultyServer(lambda number: "hang") as server:
            backend = SGLang(server.url)
            client = Client(backend, timeout_s=1.0, retries=0)
            pieces = client.stream(request())
            waiting = anext(pieces) if stream else client.call(request())
            with pytest.raises(LLMError, match="no answer within"):
                await waiting
            await client.close()
            assert server.aborted == [body["rid"] for _, body in server.requests]

    asyncio.run(ask())


def test_an_unanswered_abort_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metropolis.llm.backends.sglang.ABORT_S", 0.05)

    async def ask() -> None:
        engine = StubEngine()
        engine.open.clear()
        engine.listens.clear()
        backend = SGLang(await engine.start())
        question = request(messages=({"role": "user", "content": "why"},))
        call = asyncio.create_task(backend.complete(question))
        await until(lambda: engine.raw)
        call.cancel()
        await until(lambda: engine.aborted)
        async with asyncio.timeout(5):
            await backend.close()
        await engine.kill()

    asyncio.run(ask())


@pytest.mark.parametrize("kind", ["sglang", "compatible", "openai"])
def test_the_model_is_checked(kind: str) -> None:
    async def check() -> None:
        async with FaultyServer(models=("tiny",)) as server:
            known, unknown, any_model = (
                connect(f"{kind}:{server.url}", model) for model in ("tiny", "huge", None)
            )
            await known.check()
            with pytest.raises(RefusedError, match="has no model 'huge'; it serves tiny"):
                await unknown.check()
            await any_model.check()
            assert known.name == any_model.name == "tiny"
            for backend in (known, unknown, any_model):
                await backend.close()

    asyncio.run(check())


def test_one_of_several_models_has_to_be_chosen() -> None:
    async def check() -> None:
        async with FaultyServer(models=tuple(f"m{n}" for n in range(10))) as server:
            backend = connect(f"compatible:{server.url}")
            with pytest.raises(RefusedError, match=r"serves m0.* and 2 more; choose one"):
                await backend.check()
            await backend.close()

    asyncio.run(check())


@pytest.mark.parametrize(("owned_by", "expected"), [("sglang", SGLang), ("vllm", Compatible)])
def test_a_bare_address_is_probed(owned_by: str, expected: type[Backend]) -> None:
    async def probe() -> None:
        async with FaultyServer(owned_by=owned_by) as server:
            for url in (server.url, f"{server.url}/v1"):
                backend = await asyncio.to_thread(connect, url, "tiny")
                assert isinstance(backend, expected)
                assert (await backend.complete(request(messages=CHAT))).text == "to hello"
                await backend.close()

    asyncio.run(probe())


def test_specs_name_backends(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.close()
    assert isinstance(connect("scripted"), Scripted)
    assert isinstance(connect(f"replay:{tmp_path / 'journal'}"), Replay)
    assert isinstance(connect("sglang+http://127.0.0.1:1"), SGLang)
    assert isinstance(connect("openai:http://127.0.0.1:1"), OpenAIClient)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("llama", "'llama' names no LLM; write scripted, replay:PATH"),
        ("scripted:x", "names no LLM"),
        ("replay:", "names no LLM"),
        ("sglang:127.0.0.1:30000", "is not the address of a server"),
        ("openai:", "is not the address of a server"),
        ("http://", "is not the address of a server; write it like http://127.0.0.1:30000"),
        ("http://::1:9", r"is not the address of a server; write it like http://\[::1\]:30000"),
    ],
)
def test_other_specs_are_refused(spec: str, sentence: str) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        connect(spec)


def test_a_dead_bare_address_is_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(UnavailableError, match=f"{url} cannot be reached .*refused; is"):
        connect(url)


def test_a_missing_openai_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MetropolisError, match=r"pip install 'metropolis\[openai\]'"):
        connect("openai:http://127.0.0.1:1")


def test_a_server_that_speaks_no_http_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with server.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-OpenSSH\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        port = server.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port} .*: not HTTP: "):
            connect(f"http://127.0.0.1:{port}")
        thread.join()
    with pytest.raises(MetropolisError, match="'http://a b' is not the address of a server"):
        connect("http://a b")
