"""Additions to vLLM's attention backends: the slots of the entries before a step, the observation of queries after it.

A step of the server:

    builder.build()     evicts what is due, finds slots for the new entries, sets the number of entries for the kernel
    impl.forward()      vLLM's own kernel; then the queries go into the window, or, for a prompt, to the policy

Evictions that are due within the tokens of one step (a long prompt, a request that is computed again after a
preemption) are made in each layer during the step. The tokens after them are then stored, and their attention is
computed, a second time, since the first time came before the eviction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata

from ...cache import Chunk
from ...types import device_index
from .entries import Views, slots_of
from .layout import Write
from .registry import RequestRegistry
from .requests import BoundedAttention, LayerGroup, RequestCache, is_step
from .server_checks import require_our_worker, settings_of
from .spec import BoundedSpec


def staged(tensor: Tensor) -> Tensor:
    """A tensor of the host whose copy to a GPU is queued; from ordinary memory it might wait."""
    return tensor.pin_memory() if torch.cuda.is_available() else tensor


@dataclass(frozen=True)
class RequestChunks:
    """The tokens of one request in one step, where they are more than a decode step.

    Attributes:
        request: Request of the tokens.
        start: Index of the first of them among the tokens of the step.
        chunks: Chunks without an eviction inside, each with the metadata of the kernel where attention has to be
            computed again, else None.
        table: Blocks of the request.
    """

    request: RequestCache
    start: int
    chunks: list[tuple[Chunk, Any]]
    table: Tensor


@dataclass(frozen=True)
class StepWork:
    """The work in each layer after its attention.

    Attributes:
        group: Group of layers.
        tokens: Indices (n,) int64 of the step's tokens that are decode steps; None: the first n, which are all.
        rows, columns: Slots (n,) int64 of their queries in the window.
        chunked: Other requests.
    """

    group: LayerGroup
    tokens: Tensor | None
    rows: Tensor
    columns: Tensor
    chunked: list[RequestChunks]

    def after(self, impl: BoundedImpl, layer: Any, tensors: tuple[Tensor, ...], cache: Tensor) -> None:
        """Observe, and make the evictions that are due within the step.

        Args:
            impl, layer: Implementation and module of the attention layer that was run.
            tensors: Query, key, value and output of all tokens of the step.
            cache: Cache of the layer.
        """
        group, number, query = self.group, impl.number, tensors[0]
        if group.watches and len(self.rows):
            steps = query[: len(self.rows)] if self.tokens is None else query[self.tokens]
            group.watch(number, self.rows, self.columns, steps)
        for request in self.chunked:
            at = request.start
            for order, (chunk, again) in enumerate(request.chunks):
                part = [t[at : at + len(chunk)] for t in tensors]
                if again is not None:
                    impl.do_kv_cache_update(layer, part[1], part[2], cache, again.slot_mapping)
                    impl.forward(layer, *part[:3], cache, again, part[3])
                group.observe(number, request.request, chunk, part[0])
                if chunk.keep is not None and order + 1 < len(request.chunks):
                    group.evict(number, request.request, chunk, request.table)
                at += len(chunk)


class BoundedImpl:
    """Mixin of an attention implementation: one layer's attention.

    Attributes:
        bounded: Description of the layer, set once the model is loaded; None: the layer is not bounded.
        registry: Registry of the worker.
        number: Number of the layer within its group.
        probe: List that receives queries in place of the computation of attention; None: attention is computed.
    """

    bounded: BoundedAttention | None = None
    registry: RequestRegistry | None = None
    number: int = 0
    probe: list[Tensor] | None = None

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        if self.probe is not None:
            self.probe.append(query.detach().clone())
            return output.zero_()
        result = super().forward(layer, query, key, value, kv_cache, attn_metadata, output, *args, **kwargs)
        plan: StepWork | None = getattr(attn_metadata, "bounded", None)
        if plan is not None:
            plan.after(self, layer, (query, key, value, output), kv_cache)
        return result


def store_of(layer: Any) -> Write:
    """The function by which a layer's own kernels store entries in a cache."""
    return lambda keys, values, cache, slots: layer.impl.do_kv_cache_update(layer, keys, values, cache, slots)


