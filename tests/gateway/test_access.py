"""Access control: keys, hosts, web pages."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from metropolis.gateway.access import Access, is_loopback
from metropolis.gateway.keys import Keys, engine_key
from metropolis.types import MetropolisError
from tests.gateway.certificate import CERTIFICATE
from tests.gateway.engines import StubEngine, answer_to, chat, gateway_before, until
from tests.gateway.raw_clients import connected
from tests.gateway.test_command import running
from tests.gateway.test_server import PATHS, post

ALICE, BOB = "alice-0123456789abcdef", "bob-0123456789abcdef"


def keys_in(folder: Path, text: str, told: list[str] | None = None) -> Keys:
    file = folder / "keys"
    file.write_text(text)
    file.chmod(0o600)
    return Keys(file, (told if told is not None else []).append)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return keys_in(tmp_path, f"# people\n\nalice {ALICE}\n  bob\t{BOB}  \n")


@pytest.mark.parametrize(
    "header", [("Authorization", f"Bearer {ALICE}"), ("x-api-key", ALICE), ("Api-Key", ALICE)]
)
def test_a_key_lets_in_and_stays_in_the_gateway(keys: Keys, header: tuple[str, str]) -> None:
    async def ask() -> None:
        engine = StubEngine()
        async with gateway_before(engine, access=Access(keys=keys)) as (url, gateway):
            headers = {header[0]: header[1], "Cookie": "a=b", "X-Own": "7"}
            headers |= {"X-Metropolis-Program": "Ada", "x-metropolis-function": "plan"}
            assert (await post(url, chat("why"), headers=headers))[:2] == (200, answer_to("why"))
            assert ALICE not in str(engine.headers)
            assert "Cookie" not in engine.headers[0]
            assert engine.headers[0]["X-Own"] == "7"
            assert not [name for name in engine.headers[0] if "metropolis" in name.lower()]
            assert gateway.metrics.tenants == {("alice", 200): 1}
            labels = 'metropolis_tenant_requests_total{status="200",tenant="alice"} 1.0'
            assert labels in gateway.metrics.text({}, {}, 0, 0)

    asyncio.run(ask())


def test_programs_of_tenants_are_apart(keys: Keys) -> None:
    async def ask() -> None:
        engine = StubEngine()
        engine.open.clear()
        async with gateway_before(engine, access=Access(keys=keys)) as (url, gateway):
            said = [("user", "hi"), ("assistant", "hello"), ("user", "why")]
            talk = {"messages": [{"role": role, "content": text} for role, text in said]}
            named = chat("why", user="me")
            asked = [
                asyncio.create_task(post(url, body, headers={"Authorization": f"Bearer {key}"}))
                for body in (talk, named)
                for key in (ALICE, BOB)
            ]
            await until(lambda: len(engine.raw) == 4)
            assert len(gateway.programs) == 4
            again = {"Authorization": f"Bearer {ALICE}", "X-Metropolis-Program": "me"}
            asked.append(asyncio.create_task(post(url, chat("why"), headers=again)))
            await until(lambda: len(engine.raw) == 5)
            assert len(gateway.programs) == 4
            guess = again | {"X-Metropolis-Speculative": "true"}
            asked.append(asyncio.create_task(post(url, chat("why"), headers=guess)))
            await until(lambda: len(engine.raw) == 6)
            for key, promoted in ((BOB, 0), (ALICE, 1)):
                of = {"Authorization": f"Bearer {key}"}
                _, answer, _ = await post(url, {"program": "me"}, headers=of, path="/v1/promote")
                assert json.loads(answer) == {"promoted": promoted}
            engine.open.set()
            await asyncio.gather(*asked)

    asyncio.run(ask())


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": f"Basic {ALICE}"},
        {"Authorization": f"Bearer {ALICE}x"},
        {"Authorization": "Bearer "},
        {"x-api-key": ALICE[:-1]},
        {"x-api-key": "é"},
    ],
)
def test_without_a_right_key_nothing_is_told(keys: Keys, headers: dict[str, str]) -> None:
    async def ask() -> None:
        engine = StubEngine()
        async with gateway_before(engine, access=Access(keys=keys)) as (url, gateway):
            for path in (*PATHS, f"{PATHS[0]}?api_key={ALICE}", "/v1/promote", "/nowhere"):
                status, answer, back = await post(url, chat("why"), headers=headers, path=path)
                assert (status, back["WWW-Authenticate"]) == (401, "Bearer")
                error = json.loads(answer)["error"]
                assert error["code"] == "invalid_api_key"
                assert error["type"] == "invalid_request_error"
                assert ALICE not in answer.decode()
            async with aiohttp.ClientSession(headers=headers) as session:
                for path in ("/metrics", "/v1/models"):
                    async with session.get(url + path) as read:
                        assert read.status == 401
                async with session.get(f"{url}/health") as read:
                    assert (read.status, await read.json()) == (200, {"draining": False})
            assert not engine.raw
            assert gateway.metrics.early_rejections["key"] == 7

    asyncio.run(ask())


def test_an_engine_gets_its_own_key(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METROPOLIS_ENGINE_KEY", "engine-key")

    async def ask() -> None:
        engine = StubEngine("sglang")
        engine.open.clear()
        async with gateway_before(engine, access=Access(keys=keys), kind="sglang:") as (url, _):
            headers = {"Authorization": f"Bearer {ALICE}"}
            asked = asyncio.create_task(post(url, chat("why"), headers=headers))
            while not engine.raw:
                await asyncio.sleep(0.01)
            asked.cancel()
            while not engine.aborted:
                await asyncio.sleep(0.01)
            assert engine.headers[0]["Authorization"] == "Bearer engine-key"
            assert engine.keys == ["Bearer engine-key"]

    asyncio.run(ask())


def test_keys_of_engines_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_key(1) is None
    monkeypatch.setenv("METROPOLIS_ENGINE_KEY", "all")
    monkeypatch.setenv("METROPOLIS_ENGINE_KEY_2", "second")
    assert [engine_key(1), engine_key(2)] == ["all", "second"]
    monkeypatch.setenv("METROPOLIS_ENGINE_KEY_2", "two words")
    with pytest.raises(MetropolisError, match=r"^METROPOLIS_ENGINE_KEY_2: write a key") as caught:
        engine_key(2)
    assert "two" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "no keys"),
        ("# only this\n", "no keys"),
        (f"{ALICE}\n", "line 1: 1 words; write a tenant and a key"),
        (f"a {ALICE}\nb {ALICE} c\n", "line 2: 3 words"),
        (f"a {ALICE}\n\nb {ALICE}\n", "line 3: a duplicate key"),
        ("a short\n", "line 1: write a key of at least 16"),
        ("a \xff0123456789abcdef\n", "line 1: write a key of at least 16"),
        (f"{'a' * 65} {ALICE}\n", "line 1: write a tenant of at most 64"),
    ],
)
def test_faults_of_a_key_file_are_told_without_the_key(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(MetropolisError) as caught:
        keys_in(tmp_path, text)
    assert sentence in str(caught.value)
    assert str(tmp_path / "keys") in str(caught.value)
    assert ALICE not in str(caught.value)
    assert "short" not in str(caught.value)


def test_a_key_file_that_others_may_read_is_told_of(tmp_path: Path) -> None:
    told: list[str] = []
    keys = keys_in(tmp_path, f"alice {ALICE}\n", told)
    assert not told
    (tmp_path / "keys").chmod(0o640)
    keys.reload()
    assert told == [
        f"{tmp_path}/keys: other users may read the keys; chmod 600 {tmp_path}/keys",
        f"{tmp_path}/keys: 1 keys",
    ]


class LookedUp(dict[bytes, str]):
    """Keys that are never compared one by one."""

    def items(self) -> Any:
        raise AssertionError

    values = keys = __iter__ = items


def test_a_key_is_looked_up_among_many(keys: Keys) -> None:
    keys._tenants = LookedUp(keys._tenants)
    assert keys.tenant_of(["none", ALICE]) == "alice"
    assert keys.tenant_of(["none"]) is None


def test_a_key_file_is_read_again_and_kept_if_it_has_faults(tmp_path: Path) -> None:
    told: list[str] = []
    keys = keys_in(tmp_path, f"alice {ALICE}\n", told)
    (tmp_path / "keys").write_text("bob\n")
    keys.reload()
    (line,) = told
    assert line.endswith("keys, line 1: 1 words; write a tenant and a key; the former keys remain")
    assert keys.tenant_of([ALICE]) == "alice"
    (tmp_path / "keys").write_text(f"bob {BOB}\n")
    keys.reload()
    assert [keys.tenant_of([key]) for key in (ALICE, BOB)] == [None, "bob"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("10.1.2.3:80", 200),
        ("gate.example", 200),
        ("gate.example.:443", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("127.0.0.1@evil.example", 403),
        ("[::1", 403),
        ("a b", 403),
        ("\xff", 403),
    ],
)
def test_hosts_are_addresses_or_allowed(host: str, status: int) -> None:
    async def ask() -> None:
        engine = StubEngine()
        access = Access(["gate.example"])
        async with gateway_before(engine, access=access) as (url, gateway):
            back = await post(url, chat("why"), headers={"Host": host})
            assert back[0] == status
            assert len(engine.raw) == (status == 200)
            assert gateway.metrics.early_rejections["host"] == (status != 200)

    asyncio.run(ask())


PAGE = {"Origin": "https://chat.example"}


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "text/json"])
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "https://chat.example.evil"])
def test_other_web_pages_are_refused(kind: str, origin: str) -> None:
    async def ask() -> None:
        engine = StubEngine()
        access = Access(origins=["https://chat.example"])
        async with gateway_before(engine, access=access) as (url, _):
            headers = {"Origin": origin, "Content-Type": kind}
            status, answer, back = await post(url, chat("why"), headers=headers)
            assert status == 403
            assert "--allow-origin" in json.loads(answer)["error"]["message"]
            assert "Access-Control-Allow-Origin" not in back
            assert not engine.raw

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("site", "origins", "status"),
    [
        ("cross-site", [], 403),
        ("Same-Site", [], 403),
        ("cross-site", ["https://chat.example"], 403),
        ("cross-site", ["*"], 200),
        ("same-origin", [], 200),
        ("none", [], 200),
    ],
)
def test_pages_that_load_without_reading_are_refused(
    site: str, origins: list[str], status: int
) -> None:
    """Requests for images, scripts and the like have no origin."""

    async def ask() -> None:
        async with (
            gateway_before(StubEngine(), access=Access(origins=origins)) as (url, _),
            aiohttp.ClientSession(headers={"Sec-Fetch-Site": site}) as session,
            session.get(f"{url}/health") as answer,
        ):
            assert answer.status == status

    asyncio.run(ask())


@pytest.mark.parametrize(("allowed", "said"), [("https://chat.example/", None), ("*", "*")])
def test_allowed_web_pages_may_ask_and_read(allowed: str, said: str | None) -> None:
    async def ask() -> None:
        access = Access(origins=[allowed])
        async with (
            gateway_before(StubEngine(), access=access) as (url, _),
            aiohttp.ClientSession(headers=PAGE) as session,
        ):
            wanted = {
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization,content-type",
            }
            async with session.options(url + PATHS[0], headers=wanted) as answer:
                assert answer.status == 204
                back = answer.headers
                assert back["Access-Control-Allow-Origin"] == (said or PAGE["Origin"])
                assert back["Access-Control-Allow-Headers"] == "authorization,content-type"
                assert "POST" in back["Access-Control-Allow-Methods"]
            for stream in (False, True):
                body = chat("why", stream=stream)
                async with session.post(url + PATHS[0], json=body) as answer:
                    assert answer.status == 200
                    origins = answer.headers.getall("Access-Control-Allow-Origin")
                    assert origins == [said or PAGE["Origin"]]
                    assert answer.headers["Vary"] == "Origin"

    asyncio.run(ask())


def test_whole_urls_and_several_hosts_are_refused() -> None:
    async def ask() -> None:
        async with gateway_before(StubEngine()) as (url, _):
            for line, hosts in (
                ("GET http://evil.example/health", ["localhost"]),
                ("GET /health", ["localhost", "evil.example"]),
            ):
                head = [f"{line} HTTP/1.1", *(f"Host: {host}" for host in hosts), "", ""]
                async with connected(url, "\r\n".join(head).encode()) as (reader, _):
                    assert b" 400 " in await reader.readline()

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("", False)],
)  # fmt: skip
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_the_command_takes_keys_a_certificate_and_sighup(tmp_path: Path) -> None:
    certificate = tmp_path / "gate.pem"
    certificate.write_text(CERTIFICATE)
    keys_in(tmp_path, f"alice {ALICE}\n")
    trusted = ssl.create_default_context(cafile=str(certificate))

    async def ask() -> None:
        engine = StubEngine()
        options = ("--engine", await engine.start(), "--host", "0.0.0.0", "--certificate",
                   str(certificate), "--api-key-file", str(tmp_path / "keys"))  # fmt: skip
        async with running(*options, scheme="https") as (url, process):
            url = url.replace("0.0.0.0", "localhost")

            async def status_with(key: str) -> int:
                secret: Any = {"headers": {"Authorization": f"Bearer {key}"}, "ssl": trusted}
                return (await post(url, chat("why"), **secret))[0]

            assert [await status_with(ALICE), await status_with(BOB)] == [200, 401]
            (tmp_path / "keys").write_text(f"bob {BOB}\n")
            process.send_signal(signal.SIGHUP)
            assert process.stderr is not None
            while b"keys: 1 keys" not in await process.stderr.readline():
                pass
            assert [await status_with(ALICE), await status_with(BOB)] == [401, 200]
            process.send_signal(signal.SIGTERM)
            output, errors = await process.communicate()
            assert process.returncode == 0
            for key in (ALICE, BOB):
                assert key.encode() not in output + errors
        await engine.kill()

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"hosts": [""]}, "the host '' is no name"),
        ({"hosts": ["a b"]}, "the host 'a b' is no name"),
        ({"origins": ["chat.example"]}, "should be like https://chat.example"),
        ({"origins": ["https://chat.example/page"]}, "should be like"),
    ],
)
def test_what_no_request_can_have_is_refused(given: dict[str, list[str]], sentence: str) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        Access(**given)  # type: ignore[arg-type]
