"""vLLM's CPU attention with bounded layers."""

from __future__ import annotations

from typing import Any

import torch
from vllm import _custom_ops as kernels
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)

from .backend import BoundedBuilder, BoundedImpl
from .entries import Views, half_by_half
from .spec import BoundedSpec

PLAIN = "vec"
"""The set of instructions whose layout :func:`half_by_half` reads, and which every CPU has."""


class BoundedCPUImpl(BoundedImpl, CPUAttentionBackendImpl):
    """Attention of one layer."""


class BoundedCPUBuilder(BoundedBuilder, CPUAttentionMetadataBuilder):
    """All layers of a group, before a step."""

    def views(self, spec: BoundedSpec) -> Views:
        if not is_readable(self.isa, spec):
            self.isa = PLAIN  # AMX and others pack keys in tiles of their own
            for layer in get_layers_from_vllm_config(self.vllm_config, Attention, self.layer_names).values():
                layer.isa = PLAIN
            if not is_readable(PLAIN, spec):
                raise ValueError(
                    f"vLLM's CPU kernels lay out {spec.dtype} keys of {spec.head_size} dimensions in blocks of "
                    f"{spec.block_size} in a way that is not known, or not at all: choose a --block-size that 32 "
                    "divides, and a model whose heads vLLM supports"
                )
        return half_by_half


def is_readable(isa: str, spec: BoundedSpec) -> bool:
    """Whether :func:`half_by_half` finds what vLLM's kernel for these instructions has written: tried on one block."""
    shape = spec.block_size, spec.num_kv_heads, spec.head_size
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(shape, generator=generator).to(spec.dtype) for _ in range(2))
    cache = torch.zeros(1, spec.num_kv_heads, spec.block_size, 2 * spec.head_size, dtype=spec.dtype)
    halves = cache.view(1, spec.num_kv_heads, 2 * spec.block_size, spec.head_size).chunk(2, dim=2)
    try:
        kernels.cpu_attn_reshape_and_cache(keys, values, *halves, torch.arange(spec.block_size), isa)
    except RuntimeError:
        return False
    found = half_by_half(cache)
    return all(torch.equal(f[0].transpose(0, 1), t) for f, t in zip(found, (keys, values), strict=True))


class BoundedCPUBackend(CPUAttentionBackend):
    """vLLM's CPU backend; layers with a :class:`BoundedSpec` are bounded."""

    @staticmethod
    def get_impl_cls() -> type[Any]:
        return BoundedCPUImpl

    @staticmethod
    def get_builder_cls() -> type[Any]:
        return BoundedCPUBuilder
