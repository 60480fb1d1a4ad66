"""The bounded cache as transformers sees it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from ...cache import BoundedLayer, CacheStats, EvictionSchedule
from ...policies import EvictionPolicy, make_policy
from ...types import AttentionParams, EvictionEvent, Rope
from .attachment import AnnouncedCache, attach
from .attention import BOUNDED_OFFSET, kernel_mask, run_kernel
from .support import host_layers, require_supported_release

NO_ROLLBACK = (
    "a BoundedCache cannot be cropped: what was evicted, and the queries seen since, cannot be taken back. "
    "Assisted and speculative decoding need DynamicCache"
)


class BoundedCacheLayer(CacheLayerMixin):
    """One full-attention layer: lets keys and values pass to the attention function, which stores them."""

    is_compileable = False
    is_croppable = False
    is_sliding = False
    supports_early_init = False

    def __init__(self, layer: BoundedLayer) -> None:
        self.layer = layer
        self.num_columns = 0  # tokens fed, padding included: what the host calls the sequence length
        self.is_pending = False  # between update() and the attention function

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if self.is_pending:
            raise RuntimeError(
                f"layer {self.layer.index}: keys came twice without attention between them: "
                "a forward pass broke off; make a new cache or reset() it"
            )
        self.is_pending = True
        return key_states, value_states

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
        return num_new, BOUNDED_OFFSET

    def reset(self) -> None:
        self.layer.reset()
        self.num_columns, self.is_pending = 0, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.layer.select_rows(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.layer.is_open:
            self.layer.select_rows(torch.arange(len(self.layer.prompts)).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        self.layer.select_rows(indices.nonzero().flatten() if indices.dtype == torch.bool else indices)

    def crop(self, *args: Any) -> None:
        raise RuntimeError(NO_ROLLBACK)

    def offload(self) -> None:
        raise RuntimeError("a BoundedCache is not offloaded: it is small by design")

    prefetch = offload


@dataclass(frozen=True)
class LayerCall:
    """One call of one attention module on behalf of a bounded layer."""

    cache: BoundedCache
    host: BoundedCacheLayer
    rope: Rope

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        kernel: str,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Append, attend, observe, evict. Shapes: query (B, H, m, D), key and value (B, H_kv, m, D).

        Args:
            padding: (B, m) bool from our mask function, True where a token is real; or None.
            kernel: the wrapped attention implementation.
        """
        layer, num_new = self.host.layer, query.shape[2]
        on_host = None if padding is None else self.cache.padding_on_host(padding)
        if padding is not None:
            padding = padding.to(query.device)

        def count(part: slice) -> list[int]:
            if on_host is None:
                return [len(range(num_new)[part])] * query.shape[0]
            return on_host[:, part].sum(dim=1).tolist()

        params = AttentionParams(
            kwargs.get("scaling") or query.shape[-1] ** -0.5, kwargs.get("softcap"), kwargs.get("s_aux")
        )
        rope = Rope(self.rope.cos.to(query.device), self.rope.sin.to(query.device), self.rope.apply)
        if not layer.is_open:
            layer.open(key, value, count(slice(None)))
        size = layer.schedule.prefill_chunk or num_new
        if num_new > size:
            kwargs = {name: kwarg for name, kwarg in kwargs.items() if name not in ("position_ids", "cache_position")}
        outputs, weights = [], None
        for start in range(0, num_new, size):
            part = slice(start, start + size)
            queries = query[:, :, part]
            real = None if padding is None else padding[:, part]
            inputs = layer.append(key[:, :, part], value[:, :, part], real, count(part))
            mask = kernel_mask(kernel, inputs, queries)
            output, weights = run_kernel(kernel, module, queries, inputs.keys, inputs.values, mask, **kwargs)
            layer.observe(queries, rope.steps(start, start + queries.shape[2]), params)
            outputs.append(output)
        self.host.attended(num_new)
        return (outputs[0], weights) if len(outputs) == 1 else (torch.cat(outputs, dim=1), None)


