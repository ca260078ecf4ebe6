"""Prefill from caches: with one model as sender and receiver nothing changes."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metropolis.reuse.plan import Band
from metropolis.torch_engine.decode import DecodeBatch
from metropolis.torch_engine.generation import generate_greedy
from metropolis.torch_engine.kv import KV
from metropolis.torch_engine.model import Model, require_variants
from metropolis.torch_engine.prefill import Start, all_inputs, prefill
from metropolis.types import MetropolisError
from tests.torch_engine.models import LAYERS, prompts, tiny

MODELS = {kind: tiny(0, kind) for kind in ("llama", "mistral")}
OTHER = tiny(1)
EVERY = range(LAYERS)
ALL_BANDS = [Band(first, last) for first in EVERY for last in range(first, LAYERS)]


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(torch.allclose(one, other, rtol=1e-5, atol=1e-5))


def same(one: KV, other: KV) -> bool:
    pairs = zip([*one.keys, *one.values], [*other.keys, *other.values], strict=True)
    return all(close(mine, theirs) for mine, theirs in pairs)


@pytest.mark.parametrize("kind", MODELS)
def test_a_prefill_equals_that_of_transformers(kind: str) -> None:
    model, tokens = MODELS[kind], prompts(3, 50)
    with torch.inference_mode():
        whole = model.network(tokens, output_hidden_states=True, use_cache=True)
    found = prefill(model, tokens, keep_inputs=EVERY)
    assert close(found.logits, whole.logits[:, -1].float())
    for layer in EVERY:
        assert close(found.kv.inputs[layer], whole.hidden_states[layer])
        assert close(found.kv.keys[layer], whole.past_key_values.layers[layer].keys)
        assert close(found.kv.values[layer], whole.past_key_values.layers[layer].values)


@st.composite
def bands(draw: st.DrawFn) -> list[Band]:
    """Any bands that a plan may have."""
    kept = draw(st.lists(st.booleans(), min_size=LAYERS, max_size=LAYERS))
    ends = [n for n in range(LAYERS + 1) if (n < LAYERS and kept[n]) != (n > 0 and kept[n - 1])]
    return [Band(first, end - 1) for first, end in zip(ends[::2], ends[1::2], strict=True)]


@given(
    kind=st.sampled_from([*MODELS]),
    recompute=bands() | st.sampled_from([all_inputs(LAYERS)]),
    lengths=st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(1, 40)),
    cuts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    batch=st.integers(1, 3),
)
@settings(deadline=None, max_examples=200)
def test_its_own_cache_changes_nothing(
    kind: str,
    recompute: list[Band],
    lengths: tuple[int, int, int],
    cuts: tuple[float, float],
    batch: int,
) -> None:
    """Own parts, then lent parts, then fresh tokens, for any bands."""
    own, lent, fresh = lengths
    model, tokens = MODELS[kind], prompts(batch, own + lent + fresh)
    plain = prefill(model, tokens, keep_inputs=EVERY)
    own_cut, lent_cut = int(own * cuts[0]), own + int(lent * cuts[1])
    start = Start(
        [plain.kv.part(0, own_cut), plain.kv.part(own_cut, own)],
        [plain.kv.part(own, lent_cut), plain.kv.part(lent_cut, own + lent)],
        recompute,
    )
    before = plain.kv.copy()
    found = prefill(model, tokens, start, keep_inputs=EVERY)
    assert close(found.logits, plain.logits)
    assert same(found.kv, plain.kv)
    assert all(map(torch.equal, before.keys, plain.kv.keys))
    assert all(map(torch.equal, before.inputs.values(), plain.kv.inputs.values()))
    if lent:
        assert found.kv.inputs == {}
    else:
        assert all(close(found.kv.inputs[layer], plain.kv.inputs[layer]) for layer in EVERY)
    alone = prefill(model, tokens[-1:], start._replace(
        own=[KV([k[-1:] for k in p.keys], [v[-1:] for v in p.values]) for p in start.own],
        lent=[
            KV([k[-1:] for k in p.keys], [v[-1:] for v in p.values],
               {layer: e[-1:] for layer, e in p.inputs.items()})
            for p in start.lent
        ],
    ))  # fmt: skip
    assert close(alone.logits, plain.logits[-1:])


@pytest.mark.parametrize("band", ALL_BANDS, ids=str)
@pytest.mark.parametrize("shared", [1, 31, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_band_is_exact_for_the_sender_itself(
    band: Band, shared: int, dtype: torch.dtype
) -> None:
    """The logits are equal bit for bit, also in the precision of real models."""
    network = copy.deepcopy(MODELS["llama"].network).to(dtype)
    model, tokens = Model("small", network), prompts(2, 80)
    plain = prefill(model, tokens, keep_inputs=EVERY)
    found = prefill(model, tokens, Start((), [plain.kv.part(0, shared)], [band]))
    assert torch.equal(found.logits, plain.logits)


def test_all_layers_recomputed_are_a_prefill_of_the_receiver() -> None:
    model, tokens = MODELS["llama"], prompts(2, 60)
    lent = prefill(OTHER, tokens[:, :50], keep_inputs=EVERY).kv
    found = prefill(model, tokens, Start((), [lent], [Band(0, LAYERS - 1)]))
    plain = prefill(model, tokens)
    assert close(found.logits, plain.logits)
    assert same(found.kv, plain.kv)


def test_layers_outside_the_bands_have_the_senders_keys_and_values() -> None:
    model, tokens, band = MODELS["llama"], prompts(1, 60), Band(1, 3)
    lent = prefill(OTHER, tokens[:, :50], keep_inputs=EVERY).kv
    found = prefill(model, tokens, Start((), [lent], [band]))
    for layer in EVERY:
        is_lent = torch.equal(found.kv.keys[layer][:, :, :50], lent.keys[layer])
        assert is_lent == (layer not in range(1, 4))
    with torch.inference_mode():  # the first layer of the band: projections of the sender's input
        attention = model.network.model.layers[1].self_attn
        values = attention.v_proj(model.network.model.layers[1].input_layernorm(lent.inputs[1]))
    assert close(values, found.kv.values[1][:, :, :50].transpose(1, 2).flatten(2))
    reused = prefill(model, tokens, Start((), [lent]))
    assert not close(reused.logits, prefill(model, tokens).logits)


def test_caches_of_one_prompt_serve_a_batch() -> None:
    model, context = MODELS["llama"], prompts(1, 30)
    tokens = torch.cat((context.expand(4, -1), prompts(4, 9, seed=1)), 1)
    lent = prefill(OTHER, context, keep_inputs=EVERY).kv
    together = prefill(model, tokens, Start((), [lent], [Band(2, 3)])).logits
    # The context alone, for all questions; no token of it is fresh.
    mixed = prefill(model, context, Start((), [lent], [Band(2, 3)]))
    assert mixed.logits.shape == (0, together.shape[1])
    assert close(prefill(model, tokens, Start([mixed.kv])).logits, together)
    for row, logits in zip(tokens, together, strict=True):
        assert close(prefill(model, row[None], Start((), [lent], [Band(2, 3)])).logits[0], logits)


@given(
    lengths=st.lists(st.integers(1, 80), min_size=1, max_size=4),
    leaves=st.lists(st.integers(0, 3), max_size=3),
)
@settings(deadline=None, max_examples=50)
def test_sequences_of_any_lengths_decode_together(lengths: list[int], leaves: list[int]) -> None:
    """Each row's logits are those of a prefill of its tokens, whoever joins and leaves."""
    model, batch, rows = MODELS["llama"], DecodeBatch(MODELS["llama"]), []
    for number, length in enumerate(lengths):
        tokens = prompts(1, length, seed=number)
        batch.add(prefill(model, tokens).kv, length + 8)
        rows.append(tokens)
        _step(model, batch, rows)
    for leaving in leaves:
        if leaving < len(rows) - 1:
            batch.remove(leaving)
            rows[leaving] = rows.pop()
            _step(model, batch, rows)


