"""The policy states of one group of layers, for each request, and its evictions.

A group is the layers whose blocks are numbered alike. Decode steps leave their queries in a window, one small copy a
layer; the policy is shown them when the window is full or an eviction is due, the heads of all layers stacked, as
:class:`~beaconkv.cache.LayerStack` does it. Prompts go layer by layer, while each is under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...cache import Chunk, EvictionSchedule, Progress, Retention, evict, stacked_params
from ...policies import EvictionPolicy, LayerState
from ...types import AttentionParams, CacheView, Rows
from .entries import BlockStore, Views
from .rotary import LayerRope

WINDOW = 8
"""Maximum number of queries of a request that wait for the policy."""

SINGLE = Rows([0])
"""Rows of a request, which is a batch of one row."""


@dataclass(frozen=True)
class BoundedAttention:
    """One attention layer.

    Attributes:
        name: in the model.
        heads, kv_heads, head_dim: H, H_kv, D, of this rank.
        rope: rotation of its queries.
        params: how it computes its logits.
        cache: gives its blocks, in vLLM's own layout.
    """

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    rope: LayerRope
    params: AttentionParams
    cache: Callable[[], Tensor]


@dataclass
class RequestCache:
    """One request in one group of layers.

    Attributes:
        progress: counter of its tokens and entries.
        row: its row in the window.
        waiting: number of queries in the window that the policy has not seen.
        states: one of each layer, or one of all of them stacked.
        held: per state, (H_kv, K) int32: positions of the entries that the last eviction left; None before the first.
        pending: per layer, queries of the prefill chunk that goes on in another step.
    """

    progress: Progress
    row: int
    waiting: int
    states: list[LayerState]
    held: list[Tensor | None]
    pending: list[list[Tensor]] = field(repr=False)


@dataclass
class Totals:
    """Counts since the start, per layer and KV head: evictions are the same in all of them.

    Attributes:
        evictions, dropped: numbers of evictions and of dropped entries of all requests.
        seen: tokens of all requests, those of a prompt that is read again after a preemption included.
    """

    evictions: int = 0
    dropped: int = 0
    seen: int = 0


def is_step(chunks: list[Chunk]) -> bool:
    """Whether a step's tokens of a request are a decode step."""
    return len(chunks) == 1 and chunks[0].prefill_start is None and len(chunks[0]) == 1


