"""Which model a call asks: options, requests, bodies, and traces."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.llm.agent import LLM
from metropolis.llm.backends import wire
from metropolis.llm.backends.compatible import Compatible
from metropolis.llm.backends.sglang import SGLang
from metropolis.llm.base import RefusedError
from metropolis.llm.client import Client
from metropolis.llm.journal import key_of
from metropolis.llm.model_choice import ModelChoice
from metropolis.llm.tokens import PIECE_TOKENS, approximate_tokens, prefix_pieces
from metropolis.types import MetropolisError
from tests.llm.fakes import Fake, request
from tests.small_traces import small_trace

OWN_MODEL = small_trace(0, agents=1, steps=1, edge=1, radius=1).calls.models[0]
"""A model that the small traces have."""
names = st.text("abc", min_size=1, max_size=2) | st.just(OWN_MODEL)
maps = st.dictionaries(names, names, max_size=4)


@given(st.none() | names, maps, maps, st.booleans())
def test_options_are_parsed_as_they_are_written(
    default: str | None, by_function: dict[str, str], by_agent: dict[str, str], joined: bool
) -> None:
    entries = [f"{name}={model}" for name, model in by_function.items()]
    entries += [f"@{name}={model}" for name, model in by_agent.items()]
    specs = [",".join(entries)] if joined and entries else entries
    found = ModelChoice.parse([*specs, *([] if default is None else [default])])
    assert found == ModelChoice(default, by_function, by_agent)
    assert found.named == {*by_function.values(), *by_agent.values()}
    for agent in (*by_agent, "other"):
        for function in (*by_function, "other"):
            of_function = by_function.get(function, default)
            assert found.of(agent, function) == by_agent.get(agent, of_function)


@pytest.mark.parametrize(
    ("specs", "sentence"),
    [
        (["a", "b"], "all other calls have two models, 'a' and 'b'; name one"),
        (["plan=a,plan=b"], "'plan' has two models, 'a' and 'b'"),
        (["@Ada=a", "@Ada=b"], "'@Ada' has two models"),
        (["plan=a,b"], "'plan=a,b' does not name models in this form: NAME, FUNCTION=NAME"),
        (["plan="], "does not name models"),
        (["=a"], "does not name models"),
        (["@=a"], "does not name models"),
        ([""], "does not name models"),
    ],
)
def test_wrong_options_are_one_sentence(specs: list[str], sentence: str) -> None:
    with pytest.raises(MetropolisError, match=sentence):
        ModelChoice.parse(specs)


def test_unknown_names_are_one_sentence_with_a_suggestion() -> None:
    choice = ModelChoice.parse(["pan=a", "@Ade=a", "plan=a"])
    with pytest.raises(MetropolisError, match=r"function 'pan', .* \(did you mean 'plan'\?\); the"):
        choice.check_functions(["plan", "talk"])
    with pytest.raises(MetropolisError, match=r"agent 'Ade', .* \(did you mean 'Ada'\?\)"):
        choice.check_agents(["Ada", "Bo"])


@given(st.integers(0, 99), st.none() | names, maps, maps)
@settings(max_examples=40)
def test_a_trace_gets_the_models_of_its_calls(
    seed: int, default: str | None, by_function: dict[str, str], by_agent: dict[str, str]
) -> None:
    trace = small_trace(seed, agents=3, steps=4, edge=5, radius=2)
    trace = replace(trace, meta=replace(trace.meta, agents=("a", "b", "c")))
    functions = trace.calls.functions
    by_function = {functions[len(k) % len(functions)]: m for k, m in by_function.items()}
    by_agent = {"abc"[len(k) % 3]: m for k, m in by_agent.items()}
    calls = ModelChoice(default, by_function, by_agent).applied_to(trace).calls
    before = trace.calls
    for call in range(len(before)):
        agent = "abc"[before.agent[call]]
        function = functions[before.function[call]]
        kept = default or before.models[before.model[call]]
        expected = by_agent.get(agent) or by_function.get(function) or kept
        assert calls.models[calls.model[call]] == expected
    assert len(calls.models) == len(set(calls.models)) == len(np.unique(calls.model))


def test_equal_prompts_to_different_models_are_different_requests() -> None:
    """Without a model the digest is that of earlier releases."""
    plain = request()
    assert plain.digest.startswith("0837d752708cbdca")
    keys = {key_of(replace(plain, model=model)) for model in (None, "a", "b")}
    assert len(keys) == 3


def test_an_agent_asks_its_model_with_the_same_seed() -> None:
    async def ask(models: ModelChoice) -> Fake:
        fake = Fake(latency_s=lambda _: 0.0)
        llm = LLM(Client(fake, models=models), agent=1, step=2, seed=3, program="Ada")
        await llm.chat("why?", function="plan")
        await llm.chat("why?", function="talk")
        assert [call.model for call in llm.calls] == [
            one.model or fake.name for _, one in fake.sent
        ]
        return fake

    plain = asyncio.run(ask(ModelChoice()))
    named = asyncio.run(ask(ModelChoice.parse(["plan=a"])))
    own = asyncio.run(ask(ModelChoice.parse(["plan=a", "@Ada=b"])))
    assert [one.model for _, one in plain.sent] == [None, None]
    assert [one.model for _, one in named.sent] == ["a", None]
    assert [one.model for _, one in own.sent] == ["b", "b"]
    assert len({one.seed for fake in (plain, named, own) for _, one in fake.sent}) == 2


def test_a_client_of_another_process_has_the_same_models() -> None:
    models = ModelChoice.parse(["plan=a"])
    assert Client(Fake(), models=models).for_worker(2).models == models


def test_bodies_name_the_model() -> None:
    chat = {"messages": ({"role": "user", "content": "why"},)}
    compatible, sglang = (
        Compatible("http://127.0.0.1:9", "base"),
        SGLang("http://127.0.0.1:9", "base"),
    )
    for backend in (compatible, sglang):
        assert backend.body_of(request(**chat))["model"] == "base"
        assert backend.body_of(request(**chat, model="chat"))["model"] == "chat"
    assert sglang.body_of(request(model="chat"))["model"] == "chat"
    assert "model" not in sglang.body_of(request())


def test_a_server_must_have_all_models() -> None:
    assert wire.choose_model("it", None, ["base"], ["base"]) == "base"
    assert wire.choose_model("it", "base", ["base", "chat"], ["chat"]) == "base"
    with pytest.raises(RefusedError, match="it has no model 'cat'; it serves base, chat"):
        wire.choose_model("it", "base", ["base", "chat"], ["cat"])


TOKEN = re.compile(r"\s*\S{1,4}|\s+")
LETTERS = "ab \n\u00e9\u2003\U0001f600\x1f"


@given(st.lists(st.text(LETTERS, max_size=200), min_size=2, max_size=4), st.integers(0, 40))
def test_pieces_are_equal_if_their_texts_are(texts: list[str], tokens_max: int) -> None:
    hash_of: dict[str, int] = {}
    for text in texts:
        tokens = TOKEN.findall(text)
        assert approximate_tokens(text) == len(tokens)
        ends = range(PIECE_TOKENS, min(len(tokens), tokens_max) + 1, PIECE_TOKENS)
        pieces = ["".join(tokens[end - PIECE_TOKENS : end]) for end in ends]
        found = prefix_pieces(text, tokens_max)
        assert [size for _, size in found] == [PIECE_TOKENS] * len(pieces)
        for piece, (hashed, _) in zip(pieces, found, strict=True):
            assert hash_of.setdefault(piece, hashed) == hashed >= 0
    assert len({*hash_of.values()}) == len(hash_of)


@given(st.text("ab \n", max_size=200), st.text("ab \n", max_size=60), st.text("ab \n", max_size=60))
def test_prompts_share_the_pieces_of_their_common_beginning(
    begin: str, one: str, other: str
) -> None:
    first, second = (prefix_pieces(begin + rest, 10_000) for rest in (one, other))
    tokens = approximate_tokens(begin + one)
    assert len(first) * PIECE_TOKENS <= tokens < (len(first) + 1) * PIECE_TOKENS + 1
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    # at most the token at the end of the beginning differs
    assert shared >= (approximate_tokens(begin) - 1) // PIECE_TOKENS
    assert prefix_pieces(begin + one, 17) == first[:1]
