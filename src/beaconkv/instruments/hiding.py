"""A cache that keeps everything and hides some entries: the model's output without these entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..cache import AttentionInputs
from ..integrations.transformers.cache import BoundedCache
from ..integrations.transformers.call import LayerCall
from ..types import Rope
from .query_recorder import QueryRecorder


class HidingCache(BoundedCache):
    """A full cache of one row; entries can be hidden from the queries to come, and shown again.

    Attributes:
        hidden: Mask of the hidden entries, by layer: (H_kv, n) bool over the first n entries, True for hidden. Other
            layers and entries are visible.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, QueryRecorder(()))
        self.hidden: Mapping[int, Tensor] = {}

    def call(self, index: int, rope: Rope) -> LayerCall:
        call = super().call(index, rope)
        return HidingCall(call.host, call.rope, call.owner, self.hidden.get(index))


@dataclass(frozen=True)
class HidingCall(LayerCall):
    """One attention call in which some entries are hidden.

    Attributes:
        hidden: Mask of the hidden entries (H_kv, n) bool, or None.
    """

    hidden: Tensor | None

    def mask(self, kernel: str, inputs: AttentionInputs, queries: Tensor) -> Tensor | None:
        if self.hidden is None:
            return super().mask(kernel, inputs, queries)
        if kernel.startswith("flash"):
            raise ValueError("flash attention takes no mask for each head: load the model with sdpa or eager")
        num_new, num_entries = queries.shape[2], inputs.keys.shape[2]
        index = torch.arange(num_entries, device=queries.device)
        own = index[num_entries - num_new :].view(1, 1, -1, 1)
        hidden = torch.zeros(self.hidden.shape[0], num_entries, dtype=torch.bool, device=queries.device)
        hidden[:, : self.hidden.shape[1]] = self.hidden
        hidden = hidden.repeat_interleave(queries.shape[1] // hidden.shape[0], dim=0).view(1, -1, 1, num_entries)
        visible = (index <= own) & ~hidden
        if kernel == "sdpa":
            return visible
        return torch.zeros_like(visible, dtype=queries.dtype).masked_fill_(~visible, torch.finfo(queries.dtype).min)
