"""Limits and faults of the engine: memory, models that do not fit, requests that fail."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from metropolis.reuse.droidspeak import DroidSpeak
from metropolis.reuse.fixed import ExactReuse, NoReuse, PrefixReuse
from metropolis.reuse.plan import Band
from metropolis.torch_engine.cache_choice import ReuseOrder
from metropolis.torch_engine.engine import Engine, Prefill
from metropolis.torch_engine.generation_request import EngineError, GenerationRequest
from metropolis.types import MetropolisError
from tests.torch_engine.models import greedy
from tests.torch_engine.served_models import LAYERS, variants
from tests.torch_engine.test_engine import (
    AMPLE,
    BASE,
    CHAT,
    GREEDY,
    Client,
    expected_text,
    plan,
    run,
    words,
)


def test_what_a_request_starts_from_is_not_evicted_for_it() -> None:
    prefills: list[Prefill] = []
    engine = Engine(
        [BASE], PrefixReuse(), 400 * BASE.kv_bytes_per_token, on_prefill=prefills.append
    )
    story, other = words("story " * 20), words("other " * 20)
    for prompt in (story, other):
        run(engine, [GenerationRequest("base", prompt, 1, GREEDY)])
    run(engine, [GenerationRequest("base", [*story, 5], 150, GREEDY, ignores_end=True)])
    assert prefills[-1].origin.cached_tokens == len(story)


def test_a_request_without_a_length_gets_the_engines() -> None:
    engine = Engine([BASE], PrefixReuse(), AMPLE, answer_tokens=7)
    [client] = run(engine, [GenerationRequest("base", [2, 3], None, GREEDY, ignores_end=True)])
    assert (client.tokens, client.finish) == (7, "length")


def test_short_requests_do_not_keep_the_buffers_of_a_long_one() -> None:
    engine = Engine([BASE], NoReuse(), AMPLE, 4)
    short = GenerationRequest("base", [2, 3], 20, GREEDY, ignores_end=True)
    long = replace(short, prompt=[2] * 900)
    clients = [Client() for _ in range(2)]
    for request, client in zip((replace(long, max_tokens=2), short), clients, strict=True):
        engine.submit(engine.prepare(request, client.receive))
    while clients[0].finish is None:
        engine.step()
    engine.step()
    assert clients[1].finish is None
    assert engine.buffer_bytes == 22 * BASE.kv_bytes_per_token


def test_nan_ends_one_request_only() -> None:
    """The NaN values do not remain in the memory that the next sequence takes, either."""
    engine = Engine([BASE], NoReuse(), AMPLE, 2)
    clients = [Client() for _ in range(2)]
    for client, prompt in zip(clients, ([2] * 40, [3] * 60), strict=True):
        request = GenerationRequest("base", prompt, 30, GREEDY, ignores_end=True)
        engine.submit(engine.prepare(request, client.receive))
    engine.step()
    engine.step()
    engine._batches["base"]._values[1][0, :, 35:] = torch.nan
    good = Client()
    request = GenerationRequest("base", words("story"), 12, GREEDY, ignores_end=True)
    engine.submit(engine.prepare(request, good.receive))
    while not engine.is_idle:
        engine.step()
    assert isinstance(clients[0].error, EngineError)
    assert "NaN" in str(clients[0].error)
    assert clients[1].tokens == 30
    answer = greedy(BASE, words("story"), 12)
    assert good.text == BASE.tokenizer.decode(answer, skip_special_tokens=True)


@pytest.mark.parametrize("where", ["keep", "add"])
def test_a_lack_of_memory_ends_one_request_only(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine([BASE], PrefixReuse(), AMPLE)
    calls = iter([torch.OutOfMemoryError("no memory"), *[None] * 99])
    subject = engine._choice if where == "keep" else engine._batches["base"]
    real = getattr(subject, where)

    def failing(*arguments: Any) -> None:
        if (error := next(calls)) is not None:
            raise error
        real(*arguments)

    monkeypatch.setattr(subject, where, failing)
    asked = GenerationRequest("base", words("story"), 3, GREEDY)
    bad, good = run(engine, [asked, asked])
    assert isinstance(bad.error, EngineError)
    assert good.text == expected_text(BASE, words("story"), 3)
    assert engine.buffer_bytes == 0


def test_a_request_that_never_fits_is_refused() -> None:
    engine = Engine([BASE], PrefixReuse(), 50 * BASE.kv_bytes_per_token)
    with pytest.raises(MetropolisError, match="up to 61 tokens; 'base' has room for 50 here"):
        engine.prepare(GenerationRequest("base", [2] * 41, 20), Client().receive)
    [client] = run(engine, [GenerationRequest("base", [2] * 41, None, GREEDY, ignores_end=True)])
    assert (client.tokens, client.finish) == (9, "length")


def test_a_fault_of_torch_ends_its_requests_only() -> None:
    broken = variants("broken", seed=3)[0]
    engine = Engine([BASE, broken], PrefixReuse(), AMPLE)
    del broken.network.model.layers[2].mlp.up_proj.weight
    broken.network.model.layers[2].mlp.up_proj.weight = torch.zeros(3, 3, dtype=torch.double)
    bad, good = run(
        engine,
        [
            GenerationRequest("broken", words("story"), 3, GREEDY),
            GenerationRequest("base", words("story"), 3, GREEDY),
        ],
    )
    assert isinstance(bad.error, EngineError)
    assert "the engine failed" in str(bad.error)
    assert good.text == expected_text(BASE, words("story"), 3)


def test_models_and_plans_must_fit() -> None:
    [deep] = variants("deep", layers=LAYERS + 1)
    with pytest.raises(MetropolisError, match="variants of one model"):
        Engine([BASE, deep], PrefixReuse(), AMPLE)
    half = replace(CHAT, network=copy.deepcopy(CHAT.network).half())
    with pytest.raises(MetropolisError, match="should have the same precision"):
        Engine([BASE, half], PrefixReuse(), AMPLE)
    with pytest.raises(MetropolisError, match="no plan is for two of the models base, chat"):
        Engine([BASE, CHAT], DroidSpeak([plan("base", "gone")]), AMPLE)
    with pytest.raises(MetropolisError, match="are for other models than base, chat"):
        Engine([BASE, CHAT], ExactReuse("gone", ("chat",)), AMPLE)
    with pytest.raises(MetropolisError, match="is for models of 12 layers; 'base' has 5"):
        Engine([BASE, CHAT], DroidSpeak([plan("base", "chat", layers=12)]), AMPLE)
    [other] = variants("other")
    other.tokenizer.add_tokens(["<new>"])
    Engine([BASE, other], PrefixReuse(), AMPLE)  # more tokens are no contradiction
    engine = Engine([BASE, CHAT], DroidSpeak([plan("base", "chat")]), AMPLE)
    for order, message in (
        (ReuseOrder("gone"), "this engine serves base, chat"),
        (ReuseOrder("base", (Band(2, 9),)), "not within the layers 0 to 4"),
        (ReuseOrder("base", (Band(2, 3),)), "does not keep the inputs of layer 2 of 'base'"),
    ):
        with pytest.raises(MetropolisError, match=message):
            engine.prepare(GenerationRequest("chat", [2], 1, reuse=order), Client().receive)


def test_tokenizers_must_agree() -> None:
    [other] = variants("other")
    other.tokenizer.add_tokens(["<new>"])
    [third] = variants("third")
    third.tokenizer.add_tokens(["<else>"])
    with pytest.raises(MetropolisError, match="is '<new>' of one and '<else>' of the other"):
        Engine([BASE, other, third], PrefixReuse(), AMPLE)
