"""The running phase with engines that are busy, fail, hang or die of a request."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from metropolis.plan.running import engine as engine_module
from metropolis.plan.running import model_copy as model_copy_module
from metropolis.plan.running import runner as runner_module
from metropolis.plan.running.folder import read_run
from metropolis.plan.running.model_copy import EngineOptions
from metropolis.plan.running.runner import Runner
from metropolis.types import MetropolisError
from tests.plan.small_runs import run_small, stub

SERVER = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def answer_well(self):
        choice = {'message': {'content': 'x'}, 'finish_reason': 'stop'}
        self.answer(200, {'choices': [choice]})
    def do_GET(self):
        self.answer(200, {'data': [{'id': name} for name in sys.argv[3].split(',')]})
    def do_POST(self):
        self.rfile.read(int(self.headers['Content-Length']))
        self.answer(int(sys.argv[2]), {'error': {'message': 'no memory'}})
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "NOTICE_S", 0.01)
    monkeypatch.setattr(runner_module, "PAUSE_MAX_S", 0.01)


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(
    ("status", "models", "sentence"),
    [
        (400, "any", "answered request .* of the node '.*' with HTTP 400: no memory"),
        (500, "any", "answered request .* of the node '.*' with HTTP 500: no memory"),
        (200, "one,two", "an engine of .* serves one, two; name one of them"),
    ],
)
def test_a_request_that_fails_again_and_again_is_one_sentence(
    tmp_path: Path, status: int, models: str, sentence: str
) -> None:
    """A request that the engine refuses is sent once."""
    (tmp_path / "server.py").write_text(SERVER)
    command = f"{sys.executable} {tmp_path}/server.py {{port}} {status} {models}"
    with pytest.raises(MetropolisError, match=sentence):
        run_small(tmp_path, command, options=EngineOptions(at_once=1))
    again = sum(node.sent_again for node in read_run(tmp_path / "out").nodes.values())
    assert again <= 4 * (runner_module.REFUSALS_MAX if status == 500 else 1)  # of four copies


def server(folder: Path, code: str, *, starts: bool = True) -> None:
    """Write FOLDER/server.py: the handler, `code`, and the start."""
    handler, *start = SERVER.rpartition("http.server.ThreadingHTTPServer")
    (folder / "server.py").write_text(handler + code + "".join(start) * starts)


SLOW_END = """
import os, pathlib, socket, time
def answer(self):
    died = pathlib.Path(sys.argv[2])
    if died.exists():
        self.answer_well()
        return
    died.touch()
    server.shutdown()
    server.server_close()
    self.connection.shutdown(socket.SHUT_RDWR)
    time.sleep(0.3)
    os._exit(3)
Handler.do_POST = lambda self: (self.rfile.read(int(self.headers['Content-Length'])), answer(self))
server = http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler)
server.daemon_threads, server.block_on_close = True, False
server.serve_forever()
time.sleep(9)
"""


@pytest.mark.usefixtures("short_pauses")
def test_an_engine_may_end_slowly(tmp_path: Path) -> None:
    """Until its process has ended it refuses connections: no failure of its requests."""
    server(tmp_path, SLOW_END, starts=False)
    command = f"{sys.executable} {tmp_path}/server.py {{port}} {tmp_path}/died any"
    record, _ = run_small(tmp_path, command, options=EngineOptions(at_once=1))
    assert record.is_complete
    assert (tmp_path / "died").exists()


BUSY = """
import collections
asked = collections.Counter()
def answer(self):
    body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
    asked[body['seed']] += 1
    if asked[body['seed']] <= 5:
        self.send_response(int(sys.argv[2]))
        self.send_header('Content-Length', '0')
        self.send_header('Retry-After', '0')
        self.end_headers()
        return
    self.answer_well()
Handler.do_POST = answer
"""


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_engine_is_asked_again_later(tmp_path: Path, status: int) -> None:
    """A request that a busy engine refuses is sent more often than one with bad answers."""
    server(tmp_path, BUSY)
    command = f"{sys.executable} {tmp_path}/server.py {{port}} {status} any"
    record, _ = run_small(tmp_path, command)
    assert record.is_complete
    assert all(node.sent_again >= 5 * node.requests for node in record.nodes.values())


@pytest.mark.usefixtures("short_pauses")
def test_a_bad_answer_of_a_busy_engine_is_the_first(tmp_path: Path) -> None:
    """Refusals of a busy engine before the bad answer do not count as bad answers."""
    bad = "self.answer(200, {'choices': []}) if asked[body['seed']] == 6 else self.answer_well()"
    server(tmp_path, BUSY.replace("self.answer_well()", bad))
    record, _ = run_small(tmp_path, f"{sys.executable} {tmp_path}/server.py {{port}} 503 any")
    assert record.is_complete


def test_a_request_that_kills_its_engines_is_named(tmp_path: Path) -> None:
    """The engine answers other requests each time before it ends; the request is named anyway."""
    deadly = """
def answer(self):
    body = self.rfile.read(int(self.headers['Content-Length']))
    if b'question 7' in body:
        import os
        os._exit(9)
    self.answer_well()
Handler.do_POST = answer
"""
    server(tmp_path, deadly)
    commands = dict.fromkeys(("chatglm3-6b", "alpaca-13b"), stub(tmp_path))
    commands["vicuna-13b"] = f"{sys.executable} {tmp_path}/server.py {{port}} 0 any"
    sentence = (
        r"(one|two), copy .* lost 3 times, each time with these of its requests in flight: 7; the "
        "last one ended with exit code 9; log: "
    )
    with pytest.raises(MetropolisError, match=sentence):
        run_small(tmp_path, commands, options=EngineOptions(at_once=1))
    assert read_run(tmp_path / "out").nodes["one"].answered >= 7


def test_an_engine_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "PROBE_S", 0.05)
    monkeypatch.setattr(engine_module, "RESPONSE_S", 0.5)
    monkeypatch.setattr(engine_module, "STOP_S", 0.1)
    for module in (engine_module, model_copy_module):
        monkeypatch.setattr(module, "HANG_S", 2.0)

    async def stop(runner: Runner) -> None:
        while runner.communicator.open_requests("two") > 8:
            await asyncio.sleep(0.01)
        copy = runner.running["two"].copies[0]
        assert copy.engine is not None
        os.killpg(copy.engine.pid, signal.SIGSTOP)

    options = EngineOptions(at_once=3)
    record, logged = run_small(tmp_path, stub(tmp_path, 50), options=options, meanwhile=stop)
    assert record.is_complete
    assert record.nodes["two"].sent_again == 3
    hung = [line for line in logged if "respond" in line]
    assert len(hung) == 1
    assert "two, copy 1 on GPU 0, 1: its engine did not respond for 2 s; it is started" in hung[0]
