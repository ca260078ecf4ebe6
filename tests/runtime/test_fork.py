"""Branches: they keep the past of their origin and change only the necessary future."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import metropolis
from metropolis.line_file import read_lines
from metropolis.llm.backends.scripted import Scripted
from metropolis.llm.client import Client
from metropolis.llm.journal import Journal, read_journal
from metropolis.runtime.folder.calls_file import CALLS
from metropolis.runtime.folder.history import read_history, record_of
from metropolis.runtime.folder.run_directory import RunDirectory
from metropolis.runtime.live.simulation import Simulation
from metropolis.runtime.reruns.edit_context import Moment
from metropolis.types import MetropolisError
from metropolis.world.entities import Entity, Event
from tests.forgery import forge
from tests.runtime.purchases import Counting
from tests.runtime.walkers import Meadow, PlainWalker, Walker

STEPS = 20
SEED = 5
ISLANDS = [(x + far, y) for far in (0, 100) for x in range(6) for y in range(6)]


class Town:
    """A small random world and its agents, created afresh for every run."""

    def __init__(self, seed: int, **world: Any) -> None:
        draw = Random(seed)
        self.seed, self.kind = seed, draw.choice([Walker, Walker, PlainWalker])
        self.about = {"walkers": draw.randint(2, 6), "side": draw.randint(6, 12)}
        self.about |= {"radius": draw.randint(1, 3), "joint": draw.choice([None, 0, 1])} | world

    def parts(self) -> tuple[Meadow, Sequence[Any]]:
        world = Meadow(**self.about)
        return world, [self.kind(name) for name in world.names]

    def run(self, out: Path, *, backend: Scripted | None = None, **how: Any) -> Simulation:
        llm = Client(backend or Counting(), retries=0)
        return Simulation(*self.parts(), llm, seed=self.seed, out=out, **how)

    def fork(self, run: Path, out: Path, **how: Any) -> None:
        metropolis.fork(run, *self.parts(), out=out, **how)


def lived(town: Town, out: Path, **how: Any) -> str:
    return town.run(out, **how).run(STEPS).history_sha256


def lines(run: Path) -> list[bytes]:
    return [line.content for line in read_history(run / "history.jsonl")]


def files(run: Path) -> dict[str, str]:
    paths = (path for path in run.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def forget(moment: Moment) -> None:
    """Change a word in an agent's memory."""
    walker: Any = moment.agents[min(moment.agents)]
    walker.memory = ["a flood"]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 20), ats=st.lists(st.integers(0, STEPS), min_size=1, max_size=3))
def test_without_a_difference_it_is_the_run_it_has_left(
    tmp_path_factory: pytest.TempPathFactory, seed: int, ats: list[int]
) -> None:
    """Branches of branches have the same history and buy nothing."""
    folder, town = tmp_path_factory.mktemp("run"), Town(seed)
    how = Random(seed).choice([{"checkpoint_wall_s": 0}, {}, {"mode": "lockstep"}])
    whole = lived(town, folder / "0", **how)
    for number, at in enumerate(sorted(ats)):
        before = files(folder / str(number))
        out, backend = folder / str(number + 1), Counting()
        kept = RunDirectory(folder / str(number)).checkpoints.newest(at)
        again: list[int] = []
        told = {"on_step": lambda record, again=again: again.append(record.step)}
        town.fork(folder / str(number), out, at=at, replay_llm=True, **told)
        assert again == list(range(kept.step if kept else 0, at))
        assert files(folder / str(number)) == before
        run = town.run(out, backend=backend, resume=True)
        assert run.first_step == at
        assert run.run(STEPS).history_sha256 == whole
        assert not backend.bought
        assert [line["step"] for line in json.loads((out / "run.json").read_text())["lineage"]] == (
            sorted(ats)[: number + 1]
        )
    calls = [read_lines(folder / str(n) / "calls.jsonl", CALLS) for n in (0, len(ats))]
    for one, other in zip(*calls, strict=True):
        assert json.loads(one.content)[:2] == json.loads(other.content)[:2]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 20), at=st.integers(0, STEPS - 1), leave=st.integers(0, STEPS - 1))
