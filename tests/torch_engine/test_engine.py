"""The engine against greedy answers one by one, whatever runs beside a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.reuse.base import CacheReuse
from metropolis.reuse.droidspeak import DroidSpeak
from metropolis.reuse.fixed import NoReuse, PrefixReuse
from metropolis.reuse.plan import Band, Plan, PlanPoint
from metropolis.torch_engine.cache_choice import ReuseOrder
from metropolis.torch_engine.engine import Engine, Prefill
from metropolis.torch_engine.generation_request import GenerationRequest, Output
from metropolis.torch_engine.prefill import NOTHING, Start, prefill
from metropolis.torch_engine.sampling import Sampling
from metropolis.types import MetropolisError
from tests.torch_engine.models import greedy
from tests.torch_engine.served_models import LAYERS, variants

BASE, CHAT = variants("base", "chat")
TWIN = replace(BASE, name="twin")
"""A model with the weights of `base`, so that each can use the other's cache exactly."""
GREEDY = Sampling(temperature=0.0)
BAND = Band(1, 3)
AMPLE = 1 << 30


def plan(sender: str, receiver: str, band: Band = BAND, layers: int = LAYERS) -> Plan:
    return Plan(
        sender=sender, receiver=receiver, layers=layers, metric="exact match", data="by hand",
        prompt_tokens=100, sender_quality=0.0, receiver_quality=1.0,
        points=(PlanPoint((band,), 1.0, 0.5),), source="by hand",
    )  # fmt: skip


@dataclass
class Client:
    """Collects what the engine sends for one request."""

    text: str = ""
    tokens: int = 0
    finish: str | None = None
    error: MetropolisError | None = None
    outputs: list[Output] = field(default_factory=list)

    def receive(self, output: Output | MetropolisError) -> None:
        assert self.finish is None
        assert self.error is None
        if isinstance(output, Output):
            self.text += output.text
            self.tokens, self.finish = output.tokens, output.finish
            self.outputs.append(output)
        else:
            self.error = output


def run(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Client]:
    """Send all requests at once and run the engine until it is idle."""
    clients = [Client() for _ in requests]
    for request, client in zip(requests, clients, strict=True):
        engine.submit(engine.prepare(request, client.receive))
    while not engine.is_idle:
        engine.step()
        assert engine.cache_bytes + engine.buffer_bytes <= engine.memory_bytes
    return clients


def expected_text(model: Any, prompt: Sequence[int], most: int, start: Start = NOTHING) -> str:
    answer = greedy(model, prompt, most, start)
    ends = [n for n, token in enumerate(answer) if token in model.end_tokens]
    return str(
        model.tokenizer.decode(answer[: ends[0]] if ends else answer, skip_special_tokens=True)
    )


def words(text: str) -> list[int]:
    return [int(token) for token in BASE.tokenizer(text)["input_ids"]]


prompts = st.builds(
    lambda opening, rest: words(opening + rest),
    st.sampled_from(["story " * 5, "story " * 3, "x"]),
    st.text("ab", max_size=3),
)
requests = st.lists(
    st.builds(
        GenerationRequest,
        model=st.sampled_from(["base", "twin"]),
        prompt=prompts,
        max_tokens=st.integers(1, 12),
        sampling=st.just(GREEDY),
        priority=st.integers(0, 2),
    ),
    min_size=1,
    max_size=6,
)  # fmt: skip


@given(
    requests,
    st.sampled_from([PrefixReuse(), NoReuse(), DroidSpeak([plan("base", "twin")])]),
    st.sampled_from([45, 80, 400, 10_000]),
    st.integers(1, 4),
)
@settings(deadline=None, max_examples=60)
def test_answers_do_not_depend_on_what_runs_beside_them(
    asked: list[GenerationRequest], reuse: CacheReuse, capacity_tokens: int, at_once: int
) -> None:
    """The twins start from each other's caches, which are exact; the memory may be small."""
    token_bytes = BASE.kv_bytes_per_token + BASE.input_bytes_per_token
    engine = Engine([BASE, TWIN], reuse, capacity_tokens * token_bytes, at_once)
    for request, client in zip(asked, run(engine, asked), strict=True):
        assert client.text == expected_text(BASE, request.prompt, request.max_tokens or 0)
        assert client.finish in ("stop", "length")


