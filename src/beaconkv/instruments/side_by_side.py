"""Several bounded caches in one forward pass: each holds some rows of the batch.

The model's matrices are multiplied once for all of them, so comparing many methods on one text takes a fraction of
the time. The result of each cache is exactly that of a forward pass of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from ..integrations.transformers.attachment import AnnouncedCache
from ..integrations.transformers.cache import BoundedCache
from ..integrations.transformers.call import LayerCall
from ..integrations.transformers.host_layer import BoundedCacheLayer
from ..types import Rope


class SideBySide(Cache, AnnouncedCache):
    """One cache for the host, made of several, each for an equal part of the batch, in order.

    It measures many methods on one text. Unlike a single cache, it does not compare the input with what it holds.

    Args:
        caches: New caches, all of one model.

    Example:
        >>> cache = SideBySide([BoundedCache(model, policy, 96) for policy in ("beaconkv", "rkv")])
        >>> ids = torch.tensor([chain, chain])  # a row for each cache
        >>> with torch.no_grad():
        ...     out = model(ids[:, :40], **{cache_argument(): cache})
        >>> [own.get_seq_length() for own in cache.caches]
        [40, 40]

    Raises:
        ValueError: no caches; or a model with layers that are not bounded, which cannot be divided.
    """

    def __init__(self, caches: Sequence[BoundedCache]) -> None:
        if not caches:
            raise ValueError("no caches were given")
        if any(cache.holds_padding for cache in caches):
            raise ValueError("caches can share a forward pass only where every layer is bounded; this model has others")
        self.caches = list(caches)
        layers = zip(*(cache.layers for cache in caches), strict=True)
        super().__init__(layers=[_SharedLayer(list(parts)) for parts in layers])

    def serves_model(self, model: nn.Module | None) -> bool:
        return all(cache.serves_model(model) for cache in self.caches)

    def begin(self, arguments: dict[str, Any]) -> None:
        for cache in self.caches:
            cache.begin({})  # its rows are some of the batch: texts are not compared

    def end(self, broken: bool) -> None:
        for cache in self.caches:
            cache.end(broken)

    def serves(self, module: nn.Module, model: nn.Module | None) -> bool:
        return all(cache.serves(module, model) for cache in self.caches)

    def call(self, index: int, rope: Rope) -> _SharedCall:
        return _SharedCall([cache.call(index, rope) for cache in self.caches])

    def get_mask_sizes(self, query_length: int | Tensor, layer_idx: int) -> tuple[int, int]:
        return [cache.get_mask_sizes(query_length, layer_idx) for cache in self.caches][0]

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows of each part of the batch. indices: (rows,) int64, within a part."""
        for cache in self.caches:
            cache.batch_select_indices(indices)

    @property
    def is_compileable(self) -> bool:
        return False


class _SharedLayer(CacheLayerMixin):
    """One layer of all caches: keys and values go to the attention function, one part of the batch after another."""

    is_compileable = False
    is_sliding = False
    supports_early_init = False

    def __init__(self, parts: list[BoundedCacheLayer]) -> None:
        self.parts = parts

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        number = len(self.parts)
        if key_states.shape[0] % number:
            raise ValueError(f"a batch of {key_states.shape[0]} rows cannot be shared out among {number} caches")
        for part, key, value in zip(self.parts, key_states.chunk(number), value_states.chunk(number), strict=True):
            part.update(key, value)
        return key_states, value_states

    @property
    def is_initialized(self) -> bool:
        return self.parts[0].is_initialized

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Slabs are allocated with the first keys."""

    def get_seq_length(self, *args: Any) -> int:
        return self.parts[0].get_seq_length()

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        return self.parts[0].get_mask_sizes(query_length)


@dataclass(frozen=True)
class _SharedCall:
    """One attention call on behalf of several caches."""

    calls: list[LayerCall]

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        kernel: str,
        **kwargs,
    ) -> tuple[Tensor, None]:
        """The same as :meth:`LayerCall.attend`, for each part of the batch."""
        rows = query.shape[0]
        size, outputs = rows // len(self.calls), []
        for i, call in enumerate(self.calls):
            part = slice(i * size, (i + 1) * size)
            own = {k: v[part] if isinstance(v, Tensor) and v.shape[:1] == (rows,) else v for k, v in kwargs.items()}
            rope = call.rope
            if rope.cos.shape[0] > 1:
                rope = Rope(rope.cos[part], rope.sin[part], rope.apply, rope.table)
            call = LayerCall(call.host, rope, call.owner)
            mask = padding[part] if isinstance(padding, Tensor) else padding
            outputs.append(call.attend(module, query[part], key[part], value[part], mask, kernel, **own)[0])
        return torch.cat(outputs), None
