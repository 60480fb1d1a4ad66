"""StreamingLLM: the first entries and the newest ones."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..types import CacheView
from .base import EvictionPolicy, LayerState
from .preset import Preset


@dataclass(frozen=True)
class StreamingLLM(EvictionPolicy, name="streaming_llm"):
    """Attention sinks (the protected prefix, 4 entries by default) and the newest entries.

    Keys keep the rotation of their original positions, as everywhere in this library; the paper
    renumbers the positions within the cache.
    """

    source = "Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453, section 3"
    per_head = True
    presets = {
        "paper": Preset({}, source, prefix=4, every=1, note="evicts at every step; the last budget - 4 entries stay"),
    }

    def score(self, view: CacheView, state: LayerState) -> Tensor:
        return (view.positions - view.now.view(-1, 1, 1)).float()
