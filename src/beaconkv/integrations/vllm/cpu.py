"""vLLM's CPU attention with bounded layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backends.cpu_attn import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)

from .backend import BoundedBuilder, BoundedImpl, store_of
from .entries import Views, half_by_half
from .layout import is_readable
from .spec import BoundedSpec

PLAIN = "vec"
"""The instruction set whose layout :func:`half_by_half` reads, and which every CPU has."""


class BoundedCPUImpl(BoundedImpl, CPUAttentionBackendImpl):
    """Attention of one layer."""


class BoundedCPUBuilder(BoundedBuilder, CPUAttentionMetadataBuilder):
    """All layers of a group, before a step."""

    def views(self, spec: BoundedSpec) -> Views:
        layers = get_layers_from_vllm_config(self.vllm_config, Attention, self.layer_names).values()
        # AMX and others pack keys in other tiles.
        if not any(_fits(layers, isa, spec) for isa in (self.isa, PLAIN)):
            raise ValueError(
                f"vLLM's CPU kernels lay out {spec.dtype} keys of {spec.head_size} dimensions in blocks of "
                f"{spec.block_size} in a way that is not supported, or not at all: choose a --block-size that 32 "
                "divides, and a model whose heads vLLM supports"
            )
        self.isa = next(iter(layers)).isa
        return half_by_half


def _fits(layers: Iterable[Any], isa: str, spec: BoundedSpec) -> bool:
    """Set the kernels of these layers. Returns whether :func:`half_by_half` reads the layout of these kernels."""
    cache = torch.zeros(1, spec.num_kv_heads, spec.block_size, 2 * spec.head_size, dtype=spec.dtype)
    for layer in layers:
        layer.isa = isa
    try:
        return is_readable(store_of(layer), half_by_half, cache)
    except RuntimeError:  # these kernels do not support such heads
        return False


class BoundedCPUBackend(CPUAttentionBackend):
    """vLLM's CPU backend; layers with a :class:`BoundedSpec` are bounded."""

    @staticmethod
    def get_impl_cls() -> type[Any]:
        return BoundedCPUImpl

    @staticmethod
    def get_builder_cls() -> type[Any]:
        return BoundedCPUBuilder
