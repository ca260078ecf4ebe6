"""Engines' scheduling rules, computed by hand."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from metropolis._core import InstancePool, Profile, Request

MIXED: dict[str, Any] = {}
SGLANG: dict[str, Any] = {"schedule": "prefill_first"}
VLLM_V0: dict[str, Any] = {"schedule": "prefill_first", "chunked_prefill": False}
WHOLE: dict[str, Any] = {"chunked_prefill": False}


def tokens_ms(
    requests: list[tuple[float, int, int]],
    *,
    chunk_tokens: int = 10,
    blocks: int = 100,
    max_sequences: int = 9,
    **options: Any,
) -> list[tuple[float, float]]:
    """First and last token of each request (arrival_ms, prompt, output).

    An iteration takes 100 ms, and 1 ms more for each token it computes.
    """
    profile = Profile(
        g_ms=1.0, h_ms=100.0, block_tokens=1, kv_capacity_tokens=blocks,
        chunk_tokens=chunk_tokens, max_sequences=max_sequences,
    )  # fmt: skip
    pool = InstancePool(profile, **options)
    for id, (arrival_ms, prompt, output) in enumerate(requests):
        pool.submit(id, Request(prompt, output), arrival_ms / 1000)
    ends = sorted(pool.advance(inf), key=lambda completion: completion.id)
    return [
        (pytest.approx(1000 * c.first_token_sim_s), pytest.approx(1000 * c.last_token_sim_s))
        for c in ends
    ]


@pytest.mark.parametrize(
    ("rules", "first", "second"),
    [
        # 0 decodes beside 9 and then 5 tokens of 1, and alone twice
        (MIXED, (104, 522), (320, 320)),
        # 10 and 4 tokens of 1 while 0 waits, which then decodes four times
        (SGLANG, (104, 722), (318, 318)),
        # all 14 tokens of 1 in one iteration
        (VLLM_V0, (104, 622), (218, 218)),
        # 0 decodes beside all 14 tokens, which are more than the budget, and then alone
        (WHOLE, (104, 522), (219, 219)),
    ],
    ids=["vllm v1", "sglang", "vllm v0", "mixed, whole"],
)
def test_a_prompt_that_arrives_while_another_decodes(
    rules: dict[str, Any], first: tuple[float, float], second: tuple[float, float]
) -> None:
    assert tokens_ms([(0, 4, 5), (50, 14, 1)], **rules) == [first, second]


@pytest.mark.parametrize("rules", [VLLM_V0, WHOLE])
def test_whole_prompts_share_an_iteration_while_they_fit(rules: dict[str, Any]) -> None:
    # 6 tokens; then 4 and 6 fill the budget; 1 would not fit and goes last
    ends = tokens_ms([(0, 6, 1), (0, 6, 1), (0, 4, 1), (0, 1, 1)], **rules)
    assert ends == [(106, 106), (216, 216), (216, 216), (317, 317)]


def test_prefills_stop_at_the_batch_size() -> None:
    ends = tokens_ms([(0, 2, 3), (0, 2, 1), (0, 2, 1)], max_sequences=2, **SGLANG)
    # 0 and 1 together, then 2 beside nobody, then 0 decodes twice
    assert ends == [(104, 408), (104, 104), (206, 206)]


@pytest.mark.parametrize(
    ("watermark", "second"), [(0.0, (108, 108)), (0.2, (108, 108)), (0.3, (410, 410))]
)
def test_admission_leaves_the_watermark_free(watermark: float, second: tuple[float, float]) -> None:
    # both take 8 of 10 blocks; if 3 have to stay free, 1 waits for the end of 0
    ends = tokens_ms([(0, 6, 3), (0, 2, 1)], blocks=10, chunk_tokens=100, watermark=watermark)
    assert ends[1] == second


def test_the_watermark_does_not_apply_to_an_empty_instance() -> None:
    assert tokens_ms([(0, 10, 1)], blocks=10, watermark=0.5) == [(110, 110)]