def test_an_edit_changes_the_future_and_buys_only_what_is_asked_otherwise(
    tmp_path_factory: pytest.TempPathFactory, seed: int, at: int, leave: int
) -> None:
    """This also holds in every mode for a branch that is stopped and resumed."""
    folder, town = tmp_path_factory.mktemp("run"), Town(seed)
    lived(town, folder / "origin")
    known = dict(read_journal(folder / "origin" / "journal.jsonl"))
    found = set()
    for name, modes in (("whole", ["out_of_order"]), ("killed", ["lockstep", "out_of_order"])):
        out = folder / name
        town.fork(folder / "origin", out, at=at, edit=forget, replay_llm=True)
        for mode in modes:
            backend = Counting()
            run = town.run(out, backend=backend, mode=mode, resume=True, checkpoint_wall_s=0)
            steps = run.steps(STEPS)
            for record in steps:
                if mode != modes[-1] and record.step >= leave:
                    break
            steps.close()
            assert not known.keys() & backend.bought.keys()
        assert lines(out)[:at] == lines(folder / "origin")[:at]
        assert dict(read_journal(out / "journal.jsonl")).keys() >= known.keys()
        found.add(run.result().history_sha256)
    assert len(found) == 1


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1 << 20), at=st.integers(0, STEPS - 1))
def test_who_cannot_know_of_an_edit_lives_on_as_before(
    tmp_path_factory: pytest.TempPathFactory, seed: int, at: int
) -> None:
    """Of two islands, the one without the edit keeps its history and buys nothing."""
    folder, town = tmp_path_factory.mktemp("run"), Town(seed, places=ISLANDS, walkers=8)
    lived(town, folder / "origin")
    town.fork(folder / "origin", folder / "branch", at=at, edit=forget, replay_llm=True)
    backend = Counting()
    town.run(folder / "branch", backend=backend, resume=True).run(STEPS)
    world, _ = town.parts()
    bodies = {e.name: e.position for e in world.reset(seed=seed, options={})}
    side = bodies[world.names[0]][0] < 50
    far = [name for name in world.names if (bodies[name][0] < 50) != side]
    ids = {world.names.index(name) for name in far}
    assert not [key for key in backend.bought if key.agent in ids]
    for ours, theirs in zip(lines(folder / "branch"), lines(folder / "origin"), strict=True):
        one, other = record_of(ours), record_of(theirs)
        for name in far:
            assert one.actions.get(name) == other.actions.get(name)
            assert one.writes.get(name) == other.writes.get(name)


def test_another_seed_is_another_future_of_the_same_past(tmp_path: Path) -> None:
    town, at = Town(3, walkers=6), 7
    whole = lived(town, tmp_path / "origin")
    found = {}
    for name, mode, seed in (
        ("a", "out_of_order", 1),
        ("b", "lockstep", 1),
        ("c", "lockstep", 2),
        ("d", "lockstep", None),
    ):
        out = tmp_path / name
        town.fork(tmp_path / "origin", out, at=at, seed=seed)
        backend = Counting()
        found[name] = town.run(out, backend=backend, resume=True, mode=mode).run(STEPS)
        assert lines(out)[:at] == lines(tmp_path / "origin")[:at]
        assert min(key.step for key in backend.bought) >= at  # bought again
        assert found[name].seed == town.seed
    assert found["a"].history_sha256 == found["b"].history_sha256
    assert len({whole, *(found[name].history_sha256 for name in "bc")}) == 3
    assert found["d"].history_sha256 == whole
    town.fork(tmp_path / "a", tmp_path / "aa", at=15)  # keeps the branch's seed
    assert lived(town, tmp_path / "aa", resume=True) == found["a"].history_sha256


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_under_way_and_one_in_a_store_are_forked(tmp_path: Path, stored: bool) -> None:
    town = Town(4, walkers=5)
    whole = lived(town, tmp_path / "memory")
    origin = town.run(tmp_path / "origin", store="embedded" if stored else None)
    steps = origin.steps(STEPS)
    for record in steps:
        if record.step == 12:
            town.fork(tmp_path / "origin", tmp_path / "branch", at=10, replay_llm=True)
    how: dict[str, Any] = {} if stored else {"store": "embedded", "workers": 2}
    branch = town.run(tmp_path / "branch", resume=True, **how)
    assert origin.result().history_sha256 == whole
    assert branch.run(STEPS).history_sha256 == whole
    assert branch.result().trace.positions.shape == origin.result().trace.positions.shape


