"""`metropolis bench gateway-attack`: honest clients beside slow senders and bad requests.

Clients, attackers, gateway and stub engine are processes of this machine: the attackers also take
CPU time from the others. The rate of the flood is bounded. The same requests are sent undisturbed
and under attack, in turn; ratios are computed for each pair of runs.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import count
from urllib.parse import urlsplit

import click
import numpy as np

from metropolis.bench import METROPOLIS, python_command, server
from metropolis.bench.gateway import cpu_s_of, request_of
from metropolis.bench.stub_server import MODEL, latency_s, stub_server
from metropolis.command_options import Number
from metropolis.llm.backends.compatible import Compatible
from metropolis.progress import progress_bar

SEED = 1
TARGET = 2.0
"""Target for every ratio."""
CLIENTS = 100
QUESTIONS_EACH = 20
MEAN_S = 0.5
SLOW_SENDERS = 1000
BYTE_S = 1.0
"""Time in which a slow sender sends one byte."""
FLOOD_PER_S = 200.0
LARGE_EVERY = 500
"""One in this many bad requests has a body of 16 MiB."""
STOP_S = 60.0
"""Time limit of the end of the attacking process."""
POST = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
SLOW = (POST + "X-Slow: ", POST + "Content-Length: 1000000\r\n\r\n")
"""Starts of slow requests: an endless head, or an endless body."""


def _post(body: str) -> bytes:
    return f"{POST}Content-Length: {len(body)}\r\n\r\n{body}".encode()


BAD = (
    b"GET /health HTTP/1.1\r\nAuthorization Bearer key\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET /v1/files HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    f"{POST}Content-Length: 1000000000\r\n\r\n{{".encode(),
    f"{POST}Transfer-Encoding: chunked\r\n\r\nnonsense\r\n".encode(),
    _post("{" * 10_000),
    _post('{"messages": [' + "[]," * 100_000 + "[]]}"),
    _post('{"messages": [{"role": "user"'),
)
LARGE = _post('{"messages": [' + "[]," * ((16 << 20) // 3 - 10) + "[]]}")


@dataclass(frozen=True)
class Run:
    """Latency and throughput of the honest clients."""

    p50_ms: float
    p99_ms: float
    added_p50_ms: float
    """Median latency without the stub's."""
    per_s: float


@dataclass(frozen=True)
class Measured:
    """Medians over pairs of runs; ratios are computed per pair."""

    undisturbed: Run
    attacked: Run
    p50_ratio: float
    p99_ratio: float
    throughput_ratio: float
    """Undisturbed throughput divided by the throughput under attack."""
    flood_per_s: float
    """Bad requests per second that were answered or refused."""
    gateway_cpu: float
    """CPU cores that the gateway used under attack."""


async def run_honest_clients(gateway: str, clients: int, questions_each: int) -> Run:
    """Send the requests of all honest clients to the gateway."""
    backend = Compatible(gateway, MODEL)
    pairs: list[tuple[float, float]] = []

    async def send_all(client: int) -> None:
        await asyncio.sleep(client / clients * MEAN_S)
        for number in range(questions_each):
            request = request_of(client, number)
            began = time.perf_counter()
            await backend.complete(request)
            assert request.messages is not None
            drawn_s = latency_s(SEED, str(request.messages[-1]["content"]), MEAN_S)
            pairs.append((time.perf_counter() - began, drawn_s))

    began = time.perf_counter()
    await asyncio.gather(*map(send_all, range(clients)))
    whole_s = time.perf_counter() - began
    await backend.close()
    latencies_s, drawn_s = np.array(pairs).T
    return Run(
        1000 * float(np.median(latencies_s)),
        1000 * float(np.percentile(latencies_s, 99)),
        1000 * float(np.median(latencies_s - drawn_s)),
        len(pairs) / whole_s,
    )


async def attack(gateway: str, slow_senders: int, flood_per_s: float) -> None:
    """Attack until SIGTERM. Prints a line when all slow senders are connected, and at the end the
    rate of bad requests."""
    host, port = urlsplit(gateway).hostname, urlsplit(gateway).port
    stopped, connected = asyncio.Event(), asyncio.Semaphore(0)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)

    async def send_slowly(start: str) -> None:
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection(host, port)
                connected.release()
                writer.write(start.encode())
                while not writer.transport.is_closing():
                    await asyncio.sleep(BYTE_S)
                    writer.write(b"a")
                    await writer.drain()
            await asyncio.sleep(BYTE_S)

    flooded = count()

    async def send(bad: bytes) -> None:
        with suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(bad)
            async with asyncio.timeout(10):
                await reader.read(1)
            writer.transport.abort()
            next(flooded)

    async def flood() -> None:
        began, sent = time.perf_counter(), set()
        for number in count():
            await asyncio.sleep(began + number / flood_per_s - time.perf_counter())
            bad = LARGE if number % LARGE_EVERY == LARGE_EVERY - 1 else BAD[number % len(BAD)]
            sending = asyncio.ensure_future(send(bad))
            sent.add(sending)
            sending.add_done_callback(sent.discard)

    attacks = [asyncio.ensure_future(send_slowly(SLOW[n % 2])) for n in range(slow_senders)]
    for _ in range(slow_senders):
        await connected.acquire()
    print("ready", flush=True)  # noqa: T201 -- read by the benchmark
    began = time.perf_counter()
    attacks.append(asyncio.ensure_future(flood()))
    await stopped.wait()
    print(next(flooded) / (time.perf_counter() - began), flush=True)  # noqa: T201
    for each in attacks:
        each.cancel()


