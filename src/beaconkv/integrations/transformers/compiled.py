"""Decode steps through ``torch.compile``: fixed shapes, no Python between the kernels (and CUDA graphs on a GPU).

Only the model's forward pass is compiled. It attends to all slots of the slabs, with a mask for those that are free;
writing the new entries and buffering the queries are part of it. Counting, scoring and eviction happen between steps,
on the same tensors as ever: eager and compiled steps of one cache may alternate.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from ...cache import AttentionInputs, LayerStack
from ...types import Rope, persistent_zeros
from .attachment import AnnouncedStep
from .attention import CALL_KWARG, kernel_of, run_step
from .cache import BoundedCache
from .model_checks import cache_argument, require_uncompiled


class CompiledDecoder:
    """Runs the decode steps of one bounded cache compiled.

    The first call compiles, which takes from half a minute to some minutes. Further caches of the same model, batch and
    budget use what was compiled.

    Args:
        model: with sdpa attention.
        cache: after the prompt. Every layer bounded, with a policy that evicts.
        mode: mode of ``torch.compile``; None: "reduce-overhead" (CUDA graphs) on a GPU, "default" elsewhere.
        backend: backend of ``torch.compile``.

    Example:
        >>> cache = BoundedCache(model, "beaconkv", budget=192)
        >>> with torch.no_grad():
        ...     logits = model(**inputs, **{cache_argument(): cache}).logits[:, -1:]
        >>> decoder = CompiledDecoder(model, cache, backend="eager")
        >>> logits = decoder(logits.argmax(-1))  # one step, and so on
        >>> logits.shape[:2]
        torch.Size([1, 1])

    Raises:
        ValueError: a cache or model that this cannot serve, with the reason.
    """

    def __init__(
        self, model: nn.Module, cache: BoundedCache, mode: str | None = None, backend: str = "inductor"
    ) -> None:
        if not cache.serves_model(model):
            raise ValueError(f"this BoundedCache was made for another model than this {type(model).__name__}")
        if cache.holds_padding:
            raise ValueError("compiled steps need every layer bounded; this model has sliding or linear ones")
        if cache.schedule.budget is None or cache.schedule.growth:
            raise ValueError("compiled steps need a budget that is fixed: shapes must not change")
        kernel = kernel_of(model.config._attn_implementation)
        if kernel != "sdpa":
            raise ValueError(f"compiled steps need sdpa attention, got {kernel!r}")
        self.model, self.cache, self._argument = model, cache, cache_argument()
        self._mode, self._backend = mode, backend
        self._prepared: tuple[Any, ...] | None = None

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> Tensor:
        """One decode step.

        Args:
            ids: (B, 1) int64, none of them padding.

        Returns:
            (B, 1, vocabulary) logits.

        Raises:
            ValueError: another shape than (B, 1), no integers, or a cache with another number of rows.
            RuntimeError: a cache that was detached, or in which a step broke off.
        """
        self.cache.require_whole()
        require_uncompiled(self.model)
        stacks = self.cache._stacks
        if not all(stack.is_allocated for stack in stacks):
            raise ValueError("the cache is empty: read the prompt first")
        batch = len(stacks[0].layers[0].prompts)
        if tuple(ids.shape) != (batch, 1):
            raise ValueError(f"ids must be (B, 1) = ({batch}, 1), got {tuple(ids.shape)}")
        if ids.is_floating_point() or ids.dtype == torch.bool:
            raise ValueError(f"ids must be integers, got {ids.dtype}")
        for stack in stacks:
            stack.stack()
            if not stack.is_stacked:
                raise ValueError(f"policy {self.cache.policy.name!r} or this model's layers cannot be stepped together")
        self._prepare(stacks, batch)
        for host in self.cache._bounded:
            host.is_pending = True  # should anything fail now, the cache says so when it is used again
        for step in self._steps:
            step.begin()
        # Into tensors that stay: another stride or address would be compiled, or recorded, again.
        self._ids.copy_(ids)
        self._positions.copy_(stacks[0].whole.slab.num_seen_on_device.unsqueeze(1)).sub_(1)
        with self.cache.attachment.wrapped():
            logits = self._forward(self._ids, self._positions)
        for step in self._steps:
            step.end()
        for host in self.cache._bounded:
            host.has_decoded = True
            host.attended(1)
        self.cache.note_compiled_step(ids)
        return logits

    def _prepare(self, stacks: list[LayerStack], batch: int) -> None:
        """Buffers and the compiled function, again where slabs are new."""
        now = batch, *(stack.whole.slab.keys.data_ptr() for stack in stacks)
        if self._prepared == now:
            return
        self._prepared = now
        self._ids, self._positions = (
            persistent_zeros(stacks[0].whole.slab.keys, batch, 1, dtype=torch.int64) for _ in range(2)
        )
        self._steps = [_StackStep(stack) for stack in stacks]
        owner = {layer.index: (step, i) for step in self._steps for i, layer in enumerate(step.stack.layers)}
        call, cache = _StepCall(owner), _StepCache(owner)
        model, argument = self.model, self._argument

        def forward(ids: Tensor, position_ids: Tensor) -> Tensor:
            mask = self._steps[0].mask  # any four-dimensional mask: each layer takes its own
            kwargs = {argument: cache, CALL_KWARG: call}
            return model(ids, position_ids=position_ids, attention_mask=mask, use_cache=True, **kwargs).logits

        mode = self._mode or ("reduce-overhead" if model.device.type == "cuda" else "default")
        options = dict(mode=mode) if self._backend == "inductor" else {}
        sizes = tuple(tuple(step.keys.shape) for step in self._steps)
        forward = _with_own_code(forward, (id(model), batch, *sizes))
        self._forward: Callable = torch.compile(
            forward, fullgraph=True, dynamic=False, backend=self._backend, **options
        )


_CODES: dict[tuple, CodeType] = {}


def _with_own_code(function: FunctionType, size: tuple) -> FunctionType:
    """The function with a code object for each size: what is compiled is found by code, and limited to eight each."""
    code = _CODES.setdefault(size, function.__code__.replace())
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)


class _StackStep:
    """The tensors of one stack's step: all of them stay where they are."""

    def __init__(self, stack: LayerStack) -> None:
        slab = stack.whole.slab
        self.stack, size, batch = stack, slab.keys.shape[2], slab.keys.shape[0]
        number = len(stack.layers)
        self.keys, self.values = slab.keys, slab.values
        self.heads = slab.keys.shape[1] // number
        self.order = torch.arange(size, device=slab.keys.device)
        self.rows = torch.arange(batch, device=slab.keys.device)
        self.slots = persistent_zeros(slab.keys, batch, dtype=torch.int64)
        self.mask = persistent_zeros(slab.keys, batch, 1, 1, size, dtype=torch.bool)
        form = stack.form
        self.apply = form.apply
        self.queries = persistent_zeros(slab.keys, batch, number * form.heads, 1, form.dim, dtype=form.dtype)
        self.cos, self.sin = (
            persistent_zeros(slab.keys, batch, 1, form.rotary_dim, dtype=form.rotary_dtype) for _ in range(2)
        )
        for tensor in (self.keys, self.values, self.mask, self.slots, self.queries, self.cos, self.sin):
            torch._dynamo.mark_static_address(tensor)

    def begin(self) -> None:
        """Count the new entries; say where they go and what is seen."""
        counts = self.stack.begin_compiled()
        torch.sub(counts.lengths_on_device, 1, out=self.slots)
        torch.lt(self.order, counts.lengths_on_device.view(-1, 1, 1, 1), out=self.mask)

    def end(self) -> None:
        """Show the queries to the policy."""
        self.stack.end_compiled(self.queries, Rope(self.cos, self.sin, self.apply))