def test_an_answer_that_is_lost_is_named_with_what_can_be_forked(tmp_path: Path) -> None:
    town = Town(6, walkers=5)
    whole = lived(town, tmp_path / "origin", mode="lockstep", checkpoint_wall_s=0)
    origin = RunDirectory(tmp_path / "origin")
    run, kept = origin.read()["run"], origin.checkpoints
    for step in kept.steps():
        if step not in (4, 16):
            kept.path(step).unlink()
            continue
        found = kept.read(step)  # as in a run whose workers keep answers elsewhere
        assert found.past is not None
        kept.add(replace(found, past=replace(found.past, journal=None)))
    journal = tmp_path / "origin" / "journal.jsonl"
    answers = list(read_journal(journal))
    gone = next(key.step for key, _ in answers if key.step >= 8)
    journal.unlink()
    with closing(Journal(journal, run)) as kept_ones:
        for key, answer in answers:
            if key.step != gone:
                kept_ones.put(key, answer)
    said = rf"no answer to 'w0\d' in step {gone}, (think|talk), so step {gone + 1} cannot be "
    said += rf"reproduced; steps 4 to {gone} can be shown or forked, .* checkpoint: 4, 16"
    with pytest.raises(MetropolisError, match=said):
        town.fork(tmp_path / "origin", tmp_path / "branch", at=gone + 1)
    assert not (tmp_path / "branch").exists()
    for at in (gone, 16):
        out = tmp_path / str(at)
        town.fork(tmp_path / "origin", out, at=at)
        assert lived(town, out, resume=True) == whole


def move(moment: Moment) -> None:
    body = moment.entities["w00"]
    moment.entities["w00"] = replace(body, position=(body.position[0] + 1, 0))


def add_nowhere(moment: Moment) -> None:
    moment.entities["stone"] = Entity("rock", (0, 0))


def replace_agent(moment: Moment) -> None:
    moment.agents["w00"] = Walker("w00")


def remove_body(moment: Moment) -> None:
    del moment.entities["w00"]


def set_to_nonsense(moment: Moment) -> None:
    moment.agents["w00"].memory = object()  # type: ignore[attr-defined]


def set_to_a_number(moment: Moment) -> None:
    moment.agents["w00"].memory = 5  # type: ignore[attr-defined]


def foretell(moment: Moment) -> None:
    moment.events.append(Event(moment.step, "w00", (0, 0), "shout", {"word": "hey"}))


async def wait(moment: Moment) -> None:
    moment.entities.clear()


def pause(moment: Moment) -> Iterator[None]:
    yield


def rename(moment: Moment) -> None:
    moment.agents["w00"].name = "Zed"


def remove_agent(moment: Moment) -> None:
    del moment.agents["w00"]


def add_what_an_agent_may_add(moment: Moment) -> None:
    moment.entities["note/w00/9/0"] = Entity("note/w00/9/0", (1, 1), "note", {})


def misspell(moment: Moment) -> None:
    moment.agent = {}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (wait, "edit is an async function; it should be a plain one"),
        (pause, "the edit is an async function or a generator; use a plain function"),
        (misspell, "'Moment' object has no attribute 'agent'"),
        (rename, "the edit renames the agent 'w00' to 'Zed'; agents keep their names"),
        (move, "the edit has moved 'w00' from"),
        (add_nowhere, "should be an Entity of that name"),
        (replace_agent, "has replaced, added or removed an agent"),
        (remove_agent, "has replaced, added or removed an agent"),
        (add_what_an_agent_may_add, "a name that 'w00' could give to a thing it adds"),
        (remove_body, "do not match at 'w00'"),
        (set_to_nonsense, "'w00' .* cannot be saved"),
        (set_to_a_number, "the edit leaves a state that cannot be restored: .*'w00'"),
        (foretell, "step 5 perceives Events of step 4"),
    ],
)
def test_edits_that_leave_no_world_are_refused(
    tmp_path: Path, edit: Callable[[Moment], Any], sentence: str
) -> None:
    town = Town(SEED, walkers=3)
    lived(town, tmp_path / "origin")
    with pytest.raises((MetropolisError, AttributeError), match=sentence):
        town.fork(tmp_path / "origin", tmp_path / "branch", at=5, edit=edit)
    assert not (tmp_path / "branch").exists()


