"""Decoding of a batch of sequences of any lengths, which join and leave at any step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from metropolis.torch_engine.kv import KV
from metropolis.torch_engine.model import Model, finish, project

SPARE = 2
"""Buffers shrink when their memory is this multiple of what is needed."""


@dataclass(slots=True)
class _Row:
    """The state of the sequence in one row of the batch."""

    tokens: int
    """Number of tokens so far."""
    most_tokens: int
    """Maximum number of tokens at the end."""
    has_inputs: bool


class DecodeBatch:
    """KV of the sequences that `model` decodes, each in a row of buffers padded to one length.

    The inputs (E) of `input_layers` are kept as well, for sequences whose KV has them.
    """

    def __init__(self, model: Model, input_layers: Collection[int] = ()) -> None:
        self._model = model
        self._rows: list[_Row] = []
        shape = model.shape

        def empty(heads: int, size: int) -> Tensor:
            return torch.zeros((0, heads, 0, size), device=model.device, dtype=model.network.dtype)

        self._keys, self._values = (
            [empty(shape.kv_heads, shape.head_dim) for _ in range(shape.layers)] for _ in range(2)
        )
        self._inputs = {layer: empty(1, shape.hidden) for layer in input_layers}
        self._token_bytes = model.kv_bytes_per_token
        self._token_bytes += len(self._inputs) * model.input_bytes_per_token

    @property
    def bytes(self) -> int:
        """Size of the buffers."""
        rows, _, room, _ = self._keys[0].shape
        return int(rows * room * self._token_bytes)

    def bytes_with(self, most_tokens: int) -> int:
        """Size of the buffers with one more sequence of at most `most_tokens` tokens."""
        rows, _, room, _ = self._keys[0].shape
        return int(max(rows, len(self._rows) + 1) * max(room, most_tokens) * self._token_bytes)

    def add(self, kv: KV, most_tokens: int) -> None:
        """Append a row for each sequence of the batch `kv`, of at most `most_tokens` in the end."""
        begin = len(self._rows)
        end = begin + len(kv.keys[0])
        rows, _, room, _ = self._keys[0].shape
        self._resize(max(rows, end), max(room, most_tokens))
        for buffers, added in ((self._keys, kv.keys), (self._values, kv.values)):
            for buffer, new in zip(buffers, added, strict=True):
                buffer[begin:end, :, : kv.tokens] = new
        has_inputs = kv.inputs.keys() >= self._inputs.keys()
        if has_inputs:
            for layer, buffer in self._inputs.items():
                buffer[begin:end, 0, : kv.tokens] = kv.inputs[layer]
        self._rows += [_Row(kv.tokens, most_tokens, has_inputs) for _ in range(begin, end)]

    def kv(self, row: int) -> KV:
        """The KV of a row, as views of buffers that change."""
        length = self._rows[row].tokens
        inputs = self._inputs if self._rows[row].has_inputs else {}
        return KV(
            [each[row : row + 1, :, :length] for each in self._keys],
            [each[row : row + 1, :, :length] for each in self._values],
            {layer: each[row : row + 1, 0, :length] for layer, each in inputs.items()},
        )

    def remove(self, row: int) -> None:
        """Remove a row; the last one takes its place."""
        last = len(self._rows) - 1
        self._rows[row] = self._rows[last]
        self._rows.pop()
        for buffer in self._buffers():
            buffer[row] = buffer[last]
            buffer[last] = 0
        most = max((each.most_tokens for each in self._rows), default=0)
        if SPARE * last * most * self._token_bytes <= self.bytes:
            self._resize(last, most)

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to every row; logits of what follows: rows, vocabulary, in fp32."""
        lengths = [row.tokens for row in self._rows]
        rows, longest = len(lengths), max(lengths) + 1
        with torch.inference_mode():
            positions = torch.tensor(lengths, device=tokens.device)
            is_known = torch.arange(longest, device=tokens.device) <= positions[:, None]
            mask = None if bool(is_known.all()) else is_known[:, None, None]
            every = torch.arange(rows, device=tokens.device)
            rotary = self._model.rotary(positions[:, None])
            hidden = self._model.embed(tokens[:, None])
            for number, layer in enumerate(self._model.network.model.layers):
                if number in self._inputs:
                    self._inputs[number][every, 0, positions] = hidden[:, 0]
                normed = layer.input_layernorm(hidden)
                queries, keys, values = project(layer, normed, rotary, 1)
                self._keys[number][every, :, positions] = keys[:, :, 0]
                self._values[number][every, :, positions] = values[:, :, 0]
                # Query heads that share a key head are rows of one attention.
                grouped = queries.reshape(rows, keys.shape[1], -1, keys.shape[3])
                attended = scaled_dot_product_attention(
                    grouped,
                    self._keys[number][:rows, :, :longest],
                    self._values[number][:rows, :, :longest],
                    attn_mask=mask,
                )
                hidden = finish(layer, hidden, attended.reshape(rows, 1, -1))
            for row in self._rows:
                row.tokens += 1
            return self._model.logits(hidden[:, 0])

    def _buffers(self) -> list[Tensor]:
        return [*self._keys, *self._values, *self._inputs.values()]

    def _resize(self, rows: int, room: int) -> None:
        """Resize the buffers to `rows` rows of `room` tokens; what is in use must fit."""
        used = len(self._rows)
        kept = max((row.tokens for row in self._rows), default=0)

        def resized(old: Tensor) -> Tensor:
            if (old.shape[0], old.shape[2]) == (rows, room):
                return old
            # Zeros, as attention multiplies masked values by 0.
            new = old.new_zeros((rows, old.shape[1], room, old.shape[3]))
            new[:used, :, :kept] = old[:used, :, :kept]
            return new

        for buffers in (self._keys, self._values):
            for number, old in enumerate(buffers):
                buffers[number] = resized(old)
        for layer, old in self._inputs.items():
            self._inputs[layer] = resized(old)