class LayerGroup:
    """Requests in layers that share a block table.

    Args:
        policy, schedule: policy and schedule of all requests.
        chunk: number of prompt tokens in each chunk, see :class:`~beaconkv.cache.Progress`.
        layers: in the order of the model, with equal numbers of heads.
        views: reads the layout of their caches.
        max_requests: that run at a time.
        dtype, device: dtype and device of the queries.
    """

    def __init__(
        self,
        policy: EvictionPolicy,
        schedule: EvictionSchedule,
        chunk: int,
        layers: list[BoundedAttention],
        views: Views,
        max_requests: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.policy, self.schedule, self.chunk, self.layers, self.views = policy, schedule, chunk, layers, views
        self.requests: dict[str, RequestCache] = {}
        self.totals = Totals()
        self._free_rows = list(range(max_requests))
        first = layers[0]
        self.watches = type(policy.new_state(1)).observe is not LayerState.observe
        shape = (max_requests + 1, WINDOW, len(layers), first.heads, first.head_dim)
        with torch.inference_mode(False):
            self.window = torch.zeros(shape if self.watches else (0,), dtype=dtype, device=device)
        self.dummy_row = max_requests
        """The dummy row of the window, which receives the queries of padding tokens (CUDA graphs)."""
        same_rope = all(layer.rope is first.rope for layer in layers)
        self.stacked_params = stacked_params([layer.params for layer in layers])
        self.stacks = policy.per_head and same_rope and self.stacked_params is not None

    def begin(self, name: str, prompt: int) -> None:
        """A request starts, or starts anew. prompt: number of tokens of its prompt."""
        self.drop(name)
        count = len(self.layers)
        self.requests[name] = RequestCache(
            Progress(self.schedule, prompt, self.chunk),
            self._free_rows.pop(),
            0,
            [self.policy.new_state(1) for _ in range(count)],
            [None] * count,
            [[] for _ in range(count)],
        )

    def drop(self, name: str) -> None:
        """Forget a request, if it is known."""
        if (request := self.requests.pop(name, None)) is not None:
            self._free_rows.append(request.row)

    def advance(self, name: str, tokens: int, table: Tensor) -> tuple[RequestCache, list[Chunk]]:
        """Called before tokens are stored: carries out the eviction that is due.

        Args:
            name: name of the request.
            tokens: number of its tokens in this step.
            table: (n,) int64, its blocks in order.

        Returns:
            The request, and the chunks of its tokens. The first chunk's ``stored`` is the slot of the first token.
        """
        request = self.requests[name]
        progress = request.progress
        if progress.due is not None:
            self._show_window(request)
            count, keep = progress.stored, progress.due
            for numbers, index in self._states(request):
                self._evict(request, index, numbers, table, count, keep, progress.seen)
            progress.settle()
        elif request.waiting == WINDOW or tokens > 1:
            self._show_window(request)
        chunks = progress.advance(tokens)
        if is_step(chunks):
            self._stack(request)
        else:
            self._unstack(request)
        self.totals.seen += tokens
        return request, chunks

    def place(self, request: RequestCache) -> tuple[int, int]:
        """Row and column, in the window, of the query of a decode step."""
        request.waiting += 1
        return request.row, request.waiting - 1

    def watch(self, number: int, rows: Tensor, columns: Tensor, queries: Tensor) -> None:
        """Keep the queries of decode steps.

        Args:
            number: index of the layer, within the group.
            rows, columns: (n,) int64, see :meth:`place`.
            queries: (n, H, D) after RoPE.
        """
        self.window[rows, columns, number] = queries

    def observe(self, number: int, request: RequestCache, chunk: Chunk, queries: Tensor) -> None:
        """Let the policy observe the queries of a chunk, in one layer.

        Args:
            number: index of the layer, within the group.
            request: whose tokens these are.
            chunk: which of its tokens.
            queries: (m, H, D) after RoPE.
        """
        state, rope = request.states[number], self.layers[number].rope
        if not self.watches:
            return
        if chunk.prefill_start is None:
            left = [chunk.left + len(chunk) - 1 - step for step in range(len(chunk))]
            state.observe_steps(queries.transpose(0, 1)[None], rope.steps(chunk.start, chunk.stop), left, SINGLE)
        elif chunk.left is None:
            request.pending[number].append(queries.clone())  # the chunk continues in another step
        else:
            pending, request.pending[number] = request.pending[number], []
            whole = torch.cat([*pending, queries]) if pending else queries
            state.observe(
                whole.transpose(0, 1)[None], rope.steps(chunk.prefill_start, chunk.stop), [chunk.left], SINGLE, None
            )

    def evict(self, number: int, request: RequestCache, chunk: Chunk, table: Tensor) -> None:
        """Evict after a chunk, in one layer, within a step."""
        self._evict(request, number, [number], table, chunk.stored + len(chunk), chunk.keep, chunk.stop)

    def _states(self, request: RequestCache) -> list[tuple[list[int], int]]:
        """Pairs of the numbers of layers and the index of their state."""
        every = list(range(len(self.layers)))
        return [(every, 0)] if len(request.states) < len(every) else [([number], number) for number in every]

    def _show_window(self, request: RequestCache) -> None:
        """Let the policy observe the queries in the window."""
        waiting, request.waiting = request.waiting, 0
        if not waiting or not self.watches:
            return
        progress = request.progress
        stop = progress.seen
        left = [progress.left + waiting - 1 - step for step in range(waiting)]
        queries = self.window[request.row, :waiting].transpose(0, 2).transpose(0, 1)  # (L, H, m, D)
        for numbers, index in self._states(request):
            heads = queries[numbers[0] : numbers[-1] + 1].flatten(0, 1)[None]
            rope = self.layers[numbers[0]].rope.steps(stop - waiting, stop)
            request.states[index].observe_steps(heads, rope, left, SINGLE)

    def _evict(
        self, request: RequestCache, index: int, numbers: list[int], table: Tensor, count: int, keep: int, seen: int
    ) -> None:
        """Evict down to ``keep`` of ``count`` entries in these layers, after ``seen`` tokens."""
        first = self.layers[numbers[0]]
        caches = [self.views(self.layers[number].cache()) for number in numbers]
        store = BlockStore(caches, table, request.held[index])
        entries = store.entries(count, seen)
        params = first.params if len(numbers) == 1 else self.stacked_params
        now = torch.full((1,), seen - 1, dtype=torch.int64, device=entries[0].device)
        view = CacheView(*entries, now, first.rope.steps(seen - 1, seen), params, SINGLE, len(numbers))
        retention = Retention(keep, self.schedule.prefix_for(request.progress.prompt), self.schedule.protect)
        evict(self.policy, request.states[index], view, store, retention)
        request.held[index] = store.held
        if numbers[0] == 0:
            self.totals.evictions += 1
            self.totals.dropped += count - keep

    def _stack(self, request: RequestCache) -> None:
        """Stack the states of all layers into one from now on, if the layers allow it."""
        if len(request.states) < len(self.layers) or not self.stacks or len(self.layers) == 1:
            return
        stacked = type(request.states[0]).stack(request.states)
        if stacked is not None:
            request.states = [stacked]
            request.held = [None if request.held[0] is None else torch.cat(request.held)]

    def _unstack(self, request: RequestCache) -> None:
        """Unstack the state: each layer has its own again."""
        count = len(self.layers)
        if len(request.states) < count:
            held = request.held[0]
            request.states = request.states[0].unstack(count)
            request.held = [None] * count if held is None else list(held.chunk(count))

    def state_bytes(self) -> int:
        """Bytes outside the blocks: the window, and the policy states of the running requests."""
        states = sum(
            sum(state.nbytes for state in request.states) + sum(h.nbytes for h in request.held if h is not None)
            for request in self.requests.values()
        )
        return self.window.nbytes + states
