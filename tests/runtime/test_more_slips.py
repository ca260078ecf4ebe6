"""Slips of authors that ended in another history, a traceback, or a sentence about others."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metropolis import Client, Entity, MetropolisError, Simulation, Whisper, fork, verify
from metropolis.llm.backends.scripted import Scripted
from metropolis.store.embedded import EmbeddedServer
from tests.runtime.test_slips import Person, Room, people

OPTIONS = [
    ({"function": 3}, "function is 3; it should be a text"),
    ({"max_tokens": "9"}, "max_tokens is '9'; it should be a whole number"),
    ({"max_tokens": True}, "max_tokens is True; it should be a whole number"),
    ({"temperature": nan}, "temperature is nan; it should be a number of at least 0"),
    ({"temperature": "hot"}, "temperature is 'hot'; it should be a number"),
    ({"stop": [1]}, r"stop is \[1\]; it should be a text or a list of texts"),
    ({"json_schema": "x"}, "json_schema is 'x'; it should be a dictionary"),
    ({"regex": 5}, "regex is 5; it should be a text"),
]


@pytest.mark.parametrize(("options", "sentence"), OPTIONS)
def test_options_of_calls_have_their_types(options: Any, sentence: str, tmp_path: Path) -> None:
    @dataclass
    class Asks(Person):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            await llm.chat("hello", **options)

    client = Client(Scripted(lambda request, random: "yes"))
    with pytest.raises(MetropolisError, match=rf"llm\.chat\(\): {sentence}"):
        Simulation(Room(), people(Asks), client, out=tmp_path / "run").run(1)


@pytest.mark.parametrize("kind", [3, None, ["a"], ""])
def test_kinds_are_texts(kind: Any) -> None:
    class Emits(Room):
        def resolve(self, cluster: Any) -> None:
            for member in cluster:
                member.emit(kind, words="yes")

    class Adds(Room):
        def resolve(self, cluster: Any) -> None:
            for member in cluster:
                member.add(kind)

    for world in (Emits(), Adds()):
        with pytest.raises(MetropolisError, match=r"the kind of .* it should be a text"):
            Simulation(world, people()).run(1)


def test_entities_say_that_they_are_read_only_and_what_they_hold() -> None:
    class Sets(Room):
        def resolve(self, cluster: Any) -> None:
            for member in cluster:
                member.me["n"] = 3

    body = Entity("ann", (0, 0), "agent", {"n": 1})
    assert "n" in body
    assert "m" not in body
    with pytest.raises(TypeError, match=r"'ann' is read-only; .*write\(n=…\)"):
        Simulation(Sets(), people()).run(1)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (lambda member: member.write(member.me, n=1), "writes .*; give an entity's name"),
        (lambda member: member.entity(member.me), "reads .*; give an entity's name"),
    ],
)
def test_entities_are_named(code: Callable[[Any], object], sentence: str) -> None:
    class Wrong(Room):
        def resolve(self, cluster: Any) -> None:
            for member in cluster:
                code(member)

    with pytest.raises(MetropolisError, match=sentence):
        Simulation(Wrong(), people()).run(1)


@pytest.mark.parametrize("names", [("ann", "eve"), ("ann",), ("bob", "ann")])
@pytest.mark.parametrize("store", ["memory", "own"])
def test_the_agents_of_a_run_do_not_change(
    names: tuple[str, ...], store: str, shared: EmbeddedServer, tmp_path: Path
) -> None:
    class Named(Room):
        def __init__(self, names: Sequence[str]) -> None:
            self.names = names

        def reset(self, *, seed: int, options: Mapping[str, Any]) -> Sequence[Entity]:
            return [Entity(name, (i, 0), "agent") for i, name in enumerate(self.names)]

    address = shared.url if store == "own" else store
    out = tmp_path / "run"

    def client() -> Client | None:
        return Client(Scripted(lambda request, random: "yes")) if store == "own" else None

    begun = [Person("ann"), Person("bob")]
    Simulation(Named(["ann", "bob"]), begun, client(), out=out, store=address).run(2)
    changed = [Person(name) for name in names]
    with pytest.raises(MetropolisError, match="the run has 2 agents: ann, bob; the world now mak"):
        Simulation(Named(names), changed, client(), out=out, store=address, resume=True).run(4)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"seed": "1"}, "seed is '1'; it should be a whole number"),
        ({"at": 1.0}, "at is 1.0; it should be a whole number"),
        ({"at": True}, "at is True; it should be a whole number"),
        ({"options": 3}, "options is 3; it should be a dictionary, or None"),
        ({"about": 3}, "about is 3; it should be a dictionary, or None"),
        ({"about": {"a": nan}}, r"about\['a'\] is nan; it should be plain data"),
        ({"on_step": 3}, "on_step is 3; it should be a function, or None"),
        ({"edit": "forget.py"}, "edit is 'forget.py'; it should be a function"),
    ],
)
def test_a_fork_checks_its_arguments(options: Any, sentence: str, tmp_path: Path) -> None:
    Simulation(Room(), people(), out=tmp_path / "run").run(2)
    with pytest.raises(MetropolisError, match=sentence):
        fork(tmp_path / "run", Room(), people(), **{"at": 1, "out": tmp_path / "b", **options})
    assert not (tmp_path / "b").exists()


def test_a_branch_is_not_within_its_run(tmp_path: Path) -> None:
    Simulation(Room(), people(), out=tmp_path / "run").run(2)
    with pytest.raises(MetropolisError, match=r"is within the run .*, which is only read; name an"):
        fork(tmp_path / "run", Room(), people(), at=1, out=tmp_path / "run" / "b")
    fork(tmp_path / "run", Room(), people(), at=np.int64(1), out=tmp_path / "run-b")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"options": 3}, "options is 3; it should be a dictionary, or None"),
        ({"seed": "x"}, "seed is 'x'; it should be a whole number from 0"),
        ({"on_step": 3}, "on_step is 3; it should be a function, or None"),
        ({"should_stop": 3}, "should_stop is 3; it should be a function, or None"),
    ],
)
def test_a_verification_checks_its_arguments(options: Any, sentence: str, tmp_path: Path) -> None:
    Simulation(Room(), people(), out=tmp_path / "run").run(2)
    with pytest.raises(MetropolisError, match=sentence):
        verify(tmp_path / "run", Room(), people(), **options)


def test_a_field_with_the_name_of_a_method_is_declared(tmp_path: Path) -> None:
    @dataclass
    class Odd(Person):
        async def proceed(self, observation: Any, llm: Any) -> Any:
            self.tables = "x"  # type: ignore[assignment,method-assign]

    with pytest.raises(MetropolisError, match="has set 'tables', which is not one of its fields"):
        Simulation(Room(), people(Odd), mode="optimistic").run(3)


def test_workers_that_share_work_need_a_store() -> None:
    with pytest.raises(MetropolisError, match="3 workers need a store; name embedded or a redis"):
        Simulation(Room(), people(), workers=3)


def test_a_run_with_another_seed_cannot_be_resumed(tmp_path: Path) -> None:
    Simulation(Room(), people(), out=tmp_path / "run").run(2)
    sentence = "run.json: holds a run of the world 'room' with seed 0; it cannot be resumed as 'ro"
    with pytest.raises(MetropolisError, match=f"{sentence}om' with seed 1"):
        Simulation(Room(), people(), out=tmp_path / "run", resume=True, seed=1)


@pytest.mark.parametrize("mode", ["lockstep", "out_of_order", "optimistic"])
@pytest.mark.parametrize(
    "act",
    [
        lambda member: member.write(late=True),
        lambda member: member.emit("late"),
        lambda member: member.add("thing"),
        lambda member: member.remove("stone"),
        lambda member: member.ask(member.name, "late?").send(None),
    ],
)
def test_members_act_in_their_step_only(mode: str, act: Callable[[Any], None]) -> None:
    kept: list[Any] = []

    class Keeps(Room):
        def reset(self, **options: Any) -> Sequence[Entity]:
            return [*super().reset(**options), Entity("stone", (0, 0))]

        def resolve(self, cluster: Any) -> None:
            if kept and cluster.step == 1:
                act(kept[0])
            kept.extend(cluster)

    with pytest.raises(MetropolisError, match=r"step 0, .* acts after its step; World\.resolve"):
        Simulation(Keeps(), people(), mode=mode).run(3)


@pytest.mark.parametrize("mode", ["lockstep", "out_of_order", "optimistic"])
def test_the_world_waits_for_the_answers_to_its_questions(mode: str) -> None:
    @dataclass
    class Answers(Person):
        async def answer(self, question: Any, llm: Any) -> Any:
            return (await llm.chat(question)).text

    class Leaves(Room):
        async def resolve(self, cluster: Any) -> None:
            for member in cluster:
                asyncio.create_task(member.ask(member.name, "well?"))  # noqa: RUF006
            await asyncio.sleep(0)

    with pytest.raises(MetropolisError, match="it returned before the answer to a question; it"):
        Simulation(Leaves(), people(Answers), mode=mode).run(3)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("mode", ["lockstep", "out_of_order", "optimistic"])
def test_a_question_that_is_not_awaited_is_told(mode: str, is_async: bool) -> None:
    class Forgets(Room):
        def resolve(self, cluster: Any) -> Awaitable[None] | None:
            for member in cluster:
                member.ask(member.name, "well?")
            return asyncio.sleep(0) if is_async else None

    with pytest.raises(MetropolisError, match=r"Forgets.resolve: .* it asked a question and did"):
        Simulation(Forgets(), people(), mode=mode).run(3)


@pytest.mark.parametrize("is_async", [True, False])
def test_tasks_that_the_world_does_not_wait_for_do_not_act(is_async: bool) -> None:
    class Waits(Room):
        def reset(self, **options: Any) -> Sequence[Entity]:
            return [Entity(name, (9 * i, 0), "agent") for i, name in enumerate(("ann", "bob"))]

        async def resolve(self, cluster: Any) -> None:
            async def act(member: Any) -> None:
                member.emit("late")

            for member in cluster:
                if member.name == "ann":
                    asyncio.create_task(act(member))  # noqa: RUF006
                else:
                    await asyncio.sleep(0.01)

    class Starts(Waits):
        def resolve(self, cluster: Any) -> Any:
            waiting = super().resolve(cluster)
            if "bob" in cluster:
                return waiting
            with pytest.raises(StopIteration):
                waiting.send(None)  # to its end: it waits for nothing
            return None

    @dataclass
    class Routine(Person):
        def routine(self, observation: Any) -> Any:
            return None

    world, kind = (Waits, Person) if is_async else (Starts, Routine)
    found = [Simulation(world(), people(kind), mode=mode) for mode in ("lockstep", "out_of_order")]
    lockstep, out_of_order = (simulation.run(3).history_sha256 for simulation in found)
    assert lockstep == out_of_order


@pytest.mark.parametrize("out", [None, "run"])
def test_results_are_pickled_and_compared(out: str | None, tmp_path: Path) -> None:
    folder = out and tmp_path / out
    result = Simulation(Room(), people(), out=folder).run(2)
    again = pickle.loads(pickle.dumps(result))
    assert again.history_sha256 == result.history_sha256
    assert (again.trace.positions == result.trace.positions).all()
    assert result != again
    assert again.trace != result.trace
    assert len({result, again, again.trace, result.trace.calls}) == 4


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((3, "hm"), "the whisper's agent is 3; it should be a text"),
        (("ann", 5), "the whisper's text is 5; it should be a text"),
        (("ann", " "), "the whisper is empty"),
    ],
)
def test_a_whisper_is_a_text_to_an_agent(given: Any, sentence: str) -> None:
    with pytest.raises(MetropolisError, match=f"^{sentence}"):
        Whisper(*given)
