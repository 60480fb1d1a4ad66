"""vLLM's FlashAttention with bounded layers."""

from __future__ import annotations

from typing import Any

from vllm.v1.attention.backends.flash_attn import (
    FlashAttentionBackend,
    FlashAttentionImpl,
    FlashAttentionMetadataBuilder,
)

from .backend import BoundedBuilder, BoundedImpl
from .entries import Views, side_by_side
from .spec import BoundedSpec


class BoundedFlashImpl(BoundedImpl, FlashAttentionImpl):
    """Attention of one layer."""


class BoundedFlashBuilder(BoundedBuilder, FlashAttentionMetadataBuilder):
    """All layers of a group, before a step."""

    def views(self, spec: BoundedSpec) -> Views:
        return side_by_side


class BoundedFlashBackend(FlashAttentionBackend):
    """vLLM's FlashAttention; layers with a :class:`BoundedSpec` are bounded."""

    @staticmethod
    def get_impl_cls() -> type[Any]:
        return BoundedFlashImpl

    @staticmethod
    def get_builder_cls() -> type[Any]:
        return BoundedFlashBuilder
