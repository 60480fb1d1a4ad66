"""The bounded cache as transformers sees it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from ...cache import BoundedLayer, CacheStats, EvictionSchedule, LayerStack, staggered
from ...policies import EvictionPolicy, parse_policy
from ...types import EvictionEvent, Rope
from .attachment import AnnouncedCache, attach
from .call import LayerCall
from .host_layer import NO_ROLLBACK, BoundedCacheLayer
from .support import attention_modules, host_layers, likeness, require_supported_release, warn_of_dropped_cache


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
        policy: a spec (see :func:`beaconkv.parse_policy`) such as "beaconkv" or "rkv:code", or a policy object.
        budget: B_max, entries per layer and KV head. Must be None for policies that never evict, and may be
            for specs that bring their own.
        budget_min, scope, prefix, protect, prefill_chunk, growth: see :class:`beaconkv.EvictionSchedule`; what is
            None is what the spec recommends, or else the schedule's default.
        stagger: spread the evictions of the layers over so many steps of each cycle, so that no single step carries
            all. Layers then hold different numbers of entries, never more than the budget.
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
        scope: str | None = None,
        prefix: int | str | None = None,
        protect: int | str | None = None,
        prefill_chunk: int | None = None,
        growth: int | None = None,
        stagger: int = 1,
        on_evict: Callable[[EvictionEvent], None] | None = None,
    ) -> None:
        require_supported_release()
        spec = parse_policy(policy)
        self.policy = policy = spec.policy
        chosen = dict(
            budget_min=budget_min,
            scope=scope,
            prefix=prefix,
            protect=protect,
            prefill_chunk=prefill_chunk,
            growth=growth,
        )
        self.schedule = EvictionSchedule(spec.resolve_budget(budget), **spec.schedule_arguments(budget, **chosen))
        layers, bounded = host_layers(model)
        self._stacks: list[LayerStack] = []
        for indices, schedule in self._stacked(model, bounded, stagger):
            stack = LayerStack([BoundedLayer(policy, schedule, index, on_evict) for index in indices])
            self._stacks.append(stack)
            for number, index in enumerate(indices):
                layers[index] = BoundedCacheLayer(stack, number)
        super().__init__(layers=layers)
        self._bounded = [layers[index] for index in bounded]
        self._peak_kv_bytes = 0
        self._padding: tuple[Tensor, Tensor] | None = None  # the last mask, on its device and on the host
        self._attach(model, bounded)
        warn_of_dropped_cache(model)

    def _stacked(self, model: nn.Module, bounded: list[int], stagger: int) -> list[tuple[list[int], EvictionSchedule]]:
        """Layers that may take decode steps together: they hold as many entries of one shape on one device."""
        schedules = staggered(self.schedule, stagger)
        grows = self.schedule.budget is None or self.schedule.growth  # such a slab is copied: of one layer at a time
        modules = attention_modules(model)
        stacks: dict[Hashable, list[int]] = {}
        for number, index in enumerate(bounded):
            alike = index if grows or index not in modules else likeness(modules[index])
            stacks.setdefault((number * len(schedules) // len(bounded), alike), []).append(index)
        return [(indices, schedules[phase]) for (phase, _), indices in stacks.items()]

    def _attach(self, model: nn.Module, bounded: list[int]) -> None:
        modules, self.detach = attach(model, bounded, self)
        """Let go of the model now; the cache cannot be used afterwards."""
        self._model = weakref.ref(model)
        self._modules = {index: weakref.ref(module) for index, module in modules.items()}

    def __enter__(self) -> BoundedCache:
        return self

    def __exit__(self, *exc: object) -> None:
        self.detach()

    def _own_model(self) -> nn.Module:
        model = self._model()
        if model is None:
            raise RuntimeError("the model of this BoundedCache is gone")
        return model

    def __deepcopy__(self, memo: dict[int, Any]) -> BoundedCache:
        """An independent copy for the same model: the usual way to reuse a prompt."""
        if not self.detach.alive:
            raise RuntimeError("this BoundedCache was detached from its model; make a new one")
        copy = object.__new__(type(self))
        shared = [self.policy, self.schedule, *(host.layer.on_evict for host in self._bounded)]
        memo.update({id(copy): copy, **{id(thing): thing for thing in shared}})
        own = ("_model", "_modules", "detach")
        copy.__dict__.update({k: deepcopy(v, memo) for k, v in vars(self).items() if k not in own})
        copy._attach(self._own_model(), [host.layer.index for host in copy._bounded])
        return copy

    def serves(self, module: nn.Module, model: nn.Module | None) -> bool:
        """Whether the hook of ``model`` announces this call; see :class:`AnnouncedCache`."""
        own = self._modules.get(module.layer_idx)
        if own is None or own() is not module:
            raise ValueError(f"this BoundedCache was made for another model ({type(self._model()).__name__})")
        return model is self._model()  # else a hook of a wider or narrower model around the same module

    def call(self, index: int, rope: Rope) -> LayerCall:
        """What the attention function of layer ``index`` gets. rope: (B or 1, m, D_rot)."""
        return LayerCall(self.layers[index], rope, self.padding_on_host, self.note_peak)

    def note_peak(self, extra_bytes: int = 0) -> None:
        """Take note of the keys and values that exist now: all slabs, and ``extra_bytes`` beside them."""
        slabs = sum(stack.kv_bytes for stack in self._stacks if stack.is_open)
        self._peak_kv_bytes = max(self._peak_kv_bytes, slabs + extra_bytes)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows. indices: (rows,) int64 or bool."""
        self.note_peak()
        super().batch_select_indices(indices)

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
        """What the host builds masks from; asked before the first layer, so a broken cache is noticed here.

        Raises:
            RuntimeError: the cache was detached, or a forward pass broke off in the middle.
        """
        self.require_whole()
        return super().get_mask_sizes(query_length, layer_idx)

    def require_whole(self) -> None:
        """Raise ``RuntimeError`` if the cache was detached, or holds a part of a step."""
        if not self.detach.alive:
            raise RuntimeError("this BoundedCache was detached from its model; make a new one")
        columns = {layer.get_seq_length() for layer in self.layers if hasattr(layer, "get_seq_length")}
        if len(columns) > 1 or any(layer.is_pending for layer in self._bounded):
            raise RuntimeError(
                "a forward pass on this cache broke off between two layers, or a model other than its own was run "
                "with it; make a new cache or reset() it"
            )

    def serves_model(self, model: nn.Module) -> bool:
        """Whether this is the model the cache was made for."""
        return self._model() is model

    def reset(self) -> None:
        """Forget everything; the cache is as new."""
        fresh, _ = host_layers(self._own_model())
        for index, layer in enumerate(self.layers):
            if isinstance(layer, BoundedCacheLayer):
                layer.reset()
            else:  # a sliding layer's own reset() forgets its length in some releases only
                self.layers[index] = fresh[index]
        self._padding, self._peak_kv_bytes = None, 0

    def crop(self, *args: Any, **kwargs: Any) -> None:
        """Always raises ``RuntimeError``: an eviction cannot be taken back."""
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
    def holds_padding(self) -> bool:
        """Whether layers that stay as the model made them store padding, and need the mask at every step."""
        return len(self._bounded) < len(self.layers)

    def row_evictions(self) -> list[int]:
        """Per row: how often its layers were evicted so far."""
        layers = [host.layer.num_evictions for host in self._bounded if host.layer.is_open]
        return [max(counts) for counts in zip(*layers, strict=True)]

    @property
    def stats(self) -> CacheStats:
        """Counters and measured bytes of the bounded layers."""
        layers = [host.layer for host in self._bounded if host.layer.is_open]
        stacks = [stack for stack in self._stacks if stack.is_open]
        counted = [layer for stack in stacks for layer in stack.counted]
        self.note_peak()
        kv_bytes = sum(stack.kv_bytes for stack in stacks)
        return CacheStats(
            tokens_seen=max((max(layer.slab.num_seen) for layer in layers), default=0),
            entries=max((layer.slab.longest for layer in layers), default=0),
            peak_entries=max((layer.peak_entries for layer in counted), default=0),
            evictions=max((max(layer.num_evictions) for layer in layers), default=0),
            entries_dropped=sum(layer.entries_dropped for layer in counted),
            kv_bytes=kv_bytes,
            state_bytes=sum(stack.state_bytes for stack in stacks),
            formula_bytes=sum(layer.formula_bytes for layer in layers),
            peak_kv_bytes=self._peak_kv_bytes,
        )

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if an invariant of any layer is broken. Slow."""
        for stack in self._stacks:
            stack.check_integrity()
