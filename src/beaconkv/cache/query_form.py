"""What the queries of layers must have in common before their heads are stacked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..types import Rope, RotaryFn


@dataclass(frozen=True)
class QueryForm:
    """Shape and types of a layer's queries, and the function that rotates them."""

    heads: int
    dim: int
    dtype: torch.dtype
    rotary_dim: int
    rotary_dtype: torch.dtype
    apply: RotaryFn

    @classmethod
    def of(cls, queries: Tensor, rope: Rope) -> QueryForm:
        """The form of queries (B, H, m, D), rotated by a rope."""
        return cls(queries.shape[1], queries.shape[3], queries.dtype, rope.cos.shape[-1], rope.cos.dtype, rope.apply)