def test_what_an_edit_has_changed_is_written_down(tmp_path: Path) -> None:
    town = Town(SEED, walkers=3)
    town.kind = Walker
    lived(town, tmp_path / "origin")

    def everything(moment: Moment) -> None:
        forget(moment)
        del moment.entities["apple0"]
        moment.entities["apple1"] = replace(moment.entities["apple1"], state={"bites": 2})
        moment.events.append(Event(4, "w02", (0, 0), "shout", {"word": "fire"}))

    town.fork(tmp_path / "origin", tmp_path / "branch", at=5, edit=everything, seed=9)
    (origin,) = json.loads((tmp_path / "branch" / "run.json").read_text())["lineage"]
    assert origin["edit"].endswith("everything")
    assert origin["edited"] == ["apple0", "apple1", "w00", "w02"]
    assert (origin["step"], origin["seed"], origin["replay_llm"]) == (5, 9, False)
    assert Path(origin["run"]) == tmp_path / "origin"
    run = town.run(tmp_path / "branch", resume=True)
    record = next(run.steps(STEPS))
    assert record.step == 5
    assert not any("apple0" in record_of(line).writes for line in lines(tmp_path / "branch")[5:])


def test_a_damaged_checkpoint_beyond_the_step_does_no_harm(tmp_path: Path) -> None:
    town = Town(SEED, walkers=3)
    whole = lived(town, tmp_path / "origin", checkpoint_wall_s=0)
    checkpoints = RunDirectory(tmp_path / "origin").checkpoints
    checkpoints.path(checkpoints.steps()[-1]).write_bytes(b"{")
    town.fork(tmp_path / "origin", tmp_path / "branch", at=5, replay_llm=True)
    branch = town.run(tmp_path / "branch", resume=True)
    assert branch.run(STEPS).history_sha256 == whole


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    town = Town(SEED, walkers=3)
    lived(town, tmp_path / "origin")

    def refused(sentence: str, town: Town = town, **how: Any) -> None:
        how = {"run": tmp_path / "origin", "out": tmp_path / "branch", "at": 5} | how
        with pytest.raises(MetropolisError, match=sentence):
            town.fork(**how)

    refused("has 20 recorded steps; the step should be 0 to 20, not 21", at=21)
    refused("0 to 20, not -1", at=-1)
    refused("holds no run", run=tmp_path / "nothing")
    refused("exists already; resume the run in it", out=tmp_path / "origin")
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "history.jsonl").touch()
    refused("exists already; it holds no run: remove it", out=tmp_path / "killed")
    refused("remove the folder if a fork into it was interrupted", run=tmp_path / "killed")
    changed = Town(SEED, walkers=3, radius=0.5)
    refused(r"'w0\d' makes a different request in step 0, so step 5 .*: 20$", changed)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Meadow, "step_from", lambda _world, position, _move: position)
        refused("step 0 differs from the recorded step, so step 5 .*: 20$")
    town.fork(tmp_path / "origin", tmp_path / "first", at=10)
    town.fork(tmp_path / "first", tmp_path / "second", at=10)
    refused(r"begins at step 10; use the original run, .*origin, at 5", run=tmp_path / "first")
    refused(r"begins at step 10; use the original run, .*origin, at 5", run=tmp_path / "second")
    forge(tmp_path / "first" / "run.json", lambda run: run["lineage"][0].update(step="ten"))
    refused(r"run.json: lineage: .* `\$\[0\].step`", run=tmp_path / "first")
    (tmp_path / "origin" / "journal.jsonl").unlink()
    refused("journal.jsonl: does not exist")
