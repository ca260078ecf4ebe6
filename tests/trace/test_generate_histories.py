"""Applications with one growing history and a model for each function."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.trace.generate.agentic import LENGTHS
from metropolis.trace.generate.histories import (
    ANSWER_MAX,
    APPLICATIONS,
    BASE,
    MODELS,
    REFLEXION,
    workload,
)
from metropolis.types import MetropolisError


@given(st.sampled_from(sorted(APPLICATIONS)), st.integers(0, 1 << 30))
@settings(max_examples=40, deadline=None)
def test_a_prompt_is_all_that_came_before_and_new_instructions(name: str, seed: int) -> None:
    programs = workload(name, 3, 2.0, seed)
    texts = [{text for call in program.calls for text, _ in call.prefix} for program in programs]
    assert not texts[0] & texts[1]
    for program in programs:
        assert program.calls[0].model == BASE
        for call in program.calls:
            assert call.model == MODELS[call.function]
            assert call.prompt_tokens == sum(tokens for _, tokens in call.prefix)
            assert 1 <= call.output_tokens <= ANSWER_MAX
        for index, (one, other) in enumerate(pairwise(program.calls)):
            assert other.parents == (index,)
            *before, instructions = other.prefix
            assert before == [*one.prefix, (one.answer_text, one.output_tokens)]
            assert instructions[1] > 0


def test_programs_do_not_depend_on_the_rate() -> None:
    slow, fast = (workload("Reflexion", 5, per_s, 3) for per_s in (0.5, 4.0))
    assert [each.calls for each in slow] == [each.calls for each in fast]
    assert [each.arrival_s for each in slow] == pytest.approx([8 * e.arrival_s for e in fast])


def test_the_workflows() -> None:
    def functions(name: str) -> set[tuple[str, ...]]:
        return {tuple(c.function for c in p.calls) for p in workload(name, 300, 1.0, 0)}

    assert functions("QA") == {("router", "math expert"), ("router", "humanities expert")}
    assert functions("RG") == {("researcher", "writer")}
    trial = ("actor", "evaluator")
    again = ("self-reflection", *trial)
    assert functions("Reflexion") == {trial + again * n for n in range(4)}
    assert min(functions("CG"), key=len) == tuple(LENGTHS)[-5:]
    assert functions("CG") == functions("MetaGPT")
    assert ("retrieval", "planning", "coding", "debugging") in functions("MapCoder")


def test_models_may_be_others_and_must_be_complete() -> None:
    (program,) = workload("Reflexion", 1, 1.0, 0, dict.fromkeys(REFLEXION, "one"))
    assert {call.model for call in program.calls} == {"one"}
    with pytest.raises(MetropolisError, match="no model is named for the function 'actor'"):
        workload("Reflexion", 1, 1.0, 0, {})
    with pytest.raises(MetropolisError, match="there is no application 'Reflex'"):
        workload("Reflex", 1, 1.0, 0)
