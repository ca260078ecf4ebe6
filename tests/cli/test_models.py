"""`--model`, instances that host models, and `--reuse`, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from metropolis.cli.run_report import reuse_note
from metropolis.runtime.reruns import rerun
from metropolis.trace.parquet import read_trace, write_trace
from tests.cli.conftest import summary
from tests.cli.test_run import _kill_at
from tests.commands import Command
from tests.small_traces import small_trace

P = "llama-3-8b/rtx-4090"
EXAMPLE = Path(__file__).parents[2] / "examples/own_reuse/own_reuse.py"
ALDERBROOK = EXAMPLE.parents[2] / "traces/alderbrook-11-13h.parquet"
FLEET = ("--instance", f"base={P}", "--instance", f"chat={P}")
STATUS_DIFFERS = 4


def models_of(path: Path) -> dict[tuple[int, str], set[str]]:
    """(step, function) -> the models of its calls."""
    found: dict[tuple[int, str], set[str]] = {}
    calls = read_trace(path).calls
    for step, function, model in zip(calls.step, calls.function, calls.model, strict=True):
        key = int(step), calls.functions[function]
        found.setdefault(key, set()).add(calls.models[model])
    return found


def test_a_run_resumed_with_other_models_is_verified(
    run: Command, uninterrupted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ("--model", "base", "--model", "think=one", "--out", "one")
    summary(run, "meadow.py", *first, "--steps", "12", "--quiet")
    resumed = summary(run, "resume", "one", "--quiet", "--model", "base", "--model", "think=two",
                      "--steps", "24", "--verify")  # fmt: skip
    assert resumed["history_sha256"] == uninterrupted["history_sha256"]
    assert resumed["verified"]["parts"] == [[0, 24]]
    assert (resumed["model"], resumed["models"]) == ("base", {"think": "two"})
    found = models_of(Path("one/trace.parquet"))
    assert {of for (step, name), models in found.items() if name == "think" for of in models} == {
        "one",
        "two",
    }
    assert all(models == {"base"} for (_, name), models in found.items() if name == "talk")
    # a verification that knows no models finds no answers
    monkeypatch.setattr(rerun, "replace", lambda request, model: request)
    status, out, _ = run("resume", "one", "--quiet", "--verify")
    assert status == STATUS_DIFFERS
    assert "makes another request for think than it did" in " ".join(out.split())


def test_recorded_steps_are_not_repeated_with_other_models(run: Command) -> None:
    first = ("--model", "base", "--model", "think=one")
    assert run("interrupted.py", *first, "--out", "one")[0] == 130  # without a checkpoint
    history = Path("one/history.jsonl").read_bytes()
    end = history.count(b"\n") - 1
    for other in (("base", "think=two"), ("other", "think=one"), ("base",)):
        models = [word for model in other for word in ("--model", model)]
        err = run("resume", "one", "--quiet", *models).refusal
        assert f"one: resuming repeats steps 0 to {end - 1}, recorded" in " ".join(err.split())
        assert Path("one/history.jsonl").read_bytes() == history
    other = ("--model", "base", "--model", "think=two", "--out", "two")
    branch = ("fork", "one", "--at", f"{end}", "--replay-llm", *other)  # as the sentence says
    assert summary(run, *branch, "--quiet", "--verify")["verified"]["deviation"] is None
    for (step, name), found in models_of(Path("two/trace.parquet")).items():
        assert found == {"base" if name == "talk" else "one" if step < end else "two"}
    assert summary(run, "resume", "one", "--quiet", *first)["steps"] == 24


def test_a_branch_keeps_the_models_and_buys_only_what_other_models_answer(
    run: Command, uninterrupted: dict[str, Any]
) -> None:
    models = ("--model", "base", "--model", "think=one")
    summary(run, "meadow.py", *models, "--out", "origin", "--quiet")
    branch = ("fork", "origin", "--at", "9", "--replay-llm", "--quiet", "--verify")
    same = summary(run, *branch, "--out", "same")
    other = summary(run, *branch, "--out", "other", "--model", "base", "--model", "think=two")
    for found in (same, other):
        assert found["history_sha256"] == uninterrupted["history_sha256"]
    assert same["bought"]["answers"] == same["calls"]
    bought = other["bought"]["answers"] - same["bought"]["answers"]
    thought = models_of(Path("other/trace.parquet"))
    assert {of for (step, name), of_step in thought.items() if name == "think" and step >= 9
            for of in of_step} == {"two"}  # fmt: skip
    assert bought > 0


def test_a_request_is_known_by_its_model(run: Command) -> None:
    """Another model is asked again; the same model is not, however the options name it."""
    plain = summary(run, "meadow.py", "--out", "plain", "--quiet")
    summary(run, "meadow.py", "--model", "base", "--out", "base", "--quiet")

    def bought(origin: str, *models: str) -> int:
        out = f"{origin}-{len(list(Path().iterdir()))}"
        options = [word for model in models for word in ("--model", model)]
        branch = ("fork", origin, "--at", "9", "--replay-llm", "--quiet", "--verify")
        found = summary(run, *branch, "--out", out, *options)
        assert found["history_sha256"] == plain["history_sha256"]
        assert found["verified"]["deviation"] is None
        return int(found["bought"]["answers"]) - int(found["calls"])

    assert bought("plain") == bought("base") == bought("base", "base", "think=base") == 0
    assert bought("plain", "other") == bought("base", "other") > 0
    for origin, models, status in (("plain", (), 0), ("base", ("--model", "base"), 0),
                                   ("plain", ("--model", "zzz"), 2), ("base", (), 2)):  # fmt: skip
        options = ("--llm", f"replay:{origin}/journal.jsonl", *models, "--quiet")
        assert run("meadow.py", *options)[0] == status


def test_a_run_with_models_that_is_killed_goes_on(run: Command, tmp_path: Path) -> None:
    models = ("--model", "base", "--model", "think=one", "--model", "@w01=two")
    options = ("--steps", "120", "--quiet", "--json", *models)
    whole = summary(run, "meadow.py", *options, "--out", "whole")
    size = Path("whole/journal.jsonl").stat().st_size
    arguments = ["run", "meadow.py", "--out", "killed", "--checkpoint-minutes", "0.0005", *options]
    assert _kill_at(size // 2, arguments, tmp_path)
    resumed = summary(run, "resume", "killed", "--quiet", "--verify")
    assert resumed["history_sha256"] == whole["history_sha256"]
    assert resumed["models"] == {"think": "one", "@w01": "two"}
    assert models_of(Path("killed/trace.parquet")) == models_of(Path("whole/trace.parquet"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--model", "a", "--model", "b"), "all other calls have two models"),
        (("--model", "@w055=a"), "the agent 'w055', which does not exist (did you mean 'w05'?)"),
        (FLEET, "calls have no model, and the instances host base, chat"),
        ((*FLEET, "--model", "bas"), "no instance hosts the model 'bas' (did you mean 'base'?)"),
        ((*FLEET, "--model", "base", "--model", "talk=b"), "no instance hosts the model 'b'"),
        (("--instance", f"={P}"), "is not an instance: write PROFILE"),
        (
            ("--instance", f"base={P}", "--instance", P, "--reuse", "prefix"),
            f"the instance {P} does not say which model it hosts, and others do",
        ),
        (("--reuse", "exact"), "name the base and its adapters"),
        ((*FLEET, "--model", "base", "--reuse", "prefx"), "did you mean 'prefix'?"),
        (("--reuse", "prefix", "--store", "embedded"), "--reuse is for simulated instances"),
        ((*FLEET, "--estimate"), "calls have no model"),
    ],
)
def test_wrong_models_are_one_sentence(
    run: Command, options: tuple[str, ...], sentence: str
) -> None:
    err = run("meadow.py", "--quiet", *options).refusal
    assert sentence in " ".join(err.split())
    assert err.count("\n") == 1
    assert not Path("runs").exists()


def test_a_function_that_no_call_has_is_noted(run: Command) -> None:
    status, _, err = run("meadow.py", "--quiet", "--model", "thinks=a")
    assert status == 0
    assert "no call had the function 'thinks' of --model (did you mean 'think'?)" in err


def test_the_name_of_a_function_is_printed_as_it_is(run: Command) -> None:
    loud = """