class BoundedBuilder(ABC):
    """Mixin of a metadata builder: all layers of a group, before a step."""

    supports_update_block_table = False  # metadata of another group would hold other slots
    group: LayerGroup | None = None

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        if isinstance(kv_cache_spec, BoundedSpec):
            self._open(kv_cache_spec, layer_names, vllm_config, device)
        elif settings_of(vllm_config) is not None:
            for layer in get_layers_from_vllm_config(vllm_config, Attention, layer_names).values():
                require_our_worker(layer.impl.registry)

    def _open(self, spec: BoundedSpec, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        layers = get_layers_from_vllm_config(vllm_config, Attention, layer_names)
        impls = [layer.impl for layer in layers.values()]
        for number, impl in enumerate(impls):
            impl.number = number
        scheduler = vllm_config.scheduler_config
        self.registry: RequestRegistry = impls[0].registry
        self.group = LayerGroup(
            self.registry.settings.method,
            spec.schedule,
            spec.chunk,
            [impl.bounded for impl in impls],
            self.views(spec),
            max(scheduler.max_num_seqs, scheduler.max_num_active_seqs or 0),
            vllm_config.model_config.dtype,
            device,
        )
        self.registry.add(self.group, spec)
        self._slot_size = spec.block_size
        tokens = max(scheduler.max_num_batched_tokens, scheduler.max_num_seqs)
        with torch.inference_mode(False):
            # Graphs read these tensors, so their memory must not move.
            self._rows, self._columns = (torch.zeros(tokens, dtype=torch.int64, device=device) for _ in range(2))
            self._lengths = torch.zeros(tokens, dtype=torch.int32, device=device)

    @abstractmethod
    def views(self, spec: BoundedSpec) -> Views:
        """The function that reads the layout of a layer's cache."""

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        """With bounded layers, graphs of whole steps hold decode steps only: prompts need the host."""
        own = super().get_cudagraph_support(vllm_config, kv_cache_spec)
        if not isinstance(kv_cache_spec, BoundedSpec):
            return own
        least = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
        return least if own.value > least.value else own

    def use_cascade_attention(self, *args: Any, **kwargs: Any) -> bool:
        """False in bounded layers: requests share no blocks."""
        return self.group is None and super().use_cascade_attention(*args, **kwargs)

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False):
        if self.group is None:
            return super().build(common_prefix_len, common_attn_metadata, fast_build)
        names = self.registry.rows(common_attn_metadata)
        if names is None:
            return self._build_idle(common_attn_metadata, fast_build)
        starts = common_attn_metadata.query_start_loc_cpu.tolist()
        count = common_attn_metadata.num_actual_tokens
        blocks = common_attn_metadata.block_table_tensor
        lengths, rows, columns, tokens, chunked, places = [], [], [], [], [], []
        for index, name in enumerate(names):
            number = starts[index + 1] - starts[index]
            if number == 0:
                lengths.append(0)
                continue
            table = blocks[index]
            request, chunks = self.group.advance(name, number, table)
            first = chunks[0].stored
            lengths.append(first + number)
            places.append((index, first, number))
            if is_step(chunks):
                row, column = self.group.place(request)
                rows.append(row)
                columns.append(column)
                tokens.append(starts[index])
            else:
                chunked.append(RequestChunks(request, starts[index], self._repeats(chunks, table), table))
        # In place, since the forward pass holds the same tensor.
        common_attn_metadata.slot_mapping[: starts[len(names)]] = self._slots(blocks, places)
        metadata = super().build(0, self._held_lengths(common_attn_metadata, lengths), fast_build)
        if chunked:
            indices = [device_index(numbers, self.device) for numbers in (tokens, rows, columns)]
            metadata.bounded = StepWork(self.group, *indices, chunked)
        else:
            metadata.bounded = self._plan_steps(rows, columns, count)
        return metadata

    def _slots(self, blocks: Tensor, places: list[tuple[int, int, int]]) -> Tensor:
        """The slots (tokens,) of all new entries. places: row of the block table, first entry, number of entries."""
        rows, firsts, numbers = np.array(places).T
        entry = firsts
        if numbers.max() > 1:
            begin = numbers.cumsum() - numbers
            entry = np.arange(numbers.sum()) + np.repeat(firsts - begin, numbers)
            rows = np.repeat(rows, numbers)
        row, entry = staged(torch.from_numpy(np.stack([rows, entry]))).to(blocks.device, non_blocking=True)
        return blocks[row, entry // self._slot_size].long() * self._slot_size + entry % self._slot_size

    def _held_lengths(self, common: CommonAttentionMetadata, lengths: list[int]) -> CommonAttentionMetadata:
        """The metadata for vLLM's own builder: lengths in entries held, not in tokens seen."""
        lengths = lengths + [0] * (common.num_reqs - len(lengths))
        on_host = torch.tensor(lengths, dtype=torch.int32)
        held = self._lengths[: len(lengths)]
        held.copy_(staged(on_host), non_blocking=True)
        return replace(
            common,
            seq_lens=held,
            max_seq_len=max(lengths),
            seq_lens_cpu_upper_bound=None if common.seq_lens_cpu_upper_bound is None else on_host,
            _num_computed_tokens_cache=None,
        )

    def _plan_steps(self, rows: list[int], columns: list[int], count: int) -> StepWork:
        """The plan of a step in which each request has one token. ``count``: tokens, padding of a graph included."""
        spare = count - len(rows)
        for buffer, numbers, rest in ((self._rows, rows, self.group.dummy_row), (self._columns, columns, 0)):
            buffer[:count].copy_(staged(torch.tensor(numbers + [rest] * spare)), non_blocking=True)
        return StepWork(self.group, None, self._rows[:count], self._columns[:count], [])

    def _build_idle(self, common: CommonAttentionMetadata, fast_build: bool) -> Any:
        """The metadata of a step without requests: a trial run, or the capture of a graph."""
        lengths = self._lengths[: common.num_reqs]
        lengths.copy_(common.seq_lens[: common.num_reqs])
        metadata = super().build(0, replace(common, seq_lens=lengths, _num_computed_tokens_cache=None), fast_build)
        if common.max_query_len == 1:
            metadata.bounded = self._plan_steps([], [], common.num_actual_tokens)
        return metadata

    def _repeats(self, chunks: list[Chunk], table: Tensor) -> list[tuple[Chunk, Any]]:
        """The chunks that have to be stored and computed again: those after an eviction in this step."""
        evicted, planned = False, []
        for chunk in chunks:
            planned.append((chunk, self._alone(chunk, table) if evicted else None))
            evicted = evicted or chunk.keep is not None
        return planned

    def _alone(self, chunk: Chunk, table: Tensor) -> Any:
        """The metadata of the kernel for one chunk by itself."""
        count, length = len(chunk), chunk.stored + len(chunk)
        bounds = torch.tensor([0, count], dtype=torch.int32)
        common = CommonAttentionMetadata(
            query_start_loc=bounds.to(self.device),
            query_start_loc_cpu=bounds,
            seq_lens=torch.tensor([length], dtype=torch.int32).to(self.device),
            num_reqs=1,
            num_actual_tokens=count,
            max_query_len=count,
            max_seq_len=length,
            block_table_tensor=table[None].to(torch.int32),
            slot_mapping=slots_of(table, chunk.stored, length, self._slot_size),
            causal=True,
        )
        return super().build(0, common, True)
