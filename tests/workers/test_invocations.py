"""Tasks belong to the invocation that creates them."""

from __future__ import annotations

import asyncio

from metropolis.workers.invocations import Invocation, Invocations, assign_tasks


def test_a_loop_serves_one_run_after_another() -> None:
    """A worker on Ray starts again in the same process and loop when it had lost its store."""

    async def check() -> None:
        for _ in range(2):
            run = Invocations()
            assign_tasks(asyncio.get_running_loop())
            with Invocation(run, 0, ("ann",), check, None) as invocation:
                task = asyncio.create_task(asyncio.sleep(0))
            assert run.of_task(task) is invocation
            await task
            assert run.of_task(task) is None

    asyncio.run(check())