class _StepCache(Cache):
    """What the compiled model takes for its cache."""

    def __init__(self, owner: dict[int, tuple[_StackStep, int]]) -> None:
        super().__init__(layers=[_StepLayer(*owner[index]) for index in sorted(owner)])


class _StepLayer(CacheLayerMixin):
    is_compileable = True
    is_sliding = False
    supports_early_init = False
    is_initialized = True

    def __init__(self, step: _StackStep, number: int) -> None:
        self.step, self.first = step, number * step.heads

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        step = self.step
        keys, values = (t.narrow(1, self.first, step.heads) for t in (step.keys, step.values))
        keys[step.rows, :, step.slots] = key_states[:, :, 0]
        values[step.rows, :, step.slots] = value_states[:, :, 0]
        return keys, values

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """There is nothing to make."""

    def get_seq_length(self, *args: Any) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.step.keys.shape[2]

    get_max_cache_shape = get_max_length

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        return self.step.keys.shape[2], 0


class _StepCall(AnnouncedStep):
    """What the attention function gets in place of a bounded layer's call."""

    def __init__(self, owner: dict[int, tuple[_StackStep, int]]) -> None:
        self.owner = owner

    def note_rope(self, index: int, cos: Tensor, sin: Tensor) -> None:
        """Called before the attention of a layer. cos, sin: rotation of its queries."""
        step, number = self.owner[index]
        if number == 0:
            step.cos.copy_(cos)
            step.sin.copy_(sin)

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, kernel: str, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Remember the query, and attend to all slots that hold an entry."""
        step, number = self.owner[module.layer_idx]
        heads = query.shape[1]
        step.queries.narrow(1, number * heads, heads).copy_(query)
        return run_step(kernel, module, query, AttentionInputs(key, value, None), step.mask, **kwargs)
