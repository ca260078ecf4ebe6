"""SmallVille in real time on a real engine, with any large model, in three modes.

Run it from anywhere: python examples/engine_time.py [vllm|sglang URL [STEPS]]. For each call the
engine gets as many random tokens as the prompt has and makes as many as the answer of the world's
author has; then the author answers. So every mode has the same history and calls of the same
length, and a model with random weights does as well as any; its vocabulary should have at least
120,000 tokens. Start the engine without prefix cache and with priorities: vLLM with
`--no-enable-prefix-caching --scheduling-policy priority`, its model named `m` by
`--served-model-name m`; SGLang with `--disable-radix-cache --enable-priority-scheduling
--schedule-low-priority-values-first`. Without arguments a stub in this process replaces the engine
for 60 steps. It takes 1 ms a token, so that most of the time is the CPU's: its speed-ups mean
nothing.
"""

import argparse
import asyncio
import random
import threading

import aiohttp
from aiohttp import web

from metropolis import Client, Simulation
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.backends.sglang import SGLang
from metropolis.worlds import smallville

LOWEST, VOCABULARY = 300, 120_000  # token ids, apart from special ones


class TimedByEngine(Scripted):
    """The author, whose answers take the engine's time."""

    def __init__(self, author, kind, url):
        super().__init__(author)
        self.kind, self.url, self.session, self.answers = kind, url, None, 0
        self.backend = SGLang(url) if kind == "sglang" else Compatible(url, vllm=True)

    async def complete(self, request):
        """Return the author's answer when the engine is done."""
        answer = await super().complete(request)
        if self.session is None:
            self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        draw = random.Random(f"{request.agent} {request.step} {request.number}")
        prompt = [draw.randrange(LOWEST, VOCABULARY) for _ in range(max(1, answer.prompt_tokens))]
        priority = self.backend.body_of(request)["priority"]
        sampling = {"temperature": 0, "ignore_eos": True}
        tokens = max(1, answer.output_tokens)
        if self.kind == "vllm":
            path = "v1/completions"
            body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "priority": priority}
            body |= sampling
        else:
            path = "generate"
            sampling["max_new_tokens"] = tokens
            body = {"input_ids": prompt, "sampling_params": sampling, "priority": priority}
        async with self.session.post(f"{self.url}/{path}", json=body) as reply:
            reply.raise_for_status()
            await reply.read()
        self.answers += 1
        return answer

    async def close(self):
        """Close the connections."""
        if self.session is not None:
            await self.session.close()


def serve_stub():
    """Serve vLLM's route in a thread; return the URL."""

    async def complete(request):
        await asyncio.sleep((await request.json())["max_tokens"] * 0.001)
        return web.json_response({})

    async def start():
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/v1/completions", complete)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return asyncio.run_coroutine_threadsafe(start(), loop).result()


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("engine", choices=["vllm", "sglang"], nargs="?", help="default: a stub")
parser.add_argument("url", nargs="?", help="http://HOST:PORT of the engine")
parser.add_argument("steps", type=int, nargs="?", default=720, help="default: 720 (stub: 60)")
options = parser.parse_args()
if options.engine is None:
    name, kind, url, steps = "a stub", "vllm", serve_stub(), 60
elif options.url is None:
    parser.error("the engine's url is missing")
else:
    name, kind, url, steps = options.engine, options.engine, options.url, options.steps
print(f"25 agents, {steps} steps, {name} at {url}; real time")
print(f"{'mode':<14}{'makespan s':>12}{'speed-up':>10}{'calls':>8}{'answers':>9}  history")
lockstep_s = None
for mode in ("lockstep", "out_of_order", "optimistic"):
    scenario = smallville.make()
    engine = TimedByEngine(scenario.author, kind, url)
    run = Simulation(scenario.world, scenario.agents, Client(engine), mode=mode).run(steps)
    lockstep_s = lockstep_s or run.makespan_s
    print(
        f"{mode:<14}{run.makespan_s:>12.1f}{lockstep_s / run.makespan_s:>10.2f}{run.calls:>8,}"
        f"{engine.answers:>9,}  {run.history_sha256[:16]}"
    )
