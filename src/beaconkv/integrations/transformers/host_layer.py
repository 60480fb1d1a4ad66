"""A bounded layer as transformers sees it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from ...cache import BoundedLayer, LayerStack
from .attention import BOUNDED_OFFSET

NO_ROLLBACK = (
    "a BoundedCache cannot be cropped: what was evicted, and the queries seen since, cannot be taken back. "
    "Assisted and speculative decoding need DynamicCache"
)


class BoundedCacheLayer(CacheLayerMixin):
    """One full-attention layer: lets keys and values pass to the attention function, which stores them.

    Args:
        stack: layers that take decode steps together.
        number: of this layer among them.
    """

    is_compileable = False
    is_croppable = False
    is_sliding = False
    supports_early_init = False

    def __init__(self, stack: LayerStack, number: int) -> None:
        self.stack, self.number = stack, number
        self.num_columns = 0  # tokens fed, padding included: what the host calls the sequence length
        self.is_pending = False  # between update() and the attention function
        self.has_decoded = False  # a step of one token has come: the prompt is complete

    @property
    def layer(self) -> BoundedLayer:
        """The layer by itself."""
        return self.stack.layers[self.number]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if self.is_pending:
            raise RuntimeError(
                f"layer {self.layer.index}: keys came twice without attention between them: "
                "a forward pass broke off; make a new cache or reset() it"
            )
        self.is_pending = True
        return key_states, value_states

    def prepare(self, key: Tensor, value: Tensor, counts: list[int]) -> None:
        """Before the first attention of a forward pass: allocate, or hear of more prompt.

        The prompt is everything before the first step of a single token, in one pass or several.

        Args:
            key, value: the new entries (B, H_kv, m, D).
            counts: real tokens per row.
        """
        if not self.layer.is_open:
            self.stack.open(self.number, key, value, counts)
        elif key.shape[2] > 1 and not self.has_decoded:
            self.layer.extend_prompt(key, counts)
        self.has_decoded |= key.shape[2] == 1

    def attended(self, num_new: int) -> None:
        """The attention function has taken ``num_new`` columns in."""
        self.is_pending = False
        self.num_columns += num_new

    @property
    def keys(self) -> Tensor | None:
        """(B, H_kv, longest row, D): stored keys, in slot order."""
        return self.layer.slab.keys[:, :, : self.layer.slab.longest] if self.layer.is_open else None

    @property
    def values(self) -> Tensor | None:
        """(B, H_kv, longest row, D): stored values, in slot order."""
        return self.layer.slab.values[:, :, : self.layer.slab.longest] if self.layer.is_open else None

    @property
    def is_initialized(self) -> bool:
        return self.layer.is_open

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
        self.num_columns, self.is_pending, self.has_decoded = 0, False, False

    # The host tells every layer; the first of a stack acts for all.

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.number == 0:
            self.stack.select_rows(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.layer.is_open:
            self.reorder_cache(torch.arange(len(self.layer.prompts)).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices.nonzero().flatten() if indices.dtype == torch.bool else indices)

    def crop(self, *args: Any) -> None:
        raise RuntimeError(NO_ROLLBACK)

    def offload(self) -> None:
        raise RuntimeError("a BoundedCache is not offloaded: it is small by design")

    prefetch = offload
