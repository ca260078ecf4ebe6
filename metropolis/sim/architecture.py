"""Profiles of models that were not measured, derived from their architecture.

`MODEL/GPU-tpN` is the profile of `architectures.toml`'s MODEL on N GPUs of `GPUS` with tensor
parallelism. With the fields of a profile (`metropolis/sim/profiles/llama-3-8b.toml`), P the bytes
of the weights, L the layers, d the hidden size, n the GPUs of an instance, and V the bytes of a
token's keys and values:

    w = P / n / (bandwidth * e_w) + L * r_w           weights are read; all-reduces wait
    g = F / n / (peak * e_g) + A(n)                   F: 2 operations for each active parameter
    h = L * (h_0 + r_h)                               launches
    b = b_0
    k = V / n / (bandwidth * e_k)
    q = 4 * L * d / n / (peak * e_q)                  attention: scores and sums
    c = L * c_0
    A(n) = 2 * L * 2 d * 2 (n - 1) / n / link         bytes of two all-reduces a layer, in a ring
    KV = (n * (memory * 0.9 - 1.75e9) - P) / V        tokens
    max_sequences = 256                               vLLM's default

e_w, e_g, e_k, e_q, h_0, b_0 and c_0 follow from the measured profile llama-3-8b/a100, and r_w, r_h
and the link within an NVLink group from llama-3-70b/a100-tp4; r_w and r_h are 0 on one GPU. Beyond
an NVLink group the link is PCIe. A derived profile is an estimate.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from metropolis._core import Profile
from metropolis.types import MetropolisError

_FILE = Path(__file__).parent / "architectures.toml"
_VALUE_BYTES = 2
_MEMORY_SHARE = 0.9
_RESERVED_BYTES = 1.75e9
"""Memory of a GPU reserved for activations and CUDA graphs, as in the measured profiles."""


_Billions: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e5)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class Architecture(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shape of a model; see `architectures.toml`."""

    parameters: _Billions
    layers: _Count
    hidden: _Count
    heads: _Count
    kv_heads: _Count
    context_tokens: Annotated[int, msgspec.Meta(ge=2, le=1 << 22)]
    active_parameters: _Billions | None = None
    head_values: _Count | None = None

    def __post_init__(self) -> None:
        if self._head_values < 1:
            raise ValueError(f"{self.heads} heads are more than hidden = {self.hidden}")

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights, as bfloat16."""
        return self.parameters * 1e9 * _VALUE_BYTES

    @property
    def flops_per_token(self) -> float:
        """Operations for a token, without attention."""
        return 2e9 * (self.active_parameters or self.parameters)

    @property
    def attention_flops(self) -> float:
        """Operations for a pair of tokens, one of which attends to the other."""
        return 4.0 * self.layers * self._head_values * self.heads

    def kv_bytes(self, tensor_parallel: int) -> int:
        """Bytes of a token's keys and values; each GPU holds at least one head."""
        heads = max(self.kv_heads, tensor_parallel)
        return 2 * self.layers * heads * self._head_values * _VALUE_BYTES

    def divides_by(self, tensor_parallel: int) -> bool:
        """Whether that many GPUs can share its heads."""
        return self.heads % tensor_parallel == 0

    @property
    def _head_values(self) -> int:
        return self.head_values or self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class Gpu:
    """A card, and its links to others in the same machine."""

    memory_bytes: float
    bytes_per_s: float
    flops_per_s: float
    pcie_bytes_per_s: float
    """0.8 of the bandwidth of PCIe x16 in one direction, as in the profiles."""
    nvlink_group: int
    """Number of GPUs that NVLink connects with each other."""


GPUS = {
    "a100-80g": Gpu(80 * 2**30, 2.039e12, 312e12, 25e9, 2),
    "a40": Gpu(48 * 2**30, 0.696e12, 149.7e12, 25e9, 2),
}
"""Name -> card, from its data sheet. NVLink connects pairs, as in SamuLLM's machine (§5)."""


