"""Agentix' workloads have the statistics that the paper gives, and share the texts they should."""

from __future__ import annotations

import numpy as np
import pytest

from metropolis.trace.generate.agentix import (
    MIXED,
    SHARED_TEXTS,
    TEXTS_PER_PROGRAM,
    WORKLOADS,
    workload,
)
from metropolis.trace.programs import PlannedCall, Program
from metropolis.types import MetropolisError

# §6.1: mean calls per program, most calls, mean prompt and answer tokens of a call
PAPER = {
    "ShareGPT": (6.66, 80, 256, 277),
    "BFCL": (10.75, 70, 735.06, 34.14),
    "LATS": (159.7, None, 467.2, 72.6),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_statistics_are_those_of_the_paper(name: str) -> None:
    calls_mean, calls_max, prompt_mean, answer_mean = PAPER[name]
    programs = workload(name, 400 if name == "LATS" else 3000, 1.0, seed=5)
    lengths = [len(program.calls) for program in programs]
    calls = [call for program in programs for call in program.calls]
    assert np.mean(lengths) == pytest.approx(calls_mean, rel=0.06)
    assert calls_max is None or max(lengths) <= calls_max
    assert np.mean(lengths) > 1.1 * np.median(lengths)  # a long tail
    # of a chat, what a turn adds
    prompts = [call.prefix[-1][1] if name == "ShareGPT" else call.prompt_tokens for call in calls]
    assert np.mean(prompts) == pytest.approx(prompt_mean, rel=0.06)
    assert np.mean([call.output_tokens for call in calls]) == pytest.approx(answer_mean, rel=0.06)


@pytest.mark.parametrize("name", [*WORKLOADS, MIXED])
def test_programs_share_system_prompts_only_and_calls_what_was_written_before(name: str) -> None:
    programs = workload(name, 40, 1.0, seed=1)
    for number, program in enumerate(programs):
        own = SHARED_TEXTS + number * TEXTS_PER_PROGRAM
        answers: dict[int | None, int] = {}
        for call in program.calls:
            assert sum(tokens for _, tokens in call.prefix) == call.prompt_tokens
            (first, _), *rest = call.prefix
            assert first < SHARED_TEXTS
            for text, tokens in rest:
                assert own <= text < own + TEXTS_PER_PROGRAM
                assert answers.get(text, tokens) == tokens  # whole answers are read
            assert call.answer_text not in answers
            answers[call.answer_text] = call.output_tokens


def test_a_chat_goes_on_from_its_last_answer() -> None:
    for program in workload("ShareGPT", 30, 1.0, seed=2):
        for index, call in enumerate(program.calls[1:]):
            before = program.calls[index]
            assert call.parents == (index,)
            assert call.prefix[:-1] == (*before.prefix, (before.answer_text, before.output_tokens))


def test_a_search_acts_and_judges_in_parallel() -> None:
    for program in workload("LATS", 10, 1.0, seed=2):
        kinds = [call.function for call in program.calls]
        expansions, left = divmod(len(kinds), 10)
        assert left == 0
        assert kinds == (["act"] * 5 + ["judge"] * 5) * expansions
        for index, call in enumerate(program.calls):
            begin = index - index % 10
            if call.function == "judge":
                assert call.parents == (index - 5,)
                acted = program.calls[index - 5]
                assert (acted.answer_text, acted.output_tokens) in call.prefix
            else:
                assert call.parents == (tuple(range(begin - 5, begin)) if begin else ())
                siblings = program.calls[begin : begin + 5]
                assert all(each.prefix == call.prefix for each in siblings)


def test_only_a_search_waits_for_tools() -> None:
    calls = [
        call for name in WORKLOADS for each in workload(name, 20, 1.0, 3) for call in each.calls
    ]
    waits_s = [call.delay_s for call in calls if call.function == "judge"]
    assert not any(call.delay_s for call in calls if call.function != "judge")
    assert (np.mean(waits_s), np.std(waits_s)) == pytest.approx((0.69, 0.17), rel=0.1)


@pytest.mark.parametrize("name", [*WORKLOADS, MIXED])
def test_programs_are_the_same_at_every_rate(name: str) -> None:
    slow, fast = (workload(name, 20, rate, seed=1) for rate in (1.0, 10.0))
    assert [program.calls for program in slow] == [program.calls for program in fast]
    at = [[program.arrival_s for program in found] for found in (slow, fast)]
    assert at[0] == pytest.approx([10 * arrival_s for arrival_s in at[1]])
    assert workload(name, 20, 1.0, seed=2) != slow


def test_mixed_are_equal_shares_and_arrivals_are_poisson() -> None:
    programs = workload(MIXED, 600, 2.0, seed=1)
    kinds = [program.name.split()[0] for program in programs]
    assert {kind: kinds.count(kind) / 600 for kind in WORKLOADS} == pytest.approx(
        dict.fromkeys(WORKLOADS, 1 / 3), abs=0.06
    )
    gaps = np.diff([program.arrival_s for program in programs])
    assert gaps.mean() == pytest.approx(0.5, rel=0.1)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)


def test_what_is_no_workload_is_refused() -> None:
    with pytest.raises(MetropolisError, match="'chat'; there are ShareGPT, BFCL, LATS, mixed"):
        workload("chat", 1, 1.0, 0)
    with pytest.raises(MetropolisError, match="its prefix has 3 tokens, its prompt 2"):
        Program("p", 0.0, (PlannedCall("f", 2, 1, prefix=((0, 3),)),))
