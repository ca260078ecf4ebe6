"""`metropolis serve torch`: variants of one model in one process, which share caches."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

import click

from metropolis.cli.ctrl_c import signalled
from metropolis.cli.gateway_front import Size
from metropolis.cli.host import host_option
from metropolis.durable import reachable
from metropolis.policy.named import REUSES, named, names_of
from metropolis.types import MetropolisError


class NamedModel(click.ParamType[tuple[str, Path]]):
    """NAME=FOLDER, or a folder, whose last part is then the name."""

    name = "model"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Path]:
        """Return the name and the folder of a model."""
        name, equals, folder = str(value).partition("=")
        path = Path(folder if equals else name)
        name = name if equals else path.resolve().name
        if not name or not reachable(path).is_dir():
            self.fail(f"{value!r} is not a folder; write NAME=FOLDER or FOLDER", param, ctx)
        return name, path


@click.command(name="torch")
@click.option(
    "--model", "models", type=NamedModel(), multiple=True, required=True, metavar="NAME=FOLDER",
    help="A model in the format of Hugging Face. Repeat the option for fine-tuned variants, which "
    "must have the same shape and tokens.",
)  # fmt: skip
@click.option(
    "--reuse", default="prefix", show_default=True, metavar="NAME",
    help=f"Which caches prefills start from: {', '.join(names_of(REUSES))}, like "
    "droidspeak:plans=FILE. A gateway's order for a request takes precedence.",
)  # fmt: skip
@host_option
@click.option(
    "--port", type=click.IntRange(0, 65535), default=30000, show_default=True,
    help="Port to listen on; 0 chooses a free one.",
)  # fmt: skip
@click.option(
    "--device", default="cpu", show_default=True, help="Device of torch, like cpu or cuda:0."
)
@click.option(
    "--dtype", type=click.Choice(("auto", "float32", "bfloat16", "float16")), default="auto",
    show_default=True, help="Precision; auto is that of the folder.",
)  # fmt: skip
@click.option(
    "--memory", type=Size(), default="4GiB", show_default=True, metavar="SIZE",
    help="Memory of caches and running sequences, beside the weights.",
)  # fmt: skip
@click.option(
    "--at-once", type=click.IntRange(1), default=16, show_default=True,
    help="Maximum sequences that are decoded at a time.",
)  # fmt: skip
@click.option(
    "--answer-tokens", type=click.IntRange(1), default=1024, show_default=True,
    help="Maximum tokens of an answer if the request gives no maximum.",
)  # fmt: skip
@click.option("--threads", type=click.IntRange(1), help="CPU threads. [default: torch's]")
def command(
    models: tuple[tuple[str, Path], ...],
    reuse: str,
    host: str,
    port: int,
    device: str,
    dtype: str,
    memory: int,
    at_once: int,
    answer_tokens: int,
    threads: int | None,
) -> None:
    """Serve models in one process until SIGTERM or Ctrl-C; they may start from each other's caches.

    Routes: /v1/chat/completions, /v1/completions, /v1/models, /metrics, /health, /abort_request.
    """
    try:
        import torch

        from metropolis.torch_engine.engine import Engine
        from metropolis.torch_engine.metrics import Metrics
        from metropolis.torch_engine.server import Server
        from metropolis.torch_engine.weights import load_model
    except ImportError as missing:
        raise MetropolisError(
            f"serve torch needs {missing.name}: pip install 'metropolis[torch]'"
        ) from None
    if len({name for name, _ in models}) < len(models):
        raise MetropolisError("--model: two models have the same name; name each one differently")
    chosen = named(REUSES, reuse)()
    if threads is not None:
        torch.set_num_threads(threads)
    loaded = [load_model(name, folder, device, dtype) for name, folder in models]
    metrics = Metrics()
    engine = Engine(loaded, chosen, memory, at_once, answer_tokens, metrics.note_prefill)

    async def serve() -> None:
        server = Server(engine, metrics)
        url = await server.start(host, port)
        names = ", ".join(engine.models)
        click.echo(
            f"metropolis serves {names} at {url}; memory for {engine.capacity_tokens:,} tokens"
        )
        sys.stdout.flush()
        ended = asyncio.ensure_future(signalled())
        failed = asyncio.ensure_future(server.failure())
        await asyncio.wait((ended, failed), return_when=asyncio.FIRST_COMPLETED)
        for waiting in (ended, failed):
            waiting.cancel()
        await server.close()
        if failed.done() and not failed.cancelled():
            raise failed.result()

    with suppress(KeyboardInterrupt):
        asyncio.run(serve())