def _step(model: Model, batch: DecodeBatch, rows: list[torch.Tensor]) -> None:
    added = prompts(1, len(rows), seed=len(rows))[0]
    rows[:] = [torch.cat((row, new[None, None]), 1) for row, new in zip(rows, added, strict=True)]
    for row, logits in zip(rows, batch.step(added), strict=True):
        assert close(logits, prefill(model, row).logits[0])


def test_greedy_answers_are_those_of_transformers() -> None:
    model, tokens = MODELS["llama"], prompts(3, 20)
    with torch.inference_mode():
        whole = model.network.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=12, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    together = [tokens[0, 15:], tokens[0, 15:16], tokens[0, 15:18]]
    for row, expected in zip(tokens, whole, strict=True):
        context = row[None, :15]
        plain = prefill(model, context, keep_inputs=EVERY).kv
        reused = prefill(
            model, context, Start([plain.part(0, 5)], [plain.part(5, 15)], [Band(2, 3)])
        )
        for kv in (plain, reused.kv):
            answers = generate_greedy(model, kv, [row[15:], *together], 12)
            assert torch.equal(answers[0], expected[20:])
    for question in together:  # each sees the context and itself
        assert torch.equal(
            generate_greedy(model, kv, [question], 12)[0],
            generate_greedy(model, kv, [*together, question], 12)[-1],
        )


def test_models_of_unlike_shape_share_nothing() -> None:
    require_variants([*MODELS.values()])
    with pytest.raises(MetropolisError, match=r"5 layers.*6 layers.*variants of one model"):
        require_variants([MODELS["llama"], tiny(2, num_hidden_layers=6)])
