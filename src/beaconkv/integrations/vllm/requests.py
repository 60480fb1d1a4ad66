"""The policy's side of one group of layers: what it has seen of each request, and the entries it keeps.

A group is the layers whose blocks are numbered alike. Decode steps leave their queries in a window, one small copy a
layer; the policy is shown them when the window is full or an eviction is due, the heads of all layers side by side, as
:class:`~beaconkv.cache.LayerStack` does it. Prompts go layer by layer, while each is under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ... import ops
from ...cache import EvictionSchedule, Progress, Run
from ...policies import EvictionPolicy, LayerState
from ...types import AttentionParams, CacheView, Rows
from .entries import Views, read, write
from .rotary import LayerRope

WINDOW = 8
"""Queries of a request that wait for the policy at most."""

ALONE = Rows([0])


@dataclass(frozen=True)
class BoundedAttention:
    """What is known of one attention layer.

    Attributes:
        name: in the model.
        heads, kv_heads, head_dim: H, H_kv, D, of this rank.
        rope: what turns its queries.
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
        progress: how many tokens it has seen, how many entries it holds.
        row: its place in the window.
        waiting: queries in the window that the policy has not seen.
        states: of each layer; or of all of them together, one.
        held: per state, (H_kv, K) int32: positions of the entries that the last eviction left; None before the first.
        parts: per layer, queries of the piece of the prompt under way.
    """

    progress: Progress
    row: int
    waiting: int
    states: list[LayerState]
    held: list[Tensor | None]
    parts: list[list[Tensor]] = field(repr=False)


@dataclass
class Totals:
    """Counted since the start, per layer and KV head: requests are evicted alike in all of them.

    Attributes:
        evictions, dropped: of all requests.
        seen: tokens of all requests, those of a prompt that is read again after a preemption included.
    """

    evictions: int = 0
    dropped: int = 0
    seen: int = 0


def is_step(runs: list[Run]) -> bool:
    """Whether a step's tokens of a request are a decode step."""
    return len(runs) == 1 and runs[0].piece is None and len(runs[0]) == 1