@given(requests, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=4))
@settings(deadline=None, max_examples=30)
def test_cancelled_requests_change_no_other(
    asked: list[GenerationRequest], cancelled: list[tuple[int, int]]
) -> None:
    engine = Engine([BASE, TWIN], PrefixReuse(), AMPLE, 3)
    clients = [Client() for _ in asked]
    numbers = [
        engine.submit(engine.prepare(request, client.receive))
        for request, client in zip(asked, clients, strict=True)
    ]
    gone = {numbers[which] for which, _ in cancelled if which < len(numbers)}
    for step in range(90):
        for which, when in cancelled:
            if when == step and which < len(numbers):
                engine.cancel(numbers[which])
        engine.step()
    assert engine.is_idle
    for number, request, client in zip(numbers, asked, clients, strict=True):
        if number not in gone or client.finish:
            assert client.text == expected_text(BASE, request.prompt, request.max_tokens or 0)


def test_smaller_priorities_are_prefilled_first() -> None:
    order: list[int] = []
    engine = Engine(
        [BASE], PrefixReuse(), AMPLE, 1, on_prefill=lambda one: order.append(one.prompt_tokens)
    )
    asked = [
        GenerationRequest("base", [2] * length, 2, GREEDY, priority=priority)
        for length, priority in ((3, 5), (4, 1), (5, 1), (6, 0))
    ]
    run(engine, asked)
    assert order == [6, 4, 5, 3]