@dataclass(frozen=True, slots=True)
class _Constants:
    weights: float
    products: float
    kv: float
    attention: float
    launch_ms: float
    sequence_ms: float
    prefill_ms: float
    wait_w_ms: float
    wait_h_ms: float
    link_bytes_per_s: float


@cache
def architectures() -> dict[str, Architecture]:
    """All architectures by model name."""
    content = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return msgspec.convert(content, dict[str, Architecture])


def derived_profile(
    model: Architecture, gpu: Gpu, tensor_parallel: int, one: Profile, four: Profile
) -> Profile:
    """The profile of `model`; `one` and `four` are those measured on one and four cards.

    Raises MetropolisError if the heads cannot be divided or the memory does not suffice.
    """
    n = tensor_parallel
    if not model.divides_by(n):
        raise MetropolisError(f"{model.heads} heads cannot be divided among {n} GPUs")
    card = GPUS["a100-80g"]
    constants = _constants(one, four, card)
    kv_bytes = model.kv_bytes(n)
    room = n * (gpu.memory_bytes * _MEMORY_SHARE - _RESERVED_BYTES) - model.weight_bytes
    tokens = int(room // kv_bytes)
    if tokens < 1:
        raise MetropolisError(
            f"{n} x {gpu.memory_bytes / 2**30:.0f} GiB cannot hold weights of "
            f"{model.weight_bytes / 1e9:.1f} GB and their caches"
        )
    is_divided = n > 1
    link = constants.link_bytes_per_s if n <= gpu.nvlink_group else gpu.pcie_bytes_per_s
    layers = model.layers
    return Profile(
        w_ms=model.weight_bytes / n / (gpu.bytes_per_s * constants.weights) * 1e3
        + is_divided * layers * constants.wait_w_ms,
        g_ms=model.flops_per_token / n / (gpu.flops_per_s * constants.products) * 1e3
        + _reduced_bytes(model, n) / link * 1e3,
        h_ms=layers * (constants.launch_ms + is_divided * constants.wait_h_ms),
        b_ms=constants.sequence_ms,
        k_ms=kv_bytes / n / (gpu.bytes_per_s * constants.kv) * 1e3,
        q_ms=model.attention_flops / n / (gpu.flops_per_s * constants.attention) * 1e3,
        c_ms=layers * constants.prefill_ms,
        kv_capacity_tokens=tokens,
        kv_bytes_per_token=kv_bytes,
        pcie_gb_per_s=n * gpu.pcie_bytes_per_s / 1e9,
        host_gb=64.0 * n,
        max_sequences=256,
    )


def _constants(one: Profile, four: Profile, card: Gpu) -> _Constants:
    small, large = architectures()["llama-3-8b"], architectures()["llama-3-70b"]
    weights = small.weight_bytes / (card.bytes_per_s * one.w_ms * 1e-3)
    products = small.flops_per_token / (card.flops_per_s * one.g_ms * 1e-3)
    launch_ms = one.h_ms / small.layers
    read_ms = large.weight_bytes / 4 / (card.bytes_per_s * weights) * 1e3
    computed_ms = large.flops_per_token / 4 / (card.flops_per_s * products) * 1e3
    return _Constants(
        weights=weights,
        products=products,
        kv=small.kv_bytes(1) / (card.bytes_per_s * one.k_ms * 1e-3),
        attention=small.attention_flops / (card.flops_per_s * one.q_ms * 1e-3),
        launch_ms=launch_ms,
        sequence_ms=one.b_ms,
        prefill_ms=one.c_ms / small.layers,
        wait_w_ms=(four.w_ms - read_ms) / large.layers,
        wait_h_ms=four.h_ms / large.layers - launch_ms,
        link_bytes_per_s=_reduced_bytes(large, 4) / ((four.g_ms - computed_ms) * 1e-3),
    )


def _reduced_bytes(model: Architecture, tensor_parallel: int) -> float:
    """Bytes that a GPU sends for a token."""
    n = tensor_parallel
    return 2 * model.layers * model.hidden * _VALUE_BYTES * 2 * (n - 1) / n
