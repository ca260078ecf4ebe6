"""A model with known answers: each is a function of its question, and can be resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count
from random import Random
from typing import Any

from tests.gateway.engines import StubEngine

TEXTS = ("a", "b", " c", " de", "\n", "  ", "EN", "END", "D", "é", "")
"""Texts of tokens; one is empty, like tokens that are part of a character."""
IDS = count()
FIRST = 1 << 20
"""Id of an answer's first token; the next ones follow, and those of the question are smaller."""


@dataclass(frozen=True)
class Step:
    """An engine's state when it sends an event."""

    text: str
    """Text of this part so far, without a stop string."""
    tokens: int
    finish: str | None
    stop: str | None = None


class Model:
    """With `groups`, an event may have several tokens or no text, as with real engines."""

    def __init__(self, *, groups: bool = True) -> None:
        self._groups = groups

    def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer without streaming."""
        question, prefix = asked(body)
        begin = self._begin(question, prefix)
        *_, last = self._steps(body, question, begin)
        said: dict[str, Any] = {"text": last.text}
        if "messages" in body:
            message = {"role": "assistant", "content": last.text, "reasoning_content": None}
            said = {"message": message}
        choice = {"index": 0, **said, "logprobs": None, **_finish(last)}
        if body.get("logprobs") is not None:
            choice["logprobs"] = self._logprobs(question, begin, begin, last.tokens)
        return _frame(body, "") | {
            "choices": [choice],
            "usage": self._usage(question, begin, last.tokens),
        }

    def events(self, body: dict[str, Any]) -> Iterator[bytes]:
        """Yield the answer as a stream."""
        question, prefix = asked(body)
        begin = self._begin(question, prefix)
        options = body.get("stream_options") or {}
        frame = _frame(body, ".chunk")
        is_chat = "messages" in body
        if is_chat:
            delta = {"role": "assistant", "content": "", "reasoning_content": None}
            yield _event(frame, [{"index": 0, "delta": delta, "finish_reason": None}])
        sent, tokens = 0, 0
        for step in self._steps(body, question, begin):
            delta = {"role": None, "content": step.text[sent:], "reasoning_content": None}
            said = {"delta": delta} if is_chat else {"text": step.text[sent:]}
            choice = {"index": 0, **said, "logprobs": None, **_finish(step)}
            if body.get("logprobs") is not None:
                choice["logprobs"] = self._logprobs(
                    question, begin, begin + tokens, step.tokens - tokens
                )
            if body.get("return_token_ids"):
                ids = range(FIRST + begin + tokens, FIRST + begin + step.tokens)
                choice |= {"token_ids": [*ids], "prompt_token_ids": None}
                if not tokens:
                    choice["prompt_token_ids"] = ids_of(question, begin)
            usage = self._usage(question, begin, step.tokens)
            every = options.get("continuous_usage_stats")
            yield _event(frame, [choice], usage=usage if every else None)
            sent, tokens = max(sent, len(step.text)), step.tokens
        if options.get("include_usage"):
            yield _event(frame, [], usage=self._usage(question, begin, tokens))
        yield b"data: [DONE]\n\n"

    def _tokens(self, question: str) -> list[str]:
        """Return the tokens of the whole answer; the last is its end."""
        random = Random(question)
        texts = TEXTS if self._groups else [text for text in TEXTS if text]
        return [*random.choices(texts, k=random.randrange(1, 40)), ""]

    def _begin(self, question: str, prefix: str | int) -> int:
        """Return the position after `prefix`, given as the text or the number of tokens."""
        if isinstance(prefix, int):
            return prefix
        so_far = list(accumulate(self._tokens(question), initial=""))
        assert prefix in so_far, f"{prefix!r} is not how {question} is answered"
        return so_far.index(prefix)

    def _steps(self, body: dict[str, Any], question: str, begin: int) -> Iterator[Step]:
        tokens = self._tokens(question)
        limit = body.get("max_tokens") or len(tokens)
        stop = body.get("stop", "")
        text = sent = ""
        for number, token in enumerate(tokens[begin : begin + limit], 1):
            text += token
            if stop and stop in text:
                yield Step(text[: text.index(stop)], number, "stop", stop)
                return
            is_end = begin + number == len(tokens)
            if is_end or number == limit:
                yield Step(text, number, "stop" if is_end else "length")
                return
            has_group = self._groups and Random(f"{question} {begin + number}").random() < 0.3
            is_half = not token and text != sent  # half a character or stop string
            is_half |= any(text.endswith(stop[:n]) for n in range(1, len(stop)))
            if not (has_group or is_half):
                sent = text
                yield Step(text, number, None)

    def _logprobs(self, question: str, part: int, begin: int, number: int) -> dict[str, Any]:
        """Return the logprobs of `number` tokens from `begin`; the answer starts at `part`."""
        tokens = self._tokens(question)
        starts = list(accumulate(map(len, tokens), initial=0))
        return {
            "tokens": tokens[begin : begin + number],
            "token_logprobs": [-float(n) for n in range(begin, begin + number)],
            "text_offset": [n - starts[part] for n in starts[begin : begin + number]],
            "top_logprobs": None,
        }

    def _usage(self, question: str, begin: int, number: int) -> dict[str, Any]:
        prompt = len(ids_of(question, begin))
        return {
            "prompt_tokens": prompt, "completion_tokens": number, "total_tokens": prompt + number,
            "prompt_tokens_details": None,
        }  # fmt: skip


class ModelEngine(StubEngine):
    """Answers like a model."""

    def __init__(self, model: Model, owned_by: str = "vllm", latency_s: float = 0.0) -> None:
        super().__init__(owned_by, latency_s)
        self.model = model

    def whole(self, body: dict[str, Any]) -> bytes:
        return json.dumps(self.model.whole(body)).encode()

    def events(self, body: dict[str, Any]) -> Iterator[bytes]:
        return self.model.events(body)


def ids_of(question: str, tokens: int) -> list[int]:
    """Return the token ids of a question and the first `tokens` of its answer."""
    return [*map(ord, f"{question}:"), *range(FIRST, FIRST + tokens)]


def asked(body: dict[str, Any]) -> tuple[str, str | int]:
    """Return the question and the answer so far; chat templates strip white space."""
    if isinstance(body.get("prompt"), list):
        question = "".join(chr(number) for number in body["prompt"] if number < FIRST)
        return question.removesuffix(":"), len(body["prompt"]) - len(question)
    if "prompt" in body:
        question, _, prefix = body["prompt"].partition(":")
        return question, prefix
    messages = body["messages"]
    if not body.get("continue_final_message"):
        assert messages[-1]["role"] == "user"
        return messages[-1]["content"], ""
    assert body["add_generation_prompt"] is False
    assert [message["role"] for message in messages[-2:]] == ["user", "assistant"]
    return messages[-2]["content"], messages[-1]["content"].rstrip()


def _finish(step: Step) -> dict[str, Any]:
    return {"finish_reason": step.finish, "matched_stop": step.stop}


def _frame(body: dict[str, Any], suffix: str) -> dict[str, Any]:
    form = f"chat.completion{suffix}" if "messages" in body else "text_completion"
    number = next(IDS)
    return {"id": f"id-{number}", "object": form, "created": number, "model": body["model"]}


def _event(frame: dict[str, Any], choices: list[Any], **fields: Any) -> bytes:
    return f"data: {json.dumps(frame | {'choices': choices} | fields)}\n\n".encode()