class Loud(Walker):
    async def proceed(self, observation, llm):
        await llm.chat("hello", function=":smile: \\x1b[2J")
        return await super().proceed(observation, llm)

def make"""
    world = Path("meadow.py").read_text().replace("\ndef make", loud).replace("[Walker(", "[Loud(")
    Path("loud.py").write_text(world)
    printed = run("loud.py", "--steps", "3", "--quiet").result
    assert any(line.startswith(r":smile: \x1b[2J ") for line in printed.splitlines())


def test_a_world_that_names_its_functions_refuses_others(run: Command) -> None:
    err = run("social", "--quiet", "--model", "wite=a").refusal
    assert "the function 'wite', which does not exist (did you mean 'write'?)" in err


def test_a_run_with_reuse_tells_what_it_reused(run: Command) -> None:
    models = ("--model", "base", "--model", "think=chat")
    live = summary(run, "meadow.py", *FLEET, *models, "--reuse", "prefix", "--keep-text", "--quiet")
    assert live["reuse"]["name"] == "prefix"
    row = next(row for row in live["comparison"] if row["mode"] == "out_of_order")
    assert row["makespan_sim_s"] == live["makespan_s"]
    without = summary(run, "meadow.py", *FLEET, *models, "--reuse", "none", "--quiet")
    assert "--keep-text" in without["no_comparison"]
    assert without["history_sha256"] == live["history_sha256"]


def test_instances_without_a_model_reuse_what_those_of_one_model_do(run: Command) -> None:
    named = ("--instance", f"base={P}:2", "--model", "base")
    makespans, reuses = set(), []
    for fleet in (named, ("--profile", P, "--instances", "2")):
        live = summary(run, "meadow.py", *fleet, "--reuse", "prefix", "--keep-text", "--quiet")
        replayed = run("replay", live["out"], *fleet, "--reuse", "prefix", "--json").result
        row = next(row for row in json.loads(replayed) if row["mode"] == "versioned")
        makespans |= {live["makespan_s"], row["makespan_sim_s"]}
        reuses.append(live["reuse"])
    assert len(makespans) == 1
    assert reuses[0] == reuses[1]
    assert reuses[0]["own_tokens"] > 0


def test_the_share_of_reused_tokens_is_of_what_this_start_sent(run: Command) -> None:
    how = (*FLEET, "--model", "base", "--model", "think=chat", "--reuse", "prefix", "--quiet")
    out = run("meadow.py", *how, "--steps", "12", "--out", "one").result
    whole = summary(run, "meadow.py", *how, "--steps", "12", "--out", "two")
    assert " ".join(reuse_note(whole["reuse"]).split()) in " ".join(out.split())
    assert whole["reuse"]["prompt_tokens"] == whole["prompt_tokens"]
    later = summary(run, "resume", "one", "--quiet", "--steps", "24")
    assert later["reuse"]["prompt_tokens"] == later["prompt_tokens"] - whole["prompt_tokens"]
    status, out, _ = run("resume", "one", "--quiet")
    assert (status, "Reuse prefix" in out) == (0, False)


def test_the_note_on_reuse() -> None:
    counts = {"prompt_tokens": 800, "own_tokens": 200, "reused_tokens": 100}
    row = {"name": "prefix", **counts, "moved_bytes": 2_500_000_000, "other_model_hits": 3}
    assert reuse_note(row) == (
        "Reuse prefix: 25.0% of the prompt tokens were in an instance's own cache, 12.5% came from "
        "other caches (3 prefills from another model's), 2.5 GB were moved between instances."
    )


@pytest.fixture
def trace(tmp_path: Path) -> str:
    write_trace(small_trace(5, agents=6, steps=12, edge=20, radius=2), tmp_path / "small.parquet")
    return str(tmp_path / "small.parquet")


def test_a_replay_with_a_plug_in_of_ones_own(run: Command) -> None:
    """The command at the beginning of the example, but with its file and a few minutes."""
    models = ("--model", "base", "--model", "iterative_convo=chat", "--hours", "12-12.1")
    reuse = ("--reuse", f"{EXAMPLE}:FirstLayers:sender=base,receiver=chat,layers=8")
    out = run("replay", str(ALDERBROOK), *FLEET, *models, *reuse, "--json").result
    rows = json.loads(out)
    assert {row["mode"] for row in rows}.isdisjoint({"optimistic", "critical_path"})
    for row in rows:
        assert row["reuse"]["other_model_hits"] > 0
        assert row["reuse"]["moved_bytes"] > row["reuse"]["reused_tokens"] > 0
    out = run("replay", str(ALDERBROOK), *FLEET, *models, *reuse, "--modes", "out_of_order").result
    assert "from other" in out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--model", "a"), "--model is for instances that host named models"),
        (FLEET, "no instance hosts the model"),
        ((*FLEET, "--model", "base", "--model", "x=base"), "the function 'x', which does not"),
        ((*FLEET, "--model", "base", "--reuse", "prefix", "--prefix-reuse"), "omit --prefix-reuse"),
        ((*FLEET, "--model", "base", "--reuse", "prefix", "--modes", "optimistic"), "no --reuse"),
        (
            (*FLEET, "--model", "base", "--reuse", "prefix", "--modes", "critical_path"),
            "critical_path is a bound without reuse",
        ),
        (("--instance", f"base={P}", "--instance", P, "--reuse", "prefix"), "and others do"),
        (("--prefix-reuse",), "lists no shared prefixes"),
        ((*FLEET, "--model", "base", "--reuse", "droidspeak:plans=none"), "none: cannot be read"),
    ],
)
def test_wrong_replays_are_one_sentence(
    run: Command, trace: str, options: tuple[str, ...], sentence: str
) -> None:
    err = run("replay", trace, *options).refusal
    assert sentence in " ".join(err.split())
    assert err.count("\n") == 1
