"""A bounded layer as transformers sees it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from ...cache import BoundedLayer, LayerStack
from .attention import BOUNDED_OFFSET
from .reading import HostCut, IncompleteChunk

NO_ROLLBACK = (
    "a BoundedCache cannot be cropped: what was evicted, and the queries seen since, cannot be taken back. "
    "Assisted and speculative decoding need DynamicCache"
)


class BoundedCacheLayer(CacheLayerMixin):
    """One full-attention layer: lets keys and values pass to the attention function, which stores them.

    Args:
        stack: layers that take decode steps together.
        number: index of this layer among them.
    """

    is_compileable = False
    is_croppable = False
    is_sliding = False
    supports_early_init = False

    def __init__(self, stack: LayerStack, number: int) -> None:
        self.stack, self.number = stack, number
        self._start()

    def _start(self) -> None:
        self.num_columns = 0  # tokens fed, padding included: what the host calls the sequence length
        self.is_announced = False  # the model's own attention module is about to call update()
        self.is_pending = False  # between update() and the attention function
        self.has_decoded = False  # a step of one token has come: the prompt is complete
        self.waiting: IncompleteChunk | None = None  # tokens of the prompt whose chunk is not complete
        self._taken: tuple[HostCut, list[int]] | None = (
            None  # how the host cuts the prompt; tokens stored of it, by row
        )
        self._columns: Tensor | bool = False  # see column_positions(); True: the entries as they are

    @property
    def layer(self) -> BoundedLayer:
        """The layer by itself."""
        return self.stack.layers[self.number]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_announced:
            raise ValueError(
                f"layer {self.layer.index}: a model that this BoundedCache was not made for uses it, or one that was "
                "copied since; make a cache with that model"
            )
        if self.is_pending:
            raise RuntimeError(
                f"layer {self.layer.index}: keys came twice without attention between them: "
                "a forward pass broke off; make a new cache or reset() it"
            )
        self.is_pending = True
        return key_states, value_states

    def prepare(self, key: Tensor, value: Tensor, counts: list[int], is_prompt: bool = False) -> None:
        """Before the first attention of a forward pass: allocate, or extend the prompt.

        The prompt is everything before the first step of a single token, in one pass or several.

        Args:
            key, value: the new entries (B, H_kv, m, D).
            counts: number of real tokens per row.
            is_prompt: known to be of the prompt, also where it is a single token.
        """
        is_prompt |= key.shape[2] > 1
        if not self.layer.is_allocated:
            self.stack.allocate(self.number, key, value, counts)
        elif is_prompt and not self.has_decoded:
            self.layer.extend_prompt(key, counts)
        self.has_decoded |= not is_prompt

    def taken_of(self, cut: HostCut | None, rows: int) -> list[int]:
        """Number of tokens per row, stored of the prompt that the host cuts in this way; 0 for another prompt."""
        return self._taken[1] if self._taken is not None and self._taken[0] is cut else [0] * rows

    def take(self, cut: HostCut | None, counts: list[int]) -> None:
        """Count tokens that were stored. counts: their number per row."""
        if cut is not None:
            taken = self.taken_of(cut, len(counts))
            self._taken = cut, [old + new for old, new in zip(taken, counts, strict=True)]

    def attended(self, num_new: int) -> None:
        """The attention function has taken ``num_new`` columns in."""
        self.is_pending = self.is_announced = False
        self.num_columns += num_new

    def note_columns(self, weights: Tensor | None) -> None:
        """Before a decode step is observed: the kernel gave attention weights, or None."""
        self._columns = weights is not None
        self.stack.keeps_columns = self._columns

    def note_chunk_columns(self, stored: int, real: Tensor | None, counts: list[int], num_new: int) -> None:
        """Called before a chunk is observed whose attention weights are given.

        Args:
            stored: number of entries before the new ones.
            real: (B, num_new) bool, False where a token is padding; or None.
            counts: number of real tokens per row.
        """
        slab = self.layer.slab
        old = self.layer.slab.slot_positions()[:, :, :stored]
        start = slab.num_seen_on_device.long()[:, None]
        order = torch.ones(len(counts), num_new, dtype=torch.bool, device=old.device) if real is None else real
        new = (start + order.cumsum(dim=1) - 1).masked_fill(~order, -1).int()
        self._columns = torch.cat([old, new[:, None].expand(-1, old.shape[1], -1)], dim=2)

    def column_positions(self) -> Tensor | None:
        """(B, H_kv, N) int32: the tokens behind the columns of the last attention weights; None: there were none."""
        if isinstance(self._columns, Tensor):
            return self._columns
        return self.stack.column_positions(self.number) if self._columns else None

    @property
    def keys(self) -> Tensor | None:
        """(B, H_kv, longest row, D): stored keys, in slot order."""
        return self.layer.slab.keys[:, :, : self.layer.slab.longest] if self.layer.is_allocated else None

    @property
    def values(self) -> Tensor | None:
        """(B, H_kv, longest row, D): stored values, in slot order."""
        return self.layer.slab.values[:, :, : self.layer.slab.longest] if self.layer.is_allocated else None

    @property
    def is_initialized(self) -> bool:
        return self.layer.is_allocated

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Slabs are allocated with the first keys."""

    def get_seq_length(self, *args: Any) -> int:
        return self.num_columns

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name up to transformers 4.57

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        num_new = query_length if isinstance(query_length, int) else query_length.shape[0]  # cache_position in 4.57
        return self.num_columns + num_new, BOUNDED_OFFSET

    def reset(self) -> None:
        self.stack.reset()
        self._start()

    # The host calls every layer; the first of a stack acts for all.

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.number == 0:
            self.stack.select_rows(beam_idx)

    def crop(self, *args: Any) -> None:
        raise RuntimeError(NO_ROLLBACK)

    def offload(self) -> None:
        raise RuntimeError("a BoundedCache does not support offloading")

    prefetch = offload
