"""What a model keeps of tokens: keys and values of every layer, and inputs of some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KV:
    """Keys and values of consecutive tokens; the tensors are never changed.

    Keys are those after the rotary embedding, so that they belong to their positions.
    """

    keys: Sequence[Tensor]
    """By layer: batch, kv_heads, tokens, head_dim."""
    values: Sequence[Tensor]
    """Likewise."""
    inputs: Mapping[int, Tensor] = field(default_factory=dict)
    """E, the input of a layer before its norm, by layer: batch, tokens, hidden."""

    @property
    def tokens(self) -> int:
        """Their number."""
        return int(self.keys[0].shape[2])

    @property
    def bytes(self) -> int:
        """The size of all tensors."""
        return sum(one.nbytes for one in (*self.keys, *self.values, *self.inputs.values()))

    def part(self, begin: int, end: int) -> KV:
        """The tokens from `begin` to before `end`, as views of the same memory."""
        return KV(
            [each[:, :, begin:end] for each in self.keys],
            [each[:, :, begin:end] for each in self.values],
            {layer: each[:, begin:end] for layer, each in self.inputs.items()},
        )

    def copy(self) -> KV:
        """The same in memory of its own."""
        return KV(
            [each.clone(memory_format=torch.contiguous_format) for each in self.keys],
            [each.clone(memory_format=torch.contiguous_format) for each in self.values],
            {
                layer: each.clone(memory_format=torch.contiguous_format)
                for layer, each in self.inputs.items()
            },
        )


def tokens_in(parts: Sequence[KV]) -> int:
    """The tokens of consecutive parts."""
    return sum(part.tokens for part in parts)
