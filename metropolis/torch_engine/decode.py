"""Decoding of a batch of sequences of any lengths, which join and leave at any step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from metropolis.torch_engine.kv import KV
from metropolis.torch_engine.model import Model, finish, project


class DecodeBatch:
    """KV of the sequences that `model` decodes, each in a row of buffers padded to one length."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.lengths: list[int] = []
        """Tokens of each row."""
        shape = model.shape
        self._keys, self._values = (
            [
                torch.empty(
                    (0, shape.kv_heads, 0, shape.head_dim),
                    device=model.device,
                    dtype=model.network.dtype,
                )
                for _ in range(shape.layers)
            ]
            for _ in range(2)
        )

    def bytes_with(self, rows: int, tokens: int) -> int:
        """Size of the buffers once they have held `rows` sequences of at most `tokens` tokens."""
        capacity, room = self._capacity_with(rows, tokens)
        return capacity * room * self._model.kv_bytes_per_token

    def add(self, kv: KV, most_tokens: int) -> None:
        """Append a row for each sequence of the batch `kv`, of at most `most_tokens` in the end."""
        begin = len(self.lengths)
        end = begin + len(kv.keys[0])
        self._reserve(end, most_tokens)
        for buffers, added in ((self._keys, kv.keys), (self._values, kv.values)):
            for buffer, new in zip(buffers, added, strict=True):
                buffer[begin:end, :, : kv.tokens] = new
        self.lengths += [kv.tokens] * (end - begin)

    def kv(self, row: int) -> KV:
        """The KV of a row, as views of buffers that change."""
        length = self.lengths[row]
        return KV(
            [each[row : row + 1, :, :length] for each in self._keys],
            [each[row : row + 1, :, :length] for each in self._values],
        )

    def remove(self, row: int) -> None:
        """Remove a row; the last one takes its place."""
        last = len(self.lengths) - 1
        length = self.lengths.pop()
        if not last:
            self._free()
        elif row != last:
            for buffer in (*self._keys, *self._values):
                buffer[row, :, :length] = buffer[last, :, :length]
            self.lengths[row] = length

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to every row; logits of what follows: rows, vocabulary, in fp32."""
        rows, longest = len(self.lengths), max(self.lengths) + 1
        with torch.inference_mode():
            positions = torch.tensor(self.lengths, device=tokens.device)
            is_known = torch.arange(longest, device=tokens.device) <= positions[:, None]
            mask = None if bool(is_known.all()) else is_known[:, None, None]
            every = torch.arange(rows, device=tokens.device)
            rotary = self._model.rotary(positions[:, None])
            hidden = self._model.embed(tokens[:, None])
            for number, layer in enumerate(self._model.network.model.layers):
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
            self.lengths = [length + 1 for length in self.lengths]
            return self._model.logits(hidden[:, 0])

    def _capacity_with(self, rows: int, tokens: int) -> tuple[int, int]:
        """Rows and tokens of the buffers once they have held so many; rows grow twofold."""
        capacity, _, room, _ = self._keys[0].shape
        return capacity if rows <= capacity else max(rows, 2 * capacity), max(room, tokens)

    def _reserve(self, rows: int, tokens: int) -> None:
        """Enlarge the buffers to at least `rows` and `tokens`."""
        capacity, room = self._capacity_with(rows, tokens)
        used = len(self.lengths)
        for buffers in (self._keys, self._values):
            for number, old in enumerate(buffers):
                if (capacity, room) != (old.shape[0], old.shape[2]):
                    # Zeros, as attention multiplies masked values by 0.
                    new = old.new_zeros((capacity, old.shape[1], room, old.shape[3]))
                    new[:used, :, : old.shape[2]] = old[:used]
                    buffers[number] = new

    def _free(self) -> None:
        for buffers in (self._keys, self._values):
            buffers[:] = [old.new_empty((0, old.shape[1], 0, old.shape[3])) for old in buffers]
