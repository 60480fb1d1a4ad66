"""H2O: the heavy hitters, by the sum of all attention they have received."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import ops
from ..types import CacheView, Rope, Rows, persistent_rows, persistent_zeros
from .base import EvictionPolicy, LayerState, concat_heads, heads_of_layer
from .preset import Preset

PAPER = "Zhang et al., H2O, arXiv 2306.14048"
BLOCK = 128
"""Number of queries of a prompt whose weights exist at the same time."""


class ReceivedAttention(LayerState):
    """Per entry, the attention weights of all queries since it came, summed over the heads of its group.

    The sums are by slot and follow the compaction. Their tensor has as many slots as a row can hold; more only while a
    longer prompt is being evicted.
    """

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.sums: Tensor | None = None  # (B, H_kv, slots) float32, 0 in free slots
        self._full_at = 0  # entries of the fullest row at its eviction

    def observe(self, queries: Tensor, rope: Rope, until_full: list[int], rows: Rows, view: CacheView | None) -> None:
        size, num_new = view.keys.shape[2], queries.shape[2]
        self._full_at = max(self._full_at, size + min(until_full))  # less than size where a prompt is longer
        if self.sums is None or size > self.sums.shape[2]:
            self._reserve(view.keys, max(size, self._full_at))
        received = 0
        for start in range(0, num_new, BLOCK):
            part = queries[:, :, start : start + BLOCK]
            age = torch.arange(num_new - start, num_new - start - part.shape[2], -1, device=part.device) - 1
            at = view.now.unsqueeze(1) - age
            weights = ops.attention_weights(part, view.keys, view.params, at, view.positions)
            received = received + weights.sum(dim=(2, 3))
        if rows.index is None:
            self.sums[:, :, :size] += received
        else:
            self.sums[rows.index, :, :size] += received

    def _reserve(self, like: Tensor, slots: int) -> None:
        """Grow to a number of slots. like: (R, H_kv, ...)."""
        new = persistent_zeros(like, self.batch, like.shape[1], slots, dtype=torch.float32)
        if self.sums is not None:
            kept = min(slots, self.sums.shape[2])
            new[:, :, :kept] = self.sums[:, :, :kept]
        self.sums = new

    def evicted(self, source: Tensor, rows: Rows) -> None:
        kept = ops.gather_entries(rows.take(self.sums), source)
        free = self.sums.shape[2] - kept.shape[2]
        rows.put(self.sums, 2, 0, kept)
        rows.put(self.sums, 2, kept.shape[2], kept.new_zeros(*kept.shape[:2], free))
        if self.sums.shape[2] > self._full_at:  # a longer prompt has been evicted
            self._reserve(self.sums, self._full_at)

    def select_rows(self, index: Tensor, numbers: list[int]) -> None:
        self.batch = len(numbers)
        if self.sums is not None:
            self.sums = persistent_rows(self.sums, index)

    @classmethod
    def stack(cls, states: Sequence[ReceivedAttention]) -> ReceivedAttention | None:
        if cls is not ReceivedAttention:
            return None  # a subclass may hold more than this class can stack
        first = states[0]
        if first.sums is not None:
            first.sums = concat_heads([state.sums for state in states])
        return first

    def unstack(self, count: int) -> list[ReceivedAttention]:
        states = [ReceivedAttention(self.batch) for _ in range(count)]
        for number, state in enumerate(states):
            state.sums = None if self.sums is None else heads_of_layer(self.sums, number, count)
            state._full_at = self._full_at
        return states

    @property
    def nbytes(self) -> int:
        return 0 if self.sums is None else self.sums.nbytes


@dataclass(frozen=True)
class H2O(EvictionPolicy, name="h2o"):
    """Attention summed over all queries, those of the prompt included, and over the heads of the group.

    Half of what stays is the newest entries, the other half the heavy hitters. The paper sums per query
    head; here the heads of a GQA group share their entries, and so their sum. Weights are computed a
    second time, since the model's attention does not return them.
    """

    source = f"{PAPER}, section 4"
    observes_entries = True
    observes_free_slots = True
    per_head = True
    default_protect = "half"
    presets = {
        "paper": Preset({}, f"{PAPER}, Algorithm 1", prefix=0, protect="half", every=1),
    }

    def new_state(self, batch: int) -> ReceivedAttention:
        return ReceivedAttention(batch)

    def score(self, view: CacheView, state: ReceivedAttention) -> Tensor:
        return view.rows.take(state.sums)[:, :, : view.keys.shape[2]].clone()