@pytest.mark.parametrize("is_ordered", [True, False])
def test_the_receiver_starts_from_the_senders_cache(is_ordered: bool) -> None:
    """By the engine's own plan, and by a gateway's order; the answer is that of the mixed cache."""
    prefills: list[Prefill] = []
    engine = Engine(
        [BASE, CHAT], DroidSpeak([plan("base", "chat")]), AMPLE, on_prefill=prefills.append
    )
    story = words("It was a dark and stormy night. " * 4)
    order = ReuseOrder("base", (BAND,)) if is_ordered else None
    run(engine, [GenerationRequest("base", [*story, *words("Who?")], 3, GREEDY)])
    asked = GenerationRequest("chat", [*story, *words("Where?")], 8, GREEDY, reuse=order)
    [client] = run(engine, [asked])
    [_, origin] = [one.origin for one in prefills]
    assert (origin.sender, origin.cached_tokens) == ("base", 0)
    shared = origin.reused_tokens
    assert len(story) <= shared < len(asked.prompt)
    kv_bytes, input_bytes = BASE.kv_bytes_per_token, BASE.input_bytes_per_token
    assert origin.reused_bytes == shared * (kv_bytes * 2 // 5 + input_bytes)
    lent = prefill(BASE, torch.tensor([asked.prompt[:shared]]), keep_inputs=[BAND.first]).kv
    assert client.text == expected_text(CHAT, asked.prompt, 8, Start((), [lent], [BAND]))
    assert client.text != expected_text(CHAT, asked.prompt, 8)
    # Then it has a cache of its own, and what was made from another's is lent to none.
    [again] = run(engine, [asked])
    assert again.text == client.text
    assert prefills[-1].origin.sender == ""
    assert prefills[-1].origin.cached_tokens == len(asked.prompt) - 1
    run(engine, [replace(asked, model="base", prompt=[*asked.prompt, *words("!")], reuse=None)])
    assert prefills[-1].origin.sender == ""
    for model, order in (("base", ReuseOrder("chat")), ("chat", ReuseOrder("chat"))):
        with pytest.raises(MetropolisError, match="does not start from the cache of 'chat' here"):
            engine.prepare(replace(asked, model=model, reuse=order), Client().receive)


def test_a_conversation_goes_on_from_the_senders_answers() -> None:
    """Inputs (E) of answers are kept, too; what the receiver has itself comes before them."""
    prefills: list[Prefill] = []
    engine = Engine(
        [BASE, CHAT], DroidSpeak([plan("base", "chat")]), AMPLE, on_prefill=prefills.append
    )
    story, new = words("It was a dark and stormy night. "), words("And then?")
    run(engine, [GenerationRequest("chat", [*story, *words("Who?")], 2, GREEDY)])
    first = greedy(BASE, story, 9)
    asked = GenerationRequest("base", story, 9, GREEDY, ignores_end=True)
    run(engine, [asked])
    run(engine, [replace(asked, prompt=[*story, *first, *new])])
    [client] = run(engine, [GenerationRequest("chat", [*story, *first, *new, 5], 8, GREEDY)])
    [own, _, again, mixed] = [one.origin for one in prefills]
    assert (own.sender, again.cached_tokens) == ("", len(story) + 8)
    assert mixed.sender == "base"
    assert mixed.cached_tokens == len(story)
    assert mixed.reused_tokens == len(first) + len(new)
    prompt = [*story, *first, *new, 5]
    mine = prefill(CHAT, torch.tensor([story])).kv
    theirs = prefill(BASE, torch.tensor([prompt[:-1]]), keep_inputs=[BAND.first]).kv
    start = Start([mine], [theirs.part(len(story), len(prompt) - 1)], [BAND])
    assert client.text == expected_text(CHAT, prompt, 8, start)


def test_without_reuse_everything_is_computed() -> None:
    prefills: list[Prefill] = []
    engine = Engine([BASE], NoReuse(), AMPLE, on_prefill=prefills.append)
    asked = GenerationRequest("base", words("story " * 4), 3, GREEDY)
    first, second = run(engine, [asked, asked])
    assert first.text == second.text
    assert [one.origin.cached_tokens for one in prefills] == [0, 0]


def test_answers_are_part_of_the_cache() -> None:
    """The next turn of a conversation computes its new tokens only."""
    prefills: list[Prefill] = []
    engine = Engine([BASE], PrefixReuse(), AMPLE, on_prefill=prefills.append)
    prompt = words("story " * 4)
    [client] = run(engine, [GenerationRequest("base", prompt, 6, GREEDY, ignores_end=True)])
    answer = greedy(BASE, prompt, 6)
    run(engine, [GenerationRequest("base", [*prompt, *answer, 5], 2, GREEDY)])
    assert client.tokens == 6
    assert prefills[-1].origin.cached_tokens == len(prompt) + 5  # not the last token's


def test_stops_and_lengths() -> None:
    engine = Engine([BASE], PrefixReuse(), AMPLE)
    prompt = words("story " * 4)
    whole = expected_text(BASE, prompt, 20)
    stop = whole[3:5]
    [stopped] = run(engine, [GenerationRequest("base", prompt, 20, GREEDY, [stop])])
    assert (stopped.text, stopped.finish) == (whole[: whole.find(stop)], "stop")
    at_last = replace(
        GenerationRequest("base", prompt, stopped.tokens, GREEDY, [stop]), ignores_end=True
    )
    assert run(engine, [at_last])[0].finish == "stop"
    [cut] = run(engine, [GenerationRequest("base", prompt, 4, GREEDY, ignores_end=True)])
    assert (cut.tokens, cut.finish) == (4, "length")


def test_seeds_repeat_answers() -> None:
    engine = Engine([BASE], PrefixReuse(), AMPLE)
    asked = GenerationRequest("base", words("story"), 15, Sampling(seed=7))
    beside = GenerationRequest("base", words("a story"), 15, Sampling())
    first, *_ = run(engine, [asked, beside, beside])
    [second] = run(engine, [asked])
    [other] = run(engine, [replace(asked, sampling=Sampling(seed=8))])
    assert first.text == second.text != other.text
    unseeded = [run(engine, [beside])[0].text for _ in range(4)]
    assert len(set(unseeded)) > 1
    [likely] = run(engine, [replace(asked, sampling=Sampling(seed=8, top_p=0.0))])
    assert likely.text == expected_text(BASE, asked.prompt, 15)


def test_aborted_requests_say_so() -> None:
    engine = Engine([BASE], PrefixReuse(), AMPLE, 1)
    clients = [Client() for _ in range(3)]
    for client, name in zip(clients, ("run-1", "run-2", None), strict=True):
        request = GenerationRequest("base", [2, 3], 30, GREEDY, ignores_end=True, id=name)
        engine.submit(engine.prepare(request, client.receive))
    engine.step()
    engine.abort("run-")
    while not engine.is_idle:
        engine.step()
    assert [client.finish for client in clients] == ["abort", "abort", "length"]
    assert (clients[0].tokens, clients[1].tokens) == (2, 0)
