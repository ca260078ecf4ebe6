"""`metropolis gateway`: one OpenAI-compatible server before many engines."""

from __future__ import annotations

import asyncio
import gc
import signal
from dataclasses import replace

import click

from metropolis.cli.gateway_front import Front, Size, allow_connections, front_options, tell
from metropolis.dispatch.base import Fleet
from metropolis.gateway.engine_client import CAPACITY_TOKENS, LIMITS, TOKENS_PER_S, EngineClient
from metropolis.gateway.keys import engine_key
from metropolis.policy.named import DISPATCHERS, POLICIES, named, names_of
from metropolis.types import MetropolisError

ALLOCATIONS = 10_000
"""Between collections of garbage; a request makes some dozens that stay for a while."""


@click.command(name="gateway")
@click.option(
    "--engine", "engines", multiple=True, required=True, metavar="URL",
    help="A server of models, like http://127.0.0.1:30000. SGLang (which needs "
    "--enable-priority-scheduling) and vLLM (which needs --scheduling-policy priority) are "
    "recognised and get priorities; sglang:URL and vllm:URL name the kind. Repeat the option for "
    "more engines, which must serve the same model.",
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
    "--capacity-tokens", type=click.IntRange(1),
    help="KV cache of one engine, for dispatchers that pack. [default: what the engines "
    f"report, or {CAPACITY_TOKENS}]",
)  # fmt: skip
@click.option(
    "--tokens-per-s", type=click.FloatRange(0, min_open=True),
    default=TOKENS_PER_S, show_default=True,
    help="How fast one answer grows in a full batch, for dispatchers that pack.",
)  # fmt: skip
@click.option(
    "--answer-limit", type=Size(), default="256MiB", show_default=True, metavar="SIZE",
    help="The largest answer of an engine, streams excepted.",
)  # fmt: skip
@click.option(
    "--answer-s", type=click.FloatRange(0, min_open=True),
    default=LIMITS.time_s, show_default=True,
    help="The longest that an engine may take for an answer, a stream included.",
)  # fmt: skip
@front_options
def command(
    engines: tuple[str, ...],
    policy: str,
    dispatcher: str,
    host: str,
    port: int,
    at_once: int,
    queue_limit: int,
    idle_s: float,
    capacity_tokens: int | None,
    tokens_per_s: float,
    answer_limit: int,
    answer_s: float,
    front: Front,
) -> None:
    """Serve OpenAI's routes before the engines until SIGTERM or Ctrl-C.

    What has come by then is answered; a second signal waits no longer.
    Names may carry options, and policies stand in a row: step:bucket=4, step+kairos.
    Metrics are at /metrics, and which engines answer at /health.
    """
    try:
        from metropolis.gateway.admission import Admission
        from metropolis.gateway.proxy import Gateway
        from metropolis.gateway.server import Server
    except ImportError as missing:
        raise MetropolisError(
            f"the gateway needs {missing.name}: pip install 'metropolis[gateway]'"
        ) from None
    fleet = Fleet(len(engines), capacity_tokens or CAPACITY_TOKENS, tokens_per_s)
    admission = Admission(
        named(POLICIES, policy)(), named(DISPATCHERS, dispatcher)(fleet), at_once, queue_limit
    )
    answers = replace(LIMITS, body_bytes=answer_limit, time_s=answer_s)
    behind = [EngineClient(spec, engine_key(n), answers) for n, spec in enumerate(engines, start=1)]
    allow_connections(front.limits, at_once * len(engines))

    async def serve() -> None:
        learns = capacity_tokens is None
        gateway = Gateway(behind, admission, idle_s, tell, learns_capacity=learns)
        server = Server(gateway, front.limits, front.access, tell)
        url = await server.start(host, port, front.tls)
        if front.access.keys is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, front.access.keys.reload)
        _leave_imports_alone()
        click.echo(
            f"metropolis gateway at {url}, {sum(admission.is_up)} of {len(engines)} engines up, "
            f"assumed KV cache: {admission.capacity_tokens:,} tokens each"
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


def _leave_imports_alone() -> None:
    """Collections that look through all modules held up whatever was in flight for 80 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS)
