"""`metropolis gateway`: one OpenAI-compatible server in front of many engines."""

from __future__ import annotations

import asyncio
import gc
import signal
from dataclasses import replace

import click

from metropolis.cli.ctrl_c import signalled
from metropolis.cli.gateway_front import Front, Size, allow_connections, front_options, log
from metropolis.cli.host import host_option
from metropolis.command_options import Number
from metropolis.dispatch.base import Fleet
from metropolis.gateway.engine_client import CAPACITY_TOKENS, LIMITS, TOKENS_PER_S, EngineClient
from metropolis.gateway.keys import engine_key
from metropolis.policy.named import DISPATCHERS, POLICIES, REUSES, named, names_of
from metropolis.types import MetropolisError

ALLOCATIONS = 10_000
"""Allocations between garbage collections; one request holds some dozens for a while."""


@click.command(name="gateway")
@click.option(
    "--engine", "engines", multiple=True, required=True, metavar="URL",
    help="URL of an engine, like http://127.0.0.1:30000. SGLang (which needs "
    "--enable-priority-scheduling) and vLLM (which needs --scheduling-policy priority) are "
    "recognised and get priorities, as is `metropolis serve torch`; sglang:URL, vllm:URL and "
    "metropolis:URL name the kind. Repeat the option for more engines; they may serve different "
    "models.",
)  # fmt: skip
@click.option(
    "--policy", default="kairos", show_default=True, metavar="NAME",
    help=f"Policy that orders waiting requests: {', '.join(names_of(POLICIES))}, or "
    "FILE.py:CLASS.",
)  # fmt: skip
@click.option(
    "--dispatcher", default="prefix", show_default=True, metavar="NAME",
    help=f"Dispatcher that places requests on engines: {', '.join(names_of(DISPATCHERS))}, or "
    "FILE.py:CLASS.",
)  # fmt: skip
@click.option(
    "--reuse", metavar="NAME",
    help="Which caches prefills start from, for engines of `metropolis serve torch`: "
    f"{', '.join(names_of(REUSES))}, like droidspeak:plans=FILE, or FILE.py:CLASS. [default: "
    "their own]",
)  # fmt: skip
@host_option
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True,
    help="Port to listen on; 0 chooses a free one.",
)  # fmt: skip
@click.option(
    "--at-once", type=click.IntRange(1), default=256, show_default=True,
    help="Maximum concurrent requests per engine; further ones wait in the gateway.",
)  # fmt: skip
@click.option(
    "--queue-limit", type=click.IntRange(1), default=10_000, show_default=True,
    help="Maximum waiting requests; further ones are answered with 429. Speculative ones do not "
    "count for others.",
)  # fmt: skip
@click.option(
    "--idle-s", type=Number(0, min_open=True), default=60.0, show_default=True,
    help="Seconds without an open request after which a program has ended.",
)  # fmt: skip
@click.option(
    "--capacity-tokens", type=click.IntRange(1),
    help="KV cache of each engine in tokens, for dispatchers that pack. [default: as the engine "
    f"reports, or {CAPACITY_TOKENS}]",
)  # fmt: skip
@click.option(
    "--tokens-per-s", type=Number(0, min_open=True),
    default=TOKENS_PER_S, show_default=True,
    help="Decoding speed of one request in a full batch, for dispatchers that pack.",
)  # fmt: skip
@click.option(
    "--answer-limit", type=Size(), default="256MiB", show_default=True, metavar="SIZE",
    help="Maximum size of an engine's answer; streams are exempt.",
)  # fmt: skip
@click.option(
    "--answer-s", type=Number(0, min_open=True),
    default=LIMITS.time_s, show_default=True,
    help="Maximum seconds an engine may take for an answer, streams included.",
)  # fmt: skip
@front_options
def command(
    engines: tuple[str, ...],
    policy: str,
    dispatcher: str,
    reuse: str | None,
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
    """Serve OpenAI's routes in front of the engines until SIGTERM or Ctrl-C.

    Completely received requests are still answered; a second signal exits at once.
    Names may carry options, and policies may be chained: step:bucket=4, step+kairos.
    Metrics are at /metrics, the state of the engines at /health.
    """
    try:
        from metropolis.gateway.proxy import Gateway
        from metropolis.gateway.scheduler_driver import SchedulerDriver
        from metropolis.gateway.server import Server
    except ImportError as missing:
        raise MetropolisError(
            f"the gateway needs {missing.name}: pip install 'metropolis[gateway]'"
        ) from None
    fleet = Fleet.uniform(len(engines), capacity_tokens or CAPACITY_TOKENS, tokens_per_s)
    scheduling = SchedulerDriver(
        named(POLICIES, policy)(), named(DISPATCHERS, dispatcher)(fleet), at_once, queue_limit
    )
    chosen = named(REUSES, reuse)() if reuse else None
    answers = replace(LIMITS, body_bytes=answer_limit, time_s=answer_s)
    behind = [EngineClient(spec, engine_key(n), answers) for n, spec in enumerate(engines, start=1)]
    allow_connections(front.limits, at_once * len(engines))

    async def serve() -> None:
        learns = capacity_tokens is None
        gateway = Gateway(behind, scheduling, idle_s, log, learns_capacity=learns, reuse=chosen)
        server = Server(gateway, front.limits, front.access, log)
        url = await server.start(host, port, front.tls)
        if front.access.keys is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, front.access.keys.reload)
        _leave_imports_alone()
        click.echo(
            f"metropolis gateway at {url}, {sum(scheduling.is_up)} of {len(engines)} engines up, "
            f"assumed KV cache: {token_range(scheduling.capacity_tokens)} tokens each"
        )
        await signalled()
        click.echo(
            f"shutting down; unanswered requests: {server.unanswered}; "
            "a second signal exits at once",
            err=True,
        )
        drained = asyncio.ensure_future(server.drain())
        again = asyncio.ensure_future(signalled())
        await asyncio.wait((drained, again), return_when=asyncio.FIRST_COMPLETED)
        if not drained.done():
            drained.cancel()
            await server.close()
            raise click.Abort
        await drained

    asyncio.run(serve())


def token_range(counts: list[int]) -> str:
    """Return `2,400`, or `2,400 to 9,600`."""
    return " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))


def _leave_imports_alone() -> None:
    """Exempt imported modules from garbage collection: scanning them stalls requests for 80 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS)
