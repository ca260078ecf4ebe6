"""`metropolis gateway`: one OpenAI-compatible server before many engines."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal

import click

from metropolis.dispatch.base import Fleet
from metropolis.gateway.engine import CAPACITY_TOKENS, TOKENS_PER_S, Engine
from metropolis.policy.named import DISPATCHERS, POLICIES, named, names_of
from metropolis.types import MetropolisError

ALLOCATIONS = 10_000
"""Between collections of garbage; a request makes some dozens that stay for a while."""


@click.command(name="gateway")
@click.option(
    "--engine", "engines", multiple=True, required=True, metavar="URL",
    help="A server of models, like http://127.0.0.1:30000. Only sglang:URL (which needs "
    "--enable-priority-scheduling --schedule-low-priority-values-first) and vllm:URL (which needs "
    "--scheduling-policy priority) are told priorities. Repeat it for more, which serve the same "
    "model.",
)  # fmt: skip
@click.option(
    "--policy", default="kairos", show_default=True, metavar="NAME",
    help=f"Who of those waiting goes first: {', '.join(names_of(POLICIES))}.",
)  # fmt: skip
@click.option(
    "--dispatcher", default="prefix", show_default=True, metavar="NAME",
    help=f"To which engine: {', '.join(names_of(DISPATCHERS))}.",
)  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True,
    help="The port; 0 takes a free one.",
)  # fmt: skip
@click.option(
    "--at-once", type=click.IntRange(1), default=256, show_default=True,
    help="Requests an engine has at most; the others wait here.",
)  # fmt: skip
@click.option(
    "--queue-limit", type=click.IntRange(1), default=10_000, show_default=True,
    help="Requests that wait at most; more are answered with 429.",
)  # fmt: skip
@click.option(
    "--idle-s", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True,
    help="A program has ended when nothing has come of it for so many seconds.",
)  # fmt: skip
@click.option(
    "--capacity-tokens", type=click.IntRange(1), default=CAPACITY_TOKENS, show_default=True,
    help="KV cache of one engine, for dispatchers that pack.",
)  # fmt: skip
@click.option(
    "--tokens-per-s", type=click.FloatRange(0, min_open=True),
    default=TOKENS_PER_S, show_default=True,
    help="How fast one answer grows in a full batch, for dispatchers that pack.",
)  # fmt: skip
def command(
    engines: tuple[str, ...],
    policy: str,
    dispatcher: str,
    host: str,
    port: int,
    at_once: int,
    queue_limit: int,
    idle_s: float,
    capacity_tokens: int,
    tokens_per_s: float,
) -> None:
    """Serve OpenAI's routes before the engines until SIGTERM or Ctrl-C.

    What has come by then is answered; a second signal waits no longer.
    Names may carry options, and policies stand in a row: step:bucket=4, step+kairos.
    Metrics are at /metrics, and which engines answer at /health.
    """
    try:
        from metropolis.gateway.admission import Admission
        from metropolis.gateway.relay import Gateway
        from metropolis.gateway.server import Server
    except ImportError as missing:
        raise MetropolisError(
            f"the gateway needs {missing.name}: pip install 'metropolis[gateway]'"
        ) from None
    fleet = Fleet(len(engines), capacity_tokens, tokens_per_s)
    admission = Admission(
        named(POLICIES, policy)(), named(DISPATCHERS, dispatcher)(fleet), at_once, queue_limit
    )
    behind = [Engine(spec) for spec in engines]
    _allow_connections()

    async def serve() -> None:
        gateway = Gateway(behind, admission, idle_s, lambda news: click.echo(news, err=True))
        server = Server(gateway)
        url = await server.start(host, port)
        _leave_imports_alone()
        click.echo(
            f"metropolis gateway at {url}, {sum(admission.is_up)} of {len(engines)} engines up"
        )
        await _signalled()
        click.echo(
            f"answering what has come, open: {server.unanswered}; a second signal waits no longer",
            err=True,
        )
        drained = asyncio.ensure_future(server.drain())
        again = asyncio.ensure_future(_signalled())
        await asyncio.wait((drained, again), return_when=asyncio.FIRST_COMPLETED)
        if not drained.done():
            drained.cancel()
            await server.close()
            raise click.Abort
        await drained

    asyncio.run(serve())


async def _signalled() -> None:
    signalled = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    await signalled.wait()


def _allow_connections() -> None:
    """As many open files as this process may have: every request takes two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _leave_imports_alone() -> None:
    """Collections that look through all modules held up whatever was in flight for 80 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS)
