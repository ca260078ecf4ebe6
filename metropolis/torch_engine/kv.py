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
    """By layer: (batch, kv_heads, tokens, head_dim)."""
    values: Sequence[Tensor]
    """By layer: (batch, kv_heads, tokens, head_dim)."""
    inputs: Mapping[int, Tensor] = field(default_factory=dict)
    """Layer -> its input before the norm (E): (batch, tokens, hidden); only of kept layers."""

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return int(self.keys[0].shape[2])

    @property
    def bytes(self) -> int:
        """Size of all tensors in bytes."""
        return sum(one.nbytes for one in (*self.keys, *self.values, *self.inputs.values()))

    def part(self, begin: int, end: int) -> KV:
        """The tokens from `begin` to before `end`, as views of the same memory."""
        return KV(
            [each[:, :, begin:end] for each in self.keys],
            [each[:, :, begin:end] for each in self.values],
            {layer: each[:, begin:end] for layer, each in self.inputs.items()},
        )

    def copy(self) -> KV:
        """A copy that shares no memory with this one."""
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