class BoundedCache(Cache, AnnouncedCache):
    """A key-value cache of fixed size for one model; pass it to ``generate`` or ``forward``.

    >>> cache = BoundedCache(model, policy="beaconkv", budget=2048)
    >>> model.generate(**inputs, past_key_values=cache, max_new_tokens=32768)

    Full-attention layers keep at most ``budget`` entries per KV head; sliding-window and linear layers
    stay as the model made them. While a bounded cache of a model lives, the model's attention runs
    through a wrapper; with other caches it does what it did before. ``detach()``, the end of a ``with``
    block or the garbage collector lets go of the model.

    Args:
        model: a transformers decoder. Attention implementations: sdpa, eager, flash_attention_2 and 3.
        policy: a name (see :func:`beaconkv.policies`) or a policy object.
        budget: B_max, entries per layer and KV head. Must be None for policies that never evict.
        budget_min, scope, prefix, protect, prefill_chunk: see :class:`beaconkv.EvictionSchedule`;
            prefix and protect default to what the policy recommends.
        on_evict: called with an :class:`beaconkv.EvictionEvent` after each eviction of each layer.

    Raises:
        ValueError: settings or a model that cannot work; the message names the offender and the choices.
        ImportError: an unsupported release of transformers.
    """

    def __init__(
        self,
        model: nn.Module,
        policy: str | EvictionPolicy = "beaconkv",
        budget: int | None = None,
        *,
        budget_min: int | None = None,
        scope: str = "total",
        prefix: int | str | None = None,
        protect: int | None = None,
        prefill_chunk: int | None = None,
        on_evict: Callable[[EvictionEvent], None] | None = None,
    ) -> None:
        require_supported_release()
        policy = make_policy(policy) if isinstance(policy, str) else policy
        if not isinstance(policy, EvictionPolicy):
            raise ValueError(f"policy must be a name or an EvictionPolicy, got {policy!r}")
        self.policy = policy
        self.schedule = EvictionSchedule(
            budget,
            budget_min,
            scope,
            policy.default_prefix if prefix is None else prefix,
            policy.default_protect if protect is None else protect,
            prefill_chunk,
        )
        layers, bounded = host_layers(model)
        for index in bounded:
            layers[index] = BoundedCacheLayer(BoundedLayer(policy, self.schedule, index, on_evict))
        super().__init__(layers=layers)
        self._bounded = [layers[index] for index in bounded]
        self._padding: tuple[Tensor, Tensor] | None = None  # the last mask, on its device and on the host
        self._model = weakref.ref(model)
        self.detach = attach(model, bounded, self)
        """Let go of the model now; the cache cannot be used afterwards."""

    def __enter__(self) -> BoundedCache:
        return self

    def __exit__(self, *exc: object) -> None:
        self.detach()

    def __deepcopy__(self, memo: dict[int, Any]) -> BoundedCache:
        """An independent copy for the same model: the usual way to reuse a prompt."""
        if not self.detach.alive:
            raise RuntimeError("this BoundedCache was detached from its model; make a new one")
        copy = object.__new__(type(self))
        shared = [self.policy, self.schedule, *(host.layer.on_evict for host in self._bounded)]
        memo.update({id(copy): copy, **{id(thing): thing for thing in shared}})
        copy.__dict__.update({k: deepcopy(v, memo) for k, v in vars(self).items() if k not in ("_model", "detach")})
        copy._model = self._model
        copy.detach = attach(self._model(), [host.layer.index for host in copy._bounded], copy)
        return copy

    def serves(self, index: int, model: nn.Module | None) -> bool:
        if model is not self._model():
            raise ValueError(f"this BoundedCache was made for another model ({type(self._model()).__name__})")
        return isinstance(self.layers[index], BoundedCacheLayer)

    def call(self, index: int, rope: Rope) -> LayerCall:
        return LayerCall(self, self.layers[index], rope)

    def padding_on_host(self, padding: Tensor) -> Tensor:
        """(rows, tokens) bool: the padding mask on the CPU, fetched once a forward pass and not once a layer.

        Raises:
            ValueError: a mask that is not two-dimensional.
        """
        if padding.ndim != 2:
            raise ValueError(
                f"a BoundedCache takes a 2-D attention mask (rows, tokens); got {padding.ndim}-D {tuple(padding.shape)}"
            )
        if self._padding is None or self._padding[0] is not padding:
            self._padding = padding, padding.cpu()
        return self._padding[1]

    def get_mask_sizes(self, query_length: int | Tensor, layer_idx: int) -> tuple[int, int]:
        if not self.detach.alive:
            raise RuntimeError("this BoundedCache was detached from its model; make a new one")
        columns = {layer.num_columns for layer in self._bounded}
        if len(columns) > 1 or any(layer.is_pending for layer in self._bounded):
            raise RuntimeError(
                "a forward pass on this cache broke off between two layers; make a new cache or reset() it"
            )
        return super().get_mask_sizes(query_length, layer_idx)

    def crop(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(NO_ROLLBACK)

    @property
    def is_compileable(self) -> bool:
        return False

    def positions(self, layer: int) -> Tensor:
        """Logical positions that a layer holds now.

        Args:
            layer: index of a bounded layer in the model.

        Returns:
            (B, H_kv, length) int32, ascending; shorter rows are filled up with -1.

        Raises:
            ValueError: a layer that is not bounded.
        """
        bounded = {host.layer.index: host.layer for host in self._bounded}
        if layer not in bounded:
            raise ValueError(f"layer {layer} is not bounded; bounded layers: {', '.join(map(str, bounded))}")
        if not bounded[layer].is_open:
            return torch.empty(0, 0, 0, dtype=torch.int32)
        return bounded[layer].slab.held_positions()

    @property
    def stats(self) -> CacheStats:
        """Counters and measured bytes of the bounded layers."""
        layers = [host.layer for host in self._bounded if host.layer.is_open]
        kv_bytes = sum(layer.slab.kv_bytes for layer in layers)
        return CacheStats(
            tokens_seen=max((max(layer.slab.num_seen) for layer in layers), default=0),
            entries=max((layer.slab.longest for layer in layers), default=0),
            peak_entries=max((layer.peak_entries for layer in layers), default=0),
            evictions=max((max(layer.num_evictions) for layer in layers), default=0),
            entries_dropped=sum(layer.entries_dropped for layer in layers),
            kv_bytes=kv_bytes,
            state_bytes=sum(layer.state_bytes for layer in layers),
            formula_bytes=sum(layer.formula_bytes for layer in layers),
            peak_kv_bytes=kv_bytes + max((layer.peak_extra_bytes for layer in layers), default=0),
        )

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if an invariant of any layer is broken. Slow."""
        for host in self._bounded:
            host.layer.check_integrity()
