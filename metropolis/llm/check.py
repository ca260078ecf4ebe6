"""The conformance check of backends, for authors: `asyncio.run(check_backend(backend))`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from inspect import isawaitable

from metropolis.llm.base import Backend, Completion, Message, Request
from metropolis.names import cut
from metropolis.types import MetropolisError

CHAT: tuple[Message, ...] = (
    {"role": "system", "content": "You are Ada."},
    {"role": "user", "content": "What will you do today?"},
)
REQUEST = Request(
    agent=0,
    step=0,
    function="check",
    messages=CHAT,
    max_tokens=16,
    temperature=0.0,
    seed=1,
    priority=0,
    program="check",
)
AT_ONCE = 8
"""Number of concurrent requests."""


async def check_backend(backend: Backend, *, prompts: bool = True) -> None:
    """Check `backend` against its interface; raises MetropolisError on the first violation.

    `prompts`: whether it completes plain prompts, not only chats. Sends about 30 short requests,
    and leaves the backend open.
    """
    await backend.check()
    _require(bool(backend.name), backend, "has no name after check()")
    prompt_request = replace(REQUEST, messages=None, prompt="Today I will")
    for request in (REQUEST, prompt_request) if prompts else (REQUEST,):
        answering = backend.complete(request)
        _require(isawaitable(answering), backend, "has a complete() that is no async function")
        whole = await answering
        _check_completion(backend, request, whole)
        await _check_stream(backend, request)
        await _check_stop(backend, request, whole.text)
        await _check_cancelling(backend, request)
        for answer in await asyncio.gather(*(backend.complete(request) for _ in range(AT_ONCE))):
            _check_completion(backend, request, answer)


def _check_completion(backend: Backend, request: Request, answer: Completion) -> None:
    _require(
        isinstance(answer, Completion),
        backend,
        f"answered with {cut(answer)}; it must be a metropolis.llm.Completion",
    )
    _require(
        answer.finish_reason in ("stop", "length"),
        backend,
        f"ended with {answer.finish_reason!r}; it must end with 'stop' or 'length'",
    )
    _require(
        answer.prompt_tokens > 0 and 0 <= answer.output_tokens <= request.max_tokens,
        backend,
        f"counted {answer.prompt_tokens} + {answer.output_tokens} tokens for a prompt of "
        f"{len(request.text)} characters and max_tokens of {request.max_tokens}",
    )


async def _check_stream(backend: Backend, request: Request) -> None:
    items = [item async for item in backend.stream(request)]
    completions = [item for item in items if isinstance(item, Completion)]
    _require(
        len(completions) == 1 and items[-1] is completions[0],
        backend,
        f"streamed {len(completions)} completions; it must stream one, as the last item",
    )
    pieces = "".join(item for item in items if isinstance(item, str))
    _require(
        pieces == completions[0].text,
        backend,
        f"streamed {pieces!r} in pieces and {completions[0].text!r} as a whole",
    )
    _check_completion(backend, request, completions[0])


async def _check_stop(backend: Backend, request: Request, text: str) -> None:
    stop = text[len(text) // 2 :][:3]
    if not stop:
        return  # an empty answer cannot be stopped
    stopped = await backend.complete(replace(request, stop=(stop,)))
    _require(stop not in stopped.text, backend, f"answered {stopped.text!r} despite stop {stop!r}")


async def _check_cancelling(backend: Backend, request: Request) -> None:
    call = asyncio.ensure_future(backend.complete(replace(request, max_tokens=256)))
    await asyncio.sleep(0)
    call.cancel()
    (outcome,) = await asyncio.gather(call, return_exceptions=True)
    _require(
        isinstance(outcome, Completion | asyncio.CancelledError),
        backend,
        f"answered a cancelled call with {outcome!r}; it must propagate CancelledError",
    )


def _require(holds: bool, backend: Backend, violation: str) -> None:
    if not holds:
        raise MetropolisError(f"{backend}: {violation}")
