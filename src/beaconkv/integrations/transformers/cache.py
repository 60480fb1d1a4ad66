"""The bounded cache as transformers sees it."""

from __future__ import annotations

import logging
import warnings
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
from .continuation import PassInput
from .forward_pass import ForwardPass
from .generation import ContinuedCache
from .host_layer import NO_ROLLBACK, BoundedCacheLayer
from .model_checks import (
    attention_modules,
    host_layers,
    likeness,
    require_supported_release,
    require_uncompiled,
    warn_of_dropped_cache,
)
from .reading import HostCut

logger = logging.getLogger(__name__)


class BoundedCache(Cache, AnnouncedCache, ContinuedCache):
    """A key-value cache of fixed size for one model; pass it to ``generate`` or ``forward``.

    Full-attention layers keep at most ``budget`` entries per KV head; sliding-window and linear layers
    stay as the model made them. While a bounded cache of a model exists, the model's attention runs
    through a wrapper; with other caches it does what it did before. ``detach()``, the end of a ``with``
    block or the garbage collector lets go of the model.

    Args:
        model: a transformers decoder. Attention implementations: sdpa, eager, flash_attention_2 and 3.
        policy: a spec (see :func:`beaconkv.parse_policy`) such as "beaconkv" or "rkv:code", or a policy object.
        budget: B_max, entries per layer and KV head. Must be None for policies that never evict, and may be
            for specs that bring their own.
        budget_min, scope, prefix, protect, prefill_chunk, growth: see :class:`beaconkv.EvictionSchedule`; what is
            None is what the spec recommends, or else the schedule's default.
        stagger: number of steps of each cycle over which the evictions of the layers are spread, so that no single step
            carries all. Layers then hold different numbers of entries, never more than the budget.
        on_evict: called with an :class:`beaconkv.EvictionEvent` after each eviction of each layer.

    Example:
        >>> cache = BoundedCache(model, policy="beaconkv", budget=192)
        >>> out = model.generate(**inputs, **{cache_argument(): cache}, max_new_tokens=300, do_sample=False)
        >>> cache.stats.evictions > 0, cache.stats.entries <= 192
        (True, True)

    Raises:
        ValueError: settings or a model that cannot work; the message names the offender and the choices.
        RuntimeError: a model that runs through ``torch.compile``.
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
        require_uncompiled(model)
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
        self.schedule = spec.schedule(budget, **chosen)
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
        self._pass = ForwardPass(self._bounded, self.layers)
        self._is_arranged = False
        self._attach(model, bounded)
        warn_of_dropped_cache(model)
        logger.info(
            "bounded cache of %s: policy %s, %s; bounded layers: %s, others: %s",
            type(model).__name__,
            policy,
            self.schedule,
            bounded,
            [index for index in range(len(layers)) if index not in bounded],
        )

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
        self.attachment, self.detach = attach(model, bounded, self)
        """Detach from the model now; the cache cannot be used afterwards."""
        self._model = weakref.ref(model)
        self._modules = {index: weakref.ref(module) for index, module in self.attachment.modules.items()}

    def _arrange(self) -> None:
        """Split stacks whose layers rotate queries in different ways, or not at all, before anything is stored."""
        self._is_arranged = True
        rotary, hosts = self.attachment.rotary, {host.layer.index: host for host in self._bounded}
        arranged: list[LayerStack] = []
        for stack in self._stacks:
            alike: dict[Hashable, list[BoundedLayer]] = {}
            for layer in stack.layers:
                alike.setdefault(rotary.get(layer.index), []).append(layer)
            parts = [stack] if len(alike) == 1 else [LayerStack(layers) for layers in alike.values()]
            for part in parts:
                arranged.append(part)
                for number, layer in enumerate(part.layers):
                    hosts[layer.index].stack, hosts[layer.index].number = part, number
        self._stacks = arranged

    def __enter__(self) -> BoundedCache:
        return self

    def __exit__(self, *exc: object) -> None:
        self.detach()

    def _own_model(self) -> nn.Module:
        model = self._model()
        if model is None:
            raise RuntimeError("the model of this BoundedCache was deleted")
        return model

    def __deepcopy__(self, memo: dict[int, Any]) -> BoundedCache:
        """An independent copy for the same model: the usual way to reuse a prompt."""
        self._require_attached()
        copy = object.__new__(type(self))
        shared = [self.policy, self.schedule, *(host.layer.on_evict for host in self._bounded)]
        memo.update({id(copy): copy, **{id(thing): thing for thing in shared}})
        own = ("_model", "_modules", "attachment", "detach")
        copy.__dict__.update({k: deepcopy(v, memo) for k, v in vars(self).items() if k not in own})
        copy._attach(self._own_model(), [host.layer.index for host in copy._bounded])
        return copy

    def __reduce_ex__(self, protocol: int) -> tuple:
        raise TypeError(
            "a BoundedCache belongs to a model of this process and cannot be pickled, saved or copied shallowly; "
            "copy.deepcopy() makes an independent one for the same model, and a prompt is best kept as token ids"
        )

    def serves(self, module: nn.Module, model: nn.Module | None) -> bool:
        """Whether the hook of ``model`` announces this call; see :class:`AnnouncedCache`."""
        own = self._modules.get(module.layer_idx)
        if own is None or own() is not module:
            raise ValueError(f"this BoundedCache was made for another model ({type(self._model()).__name__})")
        return model is self._model()  # else a hook of a wider or narrower model around the same module

    def begin(self, arguments: dict[str, Any]) -> None:
        """See :class:`AnnouncedCache`.

        Raises:
            ValueError: input that does not continue what the cache holds.
            RuntimeError: as :meth:`require_whole`.
        """
        self._require_attached()
        given = PassInput.of_call(arguments)
        self._pass.begin(given)
        if given is not None and arguments.get("labels") is not None:
            self._warn_of_loss(given.num_new)

    def end(self, broken: bool) -> None:
        """See :class:`AnnouncedCache`.

        Raises:
            RuntimeError: the model did not use the cache.
        """
        if not self._pass.end(broken, self.holds_padding):
            raise RuntimeError(
                f"{type(self._model()).__name__} did not use the BoundedCache it was given: use_cache=False, by "
                "argument or from the model's config? Call it with use_cache=True"
            )

    def note_compiled_step(self, ids: Tensor) -> None:
        """A compiled step has taken in ids (B, 1)."""
        self._pass.note_compiled_step(ids)

    def _warn_of_loss(self, tokens: int) -> None:
        budget = self.schedule.budget
        if budget is not None and tokens >= budget:
            warnings.warn(
                f"labels came with {tokens} tokens in one forward pass, and the budget is {budget}: all tokens of a "
                "pass attend to each other before anything is evicted, so this loss is that of the full cache. Feed "
                "the text in chunks, or use `beaconkv fidelity`",
                stacklevel=2,
            )

    def require_text(self, ids: Tensor | None, length: int, mask: Tensor | None) -> None:
        """See :class:`ContinuedCache`."""
        if self._pass.num_columns:
            self._require_attached()
        self._pass.require_text(ids, length, mask)

    def expect_prompt(self, prefill_chunk: int | None) -> None:
        """See :class:`ContinuedCache`."""
        self._pass.expect_prompt(prefill_chunk)

    @property
    def cut(self) -> HostCut | None:
        """How the host cuts the prompt that is being read; None where it does not."""
        return self._pass.cut

    @property
    def _is_user_defined(self) -> bool:
        """Set by ``generate`` of transformers 5 on a cache that it was given.

        By then the text has been compared, but only by the model whose methods were replaced: so the setter notices
        a ``generate`` of another model.
        """
        return self.__dict__.get("is_user_defined", False)

    @_is_user_defined.setter
    def _is_user_defined(self, value: bool) -> None:
        if self._pass.prompt_columns is None:
            raise ValueError(
                f"this BoundedCache was made for a {type(self._model()).__name__}, and generate() was called of "
                "another model around it, which has not compared the text: make the cache with the model whose "
                "generate() you call"
            )
        self._pass.prompt_columns = None
        self.__dict__["is_user_defined"] = value

    def call(self, index: int, rope: Rope) -> LayerCall:
        """What the attention function of layer ``index`` gets. rope: (B or 1, m, D_rot)."""
        if not self._is_arranged:
            self._arrange()
        host = self.layers[index]
        host.is_announced = True
        return LayerCall(host, self._pass.rope(rope), self)

    def rope_on(self, rope: Rope, device: torch.device) -> Rope:
        """The rope on a device, copied once a pass and not once a layer."""
        return self._pass.rope_on(rope, device)

    def note_peak(self, extra_bytes: int = 0) -> None:
        """Take note of the keys and values that exist now: all slabs, plus ``extra_bytes``."""
        slabs = sum(stack.kv_bytes for stack in self._stacks if stack.is_allocated)
        self._peak_kv_bytes = max(self._peak_kv_bytes, slabs + extra_bytes)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows. indices: (rows,) int64 or bool."""
        self.note_peak()
        self._select_rows(indices.nonzero().flatten() if indices.dtype == torch.bool else indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row."""
        if self._bounded[0].layer.is_allocated:
            self._select_rows(torch.arange(len(self._bounded[0].layer.rows)).repeat_interleave(repeats))

    def _select_rows(self, index: Tensor) -> None:
        """Through ``reorder_cache``, the only such method of linear layers. index: (rows,) int64."""
        for layer in self.layers:
            layer.reorder_cache(index)
        self._pass.columns.select_rows(index)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes what row ``beam_idx[i]`` was. beam_idx: (rows,) int64."""
        super().reorder_cache(beam_idx)
        self._pass.columns.select_rows(beam_idx)

    def padding_on_host(self, padding: Tensor) -> Tensor:
        """(rows, tokens) bool: the padding mask on the CPU, fetched once a pass and not once a layer."""
        return self._pass.padding_on_host(padding)

    def get_mask_sizes(self, query_length: int | Tensor, layer_idx: int) -> tuple[int, int]:
        """Sizes from which the host builds masks. It asks before the first layer, so a broken cache is noticed here.

        Raises:
            RuntimeError: the cache was detached, or a forward pass broke off in the middle.
        """
        self.require_whole()
        return super().get_mask_sizes(query_length, layer_idx)

    def require_whole(self) -> None:
        """Raise ``RuntimeError`` if the cache was detached, or holds a part of a pass."""
        self._require_attached()
        self._pass.require_whole()

    def _require_attached(self) -> None:
        if not self.detach.alive:
            raise RuntimeError("this BoundedCache was detached from its model; make a new one")

    def serves_model(self, model: nn.Module | None) -> bool:
        """Whether this is the model the cache was made for."""
        return self._model() is model

    def reset(self) -> None:
        """Clear everything; the cache is as new."""
        fresh, _ = host_layers(self._own_model())
        for index, layer in enumerate(self.layers):
            if isinstance(layer, BoundedCacheLayer):
                layer.reset()
            else:  # a sliding layer's own reset() forgets its length in some releases only
                self.layers[index] = fresh[index]
        self._peak_kv_bytes = 0
        self.attachment.forget(self)  # ends a pass that an interrupt left under way
        self._pass.reset()

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
        bounded = self._host(layer).layer
        return bounded.slab.held_positions() if bounded.is_allocated else torch.empty(0, 0, 0, dtype=torch.int32)

    def _host(self, layer: int) -> BoundedCacheLayer:
        bounded = {host.layer.index: host for host in self._bounded}
        if layer not in bounded:
            raise ValueError(f"layer {layer} is not bounded; bounded layers: {', '.join(map(str, bounded))}")
        return bounded[layer]

    def column_positions(self, layer: int) -> Tensor:
        """Logical positions behind the columns of the last attention weights (``output_attentions=True``).

        Entries are not kept in the order of the text, and each KV head keeps its own. Column ``j`` of the weights of
        query head ``h`` belongs to the token at ``column_positions(layer)[row, h // G, j]``; G query heads share a KV
        head.

        Args:
            layer: index of a bounded layer in the model.

        Returns:
            (B, H_kv, N) int32; -1 where a row has no entry, or the token is padding.

        Raises:
            ValueError: a layer that is not bounded; or its last forward pass gave no weights: only eager attention
                gives any, and none where a prompt is read in chunks (``prefill_chunk``).
        """
        positions = self._host(layer).column_positions()
        if positions is None:
            raise ValueError(
                f"layer {layer}: the last forward pass gave no attention weights; load the model with "
                'attn_implementation="eager", pass output_attentions=True, and read prompts without prefill_chunk'
            )
        return positions

    @property
    def holds_padding(self) -> bool:
        """Whether layers that stay as the model made them store padding, and need the mask at every step."""
        return len(self._bounded) < len(self.layers)

    def row_evictions(self) -> list[int]:
        """Per row: how often its layers were evicted so far."""
        layers = [host.layer.num_evictions for host in self._bounded if host.layer.is_allocated]
        return [max(counts) for counts in zip(*layers, strict=True)]

    @property
    def stats(self) -> CacheStats:
        """Counters and measured bytes of the bounded layers."""
        layers = [host.layer for host in self._bounded if host.layer.is_allocated]
        stacks = [stack for stack in self._stacks if stack.is_allocated]
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