@contextmanager
def attackers(gateway: str, slow_senders: int, flood_per_s: float) -> Iterator[Callable[[], float]]:
    """Run an attacking process; the yielded function stops it and returns its bad requests/s."""
    code = (
        "import asyncio; from metropolis.bench.gateway_attack import attack; "
        f"asyncio.run(attack({gateway!r}, {slow_senders}, {flood_per_s}))"
    )
    process = subprocess.Popen(python_command(code), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None

    def stop() -> float:
        process.terminate()
        return float(process.communicate(timeout=STOP_S)[0])

    try:
        process.stdout.readline()
        yield stop
    finally:
        process.kill()
        process.wait()


def measure(
    repetitions: int,
    progress: Callable[[int], None],
    clients: int = CLIENTS,
    questions_each: int = QUESTIONS_EACH,
    slow_senders: int = SLOW_SENDERS,
    flood_per_s: float = FLOOD_PER_S,
) -> Measured:
    """Measure pairs of runs, undisturbed and attacked; call `progress` after each run."""
    pairs: list[tuple[Run, Run]] = []
    rates, cores = [], []
    with (
        stub_server(MEAN_S, SEED) as engine,
        server([*METROPOLIS, "gateway", "--engine", engine, "--port", "0"]) as gateway,
    ):
        for _ in range(repetitions):
            undisturbed = asyncio.run(run_honest_clients(gateway, clients, questions_each))
            progress(1)
            with attackers(gateway, slow_senders, flood_per_s) as stop:
                cpu_s, began = cpu_s_of(gateway), time.perf_counter()
                attacked = asyncio.run(run_honest_clients(gateway, clients, questions_each))
                cores.append((cpu_s_of(gateway) - cpu_s) / (time.perf_counter() - began))
                rates.append(stop())
            pairs.append((undisturbed, attacked))
            progress(1)
    before, after = (
        Run(*np.median([list(asdict(pair[which]).values()) for pair in pairs], axis=0).tolist())
        for which in (0, 1)
    )
    return Measured(
        before,
        after,
        float(np.median([b.p50_ms / a.p50_ms for a, b in pairs])),
        float(np.median([b.p99_ms / a.p99_ms for a, b in pairs])),
        float(np.median([a.per_s / b.per_s for a, b in pairs])),
        float(np.median(rates)),
        float(np.median(cores)),
    )


@click.command("gateway-attack")
@click.option("--repetitions", type=click.IntRange(1, 100), default=5, show_default=True)
@click.option(
    "--flood-per-s", type=Number(1, 10_000), default=FLOOD_PER_S, show_default=True,
    help="Bad requests per second.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print an object.")
def command(repetitions: int, flood_per_s: float, as_json: bool) -> None:
    """Measure the effect of slow senders and bad requests on honest clients; takes some minutes.

    All are processes of this machine and use HTTP on loopback.
    """
    with progress_bar(2 * repetitions, "runs") as (advance, _):
        measured = measure(repetitions, advance, flood_per_s=flood_per_s)
    if as_json:
        click.echo(json.dumps(asdict(measured), indent=2))
        return
    for name, run in (("undisturbed", measured.undisturbed), ("attacked", measured.attacked)):
        click.echo(
            f"{name:>11}: {CLIENTS} clients, p50 {run.p50_ms:,.0f} ms, p99 {run.p99_ms:,.0f} ms, "
            f"added p50 {run.added_p50_ms:.1f} ms, {run.per_s:.0f} answers/s"
        )
    click.echo(
        f"{SLOW_SENDERS:,} slow senders and {measured.flood_per_s:.0f} bad requests/s: "
        f"p50 {measured.p50_ratio:.2f}x, p99 {measured.p99_ratio:.2f}x, "
        f"throughput {measured.throughput_ratio:.2f}x less (target {TARGET:g}); "
        f"the gateway used {measured.gateway_cpu:.2f} cores"
    )
