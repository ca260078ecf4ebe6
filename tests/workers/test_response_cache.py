"""Answers on their way to a store."""

from __future__ import annotations

import asyncio
from typing import Any

from metropolis.llm.base import Completion
from metropolis.llm.journal import Key
from metropolis.store.memory import MemoryServer
from metropolis.workers.response_cache import StoredAnswers
from tests.workers.test_stored_commits import new_run

YES = Completion("yes", 3, 1, "stop")


def key(digest: str) -> Key:
    return Key(0, 0, "chat", digest, 0)


def test_an_answer_is_stored_although_its_request_is_cancelled_meanwhile() -> None:
    async def check() -> None:
        store = MemoryServer().store("it")
        new_run(store)
        answers = StoredAnswers(store)
        keep, is_open = answers.async_store.keep_answer, asyncio.Event()

        async def keep_slowly(*arguments: Any) -> None:
            await is_open.wait()
            await keep(*arguments)

        answers.async_store.keep_answer = keep_slowly  # type: ignore[assignment, method-assign]
        assert answers.put(key("first"), YES) is None
        await asyncio.sleep(0)  # it is in flight to the store
        stored = answers.put(key("second"), YES)
        assert stored is not None
        waiting = asyncio.ensure_future(stored)
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        is_open.set()
        await asyncio.sleep(0.01)
        assert store.answers([0]) == {key("first"): YES, key("second"): YES}
        await answers.end()

    asyncio.run(check())