class LayerGroup:
    """Requests in layers that share a block table.

    Args:
        policy, schedule: of all requests.
        piece: see :class:`~beaconkv.cache.Progress`.
        layers: in the order of the model, with equal numbers of heads.
        views: reads the layout of their caches.
        max_requests: that run at a time.
        dtype, device: of the queries.
    """

    def __init__(
        self,
        policy: EvictionPolicy,
        schedule: EvictionSchedule,
        piece: int,
        layers: list[BoundedAttention],
        views: Views,
        max_requests: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.policy, self.schedule, self.piece, self.layers, self.views = policy, schedule, piece, layers, views
        self.requests: dict[str, RequestCache] = {}
        self.totals = Totals()
        self._free_rows = list(range(max_requests))
        first = layers[0]
        self.watches = type(policy.new_state(1)).observe is not LayerState.observe
        shape = (max_requests + 1, WINDOW, len(layers), first.heads, first.head_dim)
        with torch.inference_mode(False):
            self.window = torch.zeros(shape if self.watches else (0,), dtype=dtype, device=device)
        self.spare_row = max_requests
        """A row of the window that belongs to no request: where queries go that nobody asked for."""
        same_rope = all(layer.rope is first.rope for layer in layers)
        kinds = {(layer.params.scaling, layer.params.softcap, layer.params.sinks is None) for layer in layers}
        self.joins = policy.per_head and same_rope and len(kinds) == 1
        sinks = None if first.params.sinks is None else torch.cat([layer.params.sinks for layer in layers])
        self._joint = AttentionParams(first.params.scaling, first.params.softcap, sinks)

    def begin(self, name: str, prompt: int) -> None:
        """A request starts, or starts anew, with a prompt of so many tokens."""
        self.drop(name)
        count = len(self.layers)
        self.requests[name] = RequestCache(
            Progress(self.schedule, prompt, self.piece),
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

    def advance(self, name: str, tokens: int, table: Tensor) -> tuple[RequestCache, list[Run]]:
        """Tokens are coming: what is due is evicted, so that they can be stored behind what stays.

        Args:
            name: of the request.
            tokens: of this step.
            table: (n,) int64, its blocks in order.

        Returns:
            The request, and the runs its tokens fall into. The first run's ``stored`` is where they go.
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
        runs = progress.advance(tokens)
        if is_step(runs):
            self._join(request)
        else:
            self._part(request)
        self.totals.seen += tokens
        return request, runs

    def place(self, request: RequestCache) -> tuple[int, int]:
        """Where the query of a decode step goes: a row of the window, and a column."""
        request.waiting += 1
        return request.row, request.waiting - 1

    def watch(self, number: int, rows: Tensor, columns: Tensor, queries: Tensor) -> None:
        """Keep the queries of decode steps.

        Args:
            number: of the layer, within the group.
            rows, columns: (n,) int64, see :meth:`place`.
            queries: (n, H, D) after RoPE.
        """
        self.window[rows, columns, number] = queries

    def observe(self, number: int, request: RequestCache, run: Run, queries: Tensor) -> None:
        """Show the policy the queries of a run, in one layer.

        Args:
            number: of the layer, within the group.
            request: whose tokens these are.
            run: of them.
            queries: (m, H, D) after RoPE.
        """
        state, rope = request.states[number], self.layers[number].rope
        if not self.watches:
            return
        if run.piece is None:
            left = [run.left + len(run) - 1 - step for step in range(len(run))]
            state.observe_steps(queries.transpose(0, 1)[None], rope.steps(run.start, run.stop), left, ALONE)
        elif run.left is None:
            request.parts[number].append(queries.clone())  # the piece goes on in another step
        else:
            parts, request.parts[number] = request.parts[number], []
            whole = torch.cat([*parts, queries]) if parts else queries
            state.observe(whole.transpose(0, 1)[None], rope.steps(run.piece, run.stop), [run.left], ALONE, None)

    def evict(self, number: int, request: RequestCache, run: Run, table: Tensor) -> None:
        """Evict after a run, in one layer, while the step goes on."""
        self._evict(request, number, [number], table, run.stored + len(run), run.keep, run.stop)

    def _states(self, request: RequestCache) -> list[tuple[list[int], int]]:
        """(numbers of layers, which state is theirs)."""
        every = list(range(len(self.layers)))
        return [(every, 0)] if len(request.states) < len(every) else [([number], number) for number in every]

    def _show_window(self, request: RequestCache) -> None:
        """Show the policy the queries that wait."""
        waiting, request.waiting = request.waiting, 0
        if not waiting or not self.watches:
            return
        progress = request.progress
        stop, full_at = progress.seen, self.schedule.full_in_step_at(progress.prompt, progress.evictions)
        left = [full_at - (progress.stored - waiting + 1 + step) for step in range(waiting)]
        queries = self.window[request.row, :waiting].transpose(0, 2).transpose(0, 1)  # (L, H, m, D)
        for numbers, index in self._states(request):
            heads = queries[numbers[0] : numbers[-1] + 1].flatten(0, 1)[None]
            rope = self.layers[numbers[0]].rope.steps(stop - waiting, stop)
            request.states[index].observe_steps(heads, rope, left, ALONE)

    def _evict(
        self, request: RequestCache, index: int, numbers: list[int], table: Tensor, count: int, keep: int, seen: int
    ) -> None:
        """Of ``count`` entries in these layers leave ``keep``, after ``seen`` tokens."""
        caches = [self.views(self.layers[number].cache()) for number in numbers]
        keys, values = (torch.cat([read(cache[part], table, count) for cache in caches])[None] for part in (0, 1))
        positions = self._positions(request.held[index], keys, seen)
        alone = len(numbers) == 1
        params = self.layers[numbers[0]].params if alone else self._joint
        now = torch.full((1,), seen - 1, dtype=torch.int64, device=keys.device)
        rope = self.layers[numbers[0]].rope.steps(seen - 1, seen)
        view = CacheView(keys, values, positions, now, rope, params, ALONE, len(numbers))
        scores = self.policy.score(view, request.states[index])
        prefix, protect = self.schedule.prefix_for(request.progress.prompt), self.schedule.protect
        chosen = ops.select_entries(scores, positions, keep, prefix=prefix, protect=protect)
        source = ops.fill_holes_source(chosen, count)
        into, from_ = ops.hole_moves(source, count)
        moved = [ops.gather_entries(entries, from_)[0] for entries in (keys, values)]
        for layer, cache in enumerate(caches):
            heads = slice(layer * cache[0].shape[1], (layer + 1) * cache[0].shape[1])
            for entries, new in zip(cache, moved, strict=True):
                write(entries, table, into[0, heads], new[heads])
        request.states[index].evicted(source, ALONE)
        request.held[index] = ops.gather_entries(positions, source)[0]
        if numbers[0] == 0:
            self.totals.evictions += 1
            self.totals.dropped += count - keep

    def _positions(self, held: Tensor | None, keys: Tensor, seen: int) -> Tensor:
        """(1, heads, N) int32: those of the entries that were left, then one by one up to now."""
        heads, count = keys.shape[1:3]
        kept = 0 if held is None else held.shape[1]
        newer = torch.arange(seen - (count - kept), seen, dtype=torch.int32, device=keys.device).expand(heads, -1)
        return (newer if held is None else torch.cat([held, newer], dim=1))[None]

    def _join(self, request: RequestCache) -> None:
        """All layers are seen together from now on, if nothing stands against it."""
        if len(request.states) < len(self.layers) or not self.joins or len(self.layers) == 1:
            return
        joint = type(request.states[0]).stack(request.states)
        if joint is not None:
            request.states = [joint]
            request.held = [None if request.held[0] is None else torch.cat(request.held)]

    def _part(self, request: RequestCache) -> None:
        """Layer by layer again."""
        count = len(self.layers)
        if len(request.states) < count:
            held = request.held[0]
            request.states = request.states[0].unstack(count)
            request.held = [None] * count if held is None else list(held.chunk(count))

    def state_bytes(self) -> int:
        """Bytes beside the blocks: the window, and what is remembered of the requests that run now."""
        states = sum(
            sum(state.nbytes for state in request.states) + sum(h.nbytes for h in request.held if h is not None)
            for request in self.requests.values()
        )
        return self.window.nbytes + states
