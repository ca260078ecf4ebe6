"""Prefill that starts from caches, the model's own and another's (DroidSpeak §5.4).

The layers run in order, and reused KV is touched only at its layer, so that loading it can overlap
with the layers before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from metropolis.reuse.plan import Band
from metropolis.torch_engine.kv import KV, tokens_in
from metropolis.torch_engine.model import Model, run_layer


class Start(NamedTuple):
    """The caches of a prompt's leading tokens. Caches of one prompt can also serve a batch."""

    own: Sequence[KV] = ()
    """The model's own KV of the first tokens, in consecutive parts."""
    lent: Sequence[KV] = ()
    """Another model's KV of the tokens after `own`, with the inputs (E) of each band's first
    layer."""
    recompute: Sequence[Band] = ()
    """The layers that the model computes itself for the tokens of `lent`. A band starts from the
    other model's input (E) of its first layer; a band at layer 0 starts from the model's own
    embeddings."""


class Prefilled(NamedTuple):
    """The result of a prefill."""

    logits: Tensor
    """(batch, vocabulary) in fp32, of the last token; no rows if the caches have all tokens."""
    kv: KV
    """KV of all tokens, with the requested inputs (E) unless a cache lacks them."""


NOTHING = Start()


def all_inputs(layers: int) -> tuple[Band, ...]:
    """A `recompute` with which every layer's KV is computed from the other model's E (§5.2)."""
    return tuple(Band(layer, layer) for layer in range(layers))


def prefill(
    model: Model, tokens: Tensor, start: Start = NOTHING, keep_inputs: Collection[int] = ()
) -> Prefilled:
    """Compute what `start` lacks of `tokens` (batch, tokens), which have equal lengths.

    `keep_inputs`: the layers whose inputs (E) are returned. The tokens after those of `start` pass
    all layers. The last layer of a band computes only keys and values of the lent tokens.
    """
    own_tokens, lent_tokens = tokens_in(start.own), tokens_in(start.lent)
    fresh_tokens = tokens.shape[1] - own_tokens - lent_tokens
    layers = model.network.model.layers
    bands = {
        layer: band
        for band in (start.recompute if lent_tokens else ())
        for layer in range(band.first, band.last + 1)
    }
    keys, values, inputs = [], [], {}
    with torch.inference_mode():
        embedded = model.embed(tokens[:, own_tokens:])
        shared, hidden = embedded[:, :lent_tokens], embedded[:, lent_tokens:]
        positions = torch.arange(own_tokens, tokens.shape[1], device=tokens.device)[None]
        cos, sin = model.rotary(positions)
        for number, layer in enumerate(layers):
            if number in keep_inputs and all(number in part.inputs for part in start.own):
                inputs[number] = _joined_inputs(start.own, number, hidden)
            band = bands.get(number)
            past = [(part.keys[number], part.values[number]) for part in start.own]
            if band is None:
                past += [(part.keys[number], part.values[number]) for part in start.lent]
            elif number == band.first > 0:
                shared = _joined_inputs(start.lent, number, shared[:, :0])
            goes_on = band is not None and number < band.last
            computed = hidden if band is None else torch.cat((shared, hidden), 1)
            outputs = computed.shape[1] if goes_on else fresh_tokens
            if number == len(layers) - 1:
                outputs = min(1, fresh_tokens)
            first = cos.shape[1] - computed.shape[1]
            rotary = cos[:, first:], sin[:, first:]
            output, layer_keys, layer_values = run_layer(layer, computed, past, rotary, outputs)
            if goes_on:
                shared, hidden = output[:, :lent_tokens], output[:, lent_tokens:]
            else:
                hidden = output
            keys.append(layer_keys)
            values.append(layer_values)
        logits = model.logits(hidden[:, -1:].flatten(0, 1))
    return Prefilled(logits, KV(keys, values, {} if lent_tokens else inputs))


def _joined_inputs(parts: Sequence[KV], layer: int, rest: Tensor) -> Tensor:
    """The parts' inputs of `layer` and then `rest`, for the batch of `rest`."""
    if not parts:
        return rest
    return torch.cat([*(part.inputs[layer].expand(len(rest), -1, -1) for part in parts), rest], 1)
