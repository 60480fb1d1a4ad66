"""No eviction: the reference in every comparison."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..types import CacheView
from .base import EvictionPolicy, LayerState


@dataclass(frozen=True)
class Full(EvictionPolicy, name="full"):
    """Keep everything; the cache grows with every token and no budget applies."""

    source = "plain attention"
    evicts = False

    def score(self, view: CacheView, state: LayerState) -> Tensor:
        return view.positions.new_zeros(view.positions.shape, dtype=view.keys.dtype).float()
