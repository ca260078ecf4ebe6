"""A model whose layers are run one by one, on the modules of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from metropolis.types import MetropolisError


class Shape(NamedTuple):
    """What two models must have in common for one to start from the other's cache."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int

    def __str__(self) -> str:
        return ", ".join(f"{value} {name}" for name, value in self._asdict().items())


@dataclass(frozen=True, slots=True)
class Model:
    """A causal language model with Llama's architecture."""

    name: str
    network: Any
    """A LlamaForCausalLM, or one whose modules have the same names and meaning."""
    tokenizer: Any = None
    """A tokenizer of transformers; None is enough where prompts and answers are tokens."""

    @property
    def shape(self) -> Shape:
        """The sizes of the model."""
        config = self.network.config
        return Shape(
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=self.network.model.layers[0].self_attn.head_dim,
            hidden=config.hidden_size,
        )

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary; token ids are smaller."""
        return int(self.network.config.vocab_size)

    @property
    def positions(self) -> int:
        """Maximum number of tokens of a prompt and its answer.

        Limited to the sliding window, if there is one: within it, attention covers all tokens.
        """
        config = self.network.config
        window = getattr(config, "sliding_window", None)
        return int(min(config.max_position_embeddings, window or config.max_position_embeddings))

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokens that end an answer."""
        ends = self.network.generation_config.eos_token_id
        return frozenset([ends] if isinstance(ends, int) else ends or ())

    @property
    def device(self) -> torch.device:
        """The device that holds the weights."""
        return self.network.device

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        shape = self.shape
        return 2 * shape.layers * shape.kv_heads * shape.head_dim * self._number_bytes

    @property
    def input_bytes_per_token(self) -> int:
        """Bytes of one token's input (E) to one layer."""
        return self.shape.hidden * self._number_bytes

    @property
    def _number_bytes(self) -> int:
        return int(self.network.dtype.itemsize)

    def embed(self, tokens: Tensor) -> Tensor:
        """The input of the first layer for tokens of any shape."""
        return self.network.model.embed_tokens(tokens)

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the rotary embedding at `positions` (batch, tokens)."""
        like = self.network.model.embed_tokens.weight  # for its dtype
        cos, sin = self.network.model.rotary_emb(like, positions)
        return cos, sin

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (rows, vocabulary) in fp32 from the last layer's output (rows, hidden)."""
        return self.network.lm_head(self.network.model.norm(hidden)).float()


def require_variants(models: Sequence[Model]) -> None:
    """Raise MetropolisError unless each model can start from the cache of any other.

    They must have the same shape, precision and device, and a token the same text in all.
    """
    first = models[0]
    words: dict[int, tuple[str, str]] = {}
    """Token -> its text, and the model that says so."""
    for model in models:
        if model.shape != first.shape:
            _refuse(first, model, f"{first.shape}", f"{model.shape}", "be variants of one model")
        if model.network.dtype != first.network.dtype:
            dtypes = f"{first.network.dtype}", f"{model.network.dtype}"
            _refuse(first, model, *dtypes, "have the same precision")
        vocabulary = {} if model.tokenizer is None else model.tokenizer.get_vocab()
        for word, token in vocabulary.items():
            known, other = words.setdefault(token, (word, model.name))
            if known != word:
                raise MetropolisError(
                    f"{other!r} and {model.name!r} cannot share caches: token {token} is {known!r} "
                    f"of one and {word!r} of the other; their tokenizers should agree"
                )


def _refuse(one: Model, other: Model, this: str, that: str, should: str) -> None:
    raise MetropolisError(
        f"{one.name!r} and {other.name!r} cannot share caches: one has {this}, the other {that}; "
        f"they should {should}"
    )


def project(
    layer: Any, normed: Tensor, rotary: tuple[Tensor, Tensor], outputs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of the last `outputs` tokens, keys and values of all (batch, heads, tokens, …)."""
    attention = layer.self_attn
    cos, sin = rotary
    first = normed.shape[1] - outputs
    queries, keys, values = (
        part.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        for part in (
            attention.q_proj(normed[:, first:]),
            attention.k_proj(normed),
            attention.v_proj(normed),
        )
    )
    _, keys = apply_rotary_pos_emb(keys[:, :0], keys, cos, sin)
    queries, _ = apply_rotary_pos_emb(queries, queries[:, :0], cos[:, first:], sin[:, first:])
    return queries, keys, values


def finish(layer: Any, hidden: Tensor, attended: Tensor) -> Tensor:
    """The layer's output, from its input and the attended values (batch, tokens, heads · dim)."""
    hidden = hidden + layer.self_attn.o_proj(attended)
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden))


def run_layer(
    layer: Any,
    hidden: Tensor,
    past: Sequence[tuple[Tensor, Tensor]],
    rotary: tuple[Tensor, Tensor],
    outputs: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer on consecutive tokens that follow those of `past`.

    `hidden` is its input (batch, tokens, hidden), `past` the keys and values of the tokens before,
    in order. Returns the output of the last `outputs` tokens, and the keys and values of all,
    those of `past` included. Of the other tokens nothing but keys and values is computed.
    """
    queries, keys, values = project(layer, layer.input_layernorm(hidden), rotary, outputs)
    batch = len(hidden)
    if past:
        keys = torch.cat([*(each.expand(batch, -1, -1, -1) for each, _ in past), keys], 2)
        values = torch.cat([*(each.expand(batch, -1, -1, -1) for _, each in past), values], 2)
    if not outputs:
        return hidden[:, :0], keys, values
    if outputs == keys.shape[2]:
        mask = {"is_causal": True}
    elif outputs == 1:
        mask = {}
    else:
        # SDPA's own causal mask aligns the first query with the first key.
        mask = {"attn_mask": causal_lower_right(outputs, keys.shape[2])}
    attended = scaled_dot_product_attention(queries, keys, values, **mask, enable_gqa=True)
    attended = attended.transpose(1, 2).flatten(2)
    return finish(layer, hidden[:, -outputs:], attended), keys, values
