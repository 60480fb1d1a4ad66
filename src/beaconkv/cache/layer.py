"""One layer's bounded cache: storage, order of events, and nothing of any host.

A forward pass does, in this order:

    inputs = layer.append(keys, values, real)    entries that the new queries may attend to
    ... the host computes attention over them ...
    layer.observe(queries, rope, params)          the policy sees the queries; full rows are evicted

Rows may differ in length (left-padded batches). All lengths are known to the host by counting, so a
decode step never waits for the device.

    slot      0 ........ length          capacity
    row 0     |entries...|  free         |
    row 1     |entries........|  free    |

The slots of a row are in order of time until holes are first filled; ``positions`` always tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import ops
from ..policies import EvictionPolicy, LayerState
from ..types import AttentionParams, CacheView, EvictionEvent, Rope, Rows, group_rows
from .schedule import EvictionSchedule

GROWTH = 256
"""Slots by which a cache without a budget grows."""


@dataclass(frozen=True)
class AttentionInputs:
    """What m new queries attend to.

    Attributes:
        keys, values: (B, H_kv, N, D); for m > 1 the last m entries are the new tokens themselves.
        valid: (B, N) bool, entries that exist, or None when all do. The order within the new tokens
            (each sees itself and earlier ones) is left to the host.
    """

    keys: Tensor
    values: Tensor
    valid: Tensor | None


@dataclass(frozen=True)
class _Chunk:
    """Entries on their way in: attended to, not yet stored."""

    keys: Tensor
    values: Tensor
    real: Tensor | None
    counts: list[int]


class BoundedLayer:
    """Keys, values and positions of one layer in slabs (B, H_kv, capacity, D) allocated once.

    Args:
        policy: what to keep.
        schedule: when, and how much.
        index: the layer's number in the model, for events and errors.
        on_evict: called after each eviction with an :class:`~beaconkv.types.EvictionEvent`.
    """

    def __init__(
        self,
        policy: EvictionPolicy,
        schedule: EvictionSchedule,
        index: int = 0,
        on_evict: Callable[[EvictionEvent], None] | None = None,
    ) -> None:
        if policy.evicts and schedule.budget is None:
            raise ValueError(f"policy {policy.name!r} needs a budget")
        if not policy.evicts and schedule.budget is not None:
            raise ValueError(f"policy {policy.name!r} never evicts: budget must be None, got {schedule.budget}")
        self.policy, self.schedule, self.index, self.on_evict = policy, schedule, index, on_evict
        self.reset()

    def reset(self) -> None:
        """Forget everything, counters included."""
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.positions: Tensor | None = None  # (B, H_kv, capacity) int32
        self.state: LayerState | None = None
        self.lengths: list[int] = []  # per row: entries stored
        self.num_seen: list[int] = []  # per row: tokens seen, the next logical position
        self.prompts: list[int] = []  # per row: tokens of the first forward pass
        self.num_evictions: list[int] = []  # per row
        self.entries_dropped = self.peak_entries = self.peak_extra_bytes = 0
        self._lengths: Tensor | None = None  # lengths on the device, used when rows differ
        self._chunk: _Chunk | None = None

    # ----- storage -----

    @property
    def is_open(self) -> bool:
        """Whether the slabs are allocated."""
        return self.keys is not None

    def open(self, keys: Tensor, values: Tensor, prompts: list[int]) -> None:
        """Allocate for a batch whose first forward pass brings so many real tokens per row.

        Args:
            keys, values: any new entries (B, H_kv, m, D): shapes, dtype and device are taken from them.
            prompts: real tokens per row.

        Raises:
            ValueError: a prompt that, protected as prefix, leaves no room within the budget.
        """
        batch, heads, _, dim = keys.shape
        if self.schedule.budget is None:
            capacity = GROWTH
        else:
            for prompt in prompts:
                self.schedule.kept_for(prompt)
            capacity = max(self.schedule.full_at(prompt) for prompt in prompts)
        # Zeros, not empty: free slots of a shorter row are masked, but 0 times NaN would still be NaN.
        self.keys = keys.new_zeros(batch, heads, capacity, dim)
        self.values = values.new_zeros(batch, heads, capacity, values.shape[-1])
        self.positions = torch.zeros(batch, heads, capacity, dtype=torch.int32, device=keys.device)
        self._lengths = torch.zeros(batch, dtype=torch.int64, device=keys.device)
        self.lengths, self.num_seen, self.num_evictions = [0] * batch, [0] * batch, [0] * batch
        self.prompts = list(prompts)
        self.state = self.policy.new_state(batch)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the key and value slabs."""
        return self.keys.untyped_storage().nbytes() + self.values.untyped_storage().nbytes() if self.is_open else 0

    @property
    def state_bytes(self) -> int:
        """Bytes of positions, lengths and the policy's state."""
        return self.positions.nbytes + self._lengths.nbytes + self.state.nbytes if self.is_open else 0

    @property
    def formula_bytes(self) -> int:
        """Bytes the slabs should take: rows · H_kv · capacity · (D_key + D_value) · itemsize."""
        if not self.is_open:
            return 0
        batch, heads, capacity, dim = self.keys.shape
        if self.schedule.budget is not None:
            capacity = max(self.schedule.full_at(prompt) for prompt in self.prompts)
        return batch * heads * capacity * (dim + self.values.shape[-1]) * self.keys.element_size()

    def held_positions(self) -> Tensor:
        """(B, H_kv, max length) int32: logical positions held now, ascending; -1 fills shorter rows."""
        if not self.is_open:
            return torch.empty(0, 0, 0, dtype=torch.int32)
        longest = max(self.lengths)
        last = torch.iinfo(torch.int32).max
        free = torch.arange(longest, device=self.positions.device) >= self._lengths.view(-1, 1, 1)
        held = self.positions[:, :, :longest].masked_fill(free, last).sort(dim=-1).values
        return held.masked_fill(held == last, -1)

    def _ensure_capacity(self, needed: int) -> None:
        """Grow the slabs of a cache without a budget."""
        capacity = self.keys.shape[2]
        if needed <= capacity:
            return
        more = -(-(needed - capacity) // GROWTH) * GROWTH
        self.keys, self.values, self.positions = (
            torch.cat([t, t.new_zeros(*t.shape[:2], more, *t.shape[3:])], dim=2)
            for t in (self.keys, self.values, self.positions)
        )

    # ----- a forward pass -----

    def append(
        self, keys: Tensor, values: Tensor, real: Tensor | None = None, counts: list[int] | None = None
    ) -> AttentionInputs:
        """Take new entries in; returns the :class:`AttentionInputs` of their queries.

        Args:
            keys, values: (B, H_kv, m, D), keys after RoPE.
            real: (B, m) bool, False where a token is padding; None when none is.
            counts: real tokens per row, if the host knows them already.

        Raises:
            ValueError: shapes that do not fit what is stored.
            RuntimeError: the queries of the previous entries were never observed.
        """
        if self._chunk is not None:
            raise RuntimeError(f"layer {self.index}: append() twice without observe()")
        keys, values = keys.detach(), values.detach()
        if counts is None:
            counts = [keys.shape[2]] * keys.shape[0] if real is None else real.sum(dim=1).tolist()
        if not self.is_open:
            self.open(keys, values, counts)
        expected = (*self.keys.shape[:2], self.keys.shape[3])
        if (*keys.shape[:2], keys.shape[3]) != expected:
            raise ValueError(
                f"layer {self.index}: new keys (B, H_kv, m, D) = {tuple(keys.shape)} do not fit the cache's "
                f"(B, H_kv, D) = {expected}; use a new cache for another batch"
            )
        if keys.shape[2] == 1 and real is None:
            return self._append_step(keys, values)
        return self._append_chunk(keys, values, real, counts)

    def _append_step(self, keys: Tensor, values: Tensor) -> AttentionInputs:
        """One token in every row, written in place."""
        longest = max(self.lengths)
        self._ensure_capacity(longest + 1)
        if min(self.lengths) == longest and min(self.num_seen) == max(self.num_seen):
            self.keys[:, :, longest] = keys[:, :, 0]
            self.values[:, :, longest] = values[:, :, 0]
            self.positions[:, :, longest] = self.num_seen[0]
            valid = None
            self._lengths.add_(1)
        else:
            row = torch.arange(len(self.lengths), device=keys.device)
            self.keys[row, :, self._lengths] = keys[:, :, 0]
            self.values[row, :, self._lengths] = values[:, :, 0]
            seen = torch.tensor(self.num_seen, dtype=torch.int32, device=keys.device)
            self.positions[row, :, self._lengths] = seen.unsqueeze(1)
            self._lengths.add_(1)
            valid = torch.arange(longest + 1, device=keys.device) < self._lengths.unsqueeze(1)
        self.lengths = [n + 1 for n in self.lengths]
        self.num_seen = [n + 1 for n in self.num_seen]
        self.peak_entries = max(self.peak_entries, longest + 1)
        return AttentionInputs(self.keys[:, :, : longest + 1], self.values[:, :, : longest + 1], valid)

    def _append_chunk(self, keys: Tensor, values: Tensor, real: Tensor | None, counts: list[int]) -> AttentionInputs:
        """Several tokens: attended to beside what is stored, and stored by :meth:`observe`."""
        self._chunk = _Chunk(keys, values, real, counts)
        longest, valid = max(self.lengths), None
        if longest == 0:
            inputs = AttentionInputs(keys, values, real)
        else:
            if real is not None or min(self.lengths) < longest:
                stored = torch.arange(longest, device=keys.device) < self._lengths.unsqueeze(1)
                new = torch.ones(keys.shape[0], keys.shape[2], dtype=torch.bool, device=keys.device)
                valid = torch.cat([stored, new if real is None else real], dim=1)
            all_keys = torch.cat([self.keys[:, :, :longest], keys], dim=2)
            inputs = AttentionInputs(all_keys, torch.cat([self.values[:, :, :longest], values], dim=2), valid)
        most = max(n + c for n, c in zip(self.lengths, counts, strict=True))
        self.peak_entries = max(self.peak_entries, most)
        self.peak_extra_bytes = max(self.peak_extra_bytes, inputs.keys.nbytes + inputs.values.nbytes)
        return inputs

    def observe(self, queries: Tensor, rope: Rope, params: AttentionParams) -> None:
        """Let the policy see the queries of the entries appended last, and evict the rows that are full.

        Args:
            queries: (B, H, m, D) after RoPE.
            rope: the model's rope of these m tokens.
            params: how the layer computes its logits.
        """
        queries = queries.detach()
        if self._chunk is not None:
            chunk, self._chunk = self._chunk, None
            self._store_chunk(chunk, queries, rope, params)
            return
        left = [self._until_full(row, self.lengths[row]) for row in range(len(self.lengths))]
        everyone = Rows(list(range(len(left))))
        view = self._view(everyone, rope, params, queries.shape[1]) if self.policy.observes_entries else None
        self.state.observe(queries, rope, left, everyone, view)
        if min(left) <= 0:
            keys = [self._group_key(row) if n <= 0 else None for row, n in enumerate(left)]
            for key, rows in group_rows(keys, queries.device):
                if key is not None:
                    view = self._view(rows, rope.of_rows(rows), params, queries.shape[1])
                    self._evict(view, in_place=True)

    def _store_chunk(self, chunk: _Chunk, queries: Tensor, rope: Rope, params: AttentionParams) -> None:
        """Store a chunk, row group by row group; what does not fit is evicted before it is stored."""
        keys = [(self._group_key(row), count) if count else None for row, count in enumerate(chunk.counts)]
        for key, rows in group_rows(keys, queries.device):
            if key is None:
                continue
            count, first = key[1], rows.numbers[0]
            new_keys, new_values, new_queries = (rows.take(t) for t in (chunk.keys, chunk.values, queries))
            new_rope = rope.of_rows(rows)
            if chunk.real is not None and count < new_keys.shape[2]:
                order = (~rows.take(chunk.real)).to(torch.int8).argsort(dim=1, stable=True)[:, :count]
                new_keys, new_values, new_queries = (_pick(t, order) for t in (new_keys, new_values, new_queries))
                new_rope = new_rope.gather(order)
            stored, seen = self.lengths[first], self.num_seen[first]
            length = stored + count
            left = self._until_full(first, length)
            positions = torch.arange(seen, seen + count, dtype=torch.int32, device=queries.device)
            for row in rows.numbers:
                self.num_seen[row] = seen + count
            if left > 0:
                self._ensure_capacity(length)
                rows.put(self.keys, 2, stored, new_keys)
                rows.put(self.values, 2, stored, new_values)
                rows.put(self.positions, 2, stored, positions.expand(len(rows), new_keys.shape[1], -1))
                self._set_length(rows, length)
                view = self._view(rows, new_rope, params, queries.shape[1])
            else:
                view = CacheView(
                    torch.cat([rows.take(self.keys)[:, :, :stored], new_keys], dim=2),
                    torch.cat([rows.take(self.values)[:, :, :stored], new_values], dim=2),
                    torch.cat(
                        [rows.take(self.positions)[:, :, :stored], positions.expand(*new_keys.shape[:2], -1)], dim=2
                    ),
                    torch.full((len(rows),), seen + count - 1, device=queries.device),
                    new_rope.steps(count - 1, count),
                    params,
                    queries.shape[1],
                    rows,
                )
            seen_view = view if self.policy.observes_entries else None
            self.state.observe(new_queries, new_rope, [left] * len(rows), rows, seen_view)
            if left <= 0:
                self._evict(view, in_place=False)

    # ----- eviction -----

    def _evict(self, view: CacheView, in_place: bool) -> None:
        """Score, select, compact. All rows of the view are alike and hold as many entries."""
        rows, first = view.rows, view.rows.numbers[0]
        num_entries, kept = view.keys.shape[2], self.schedule.kept_for(self.prompts[first])
        scores = self.policy.score(view, self.state)
        keep = ops.select_entries(
            scores,
            view.positions,
            kept,
            prefix=self.schedule.prefix_for(self.prompts[first]),
            protect=self.schedule.protect,
        )
        event = self._event(view, scores, keep) if self.on_evict is not None else None
        if in_place:
            source = ops.fill_holes_source(keep, num_entries)
            ops.fill_holes([self.keys, self.values, self.positions], source, num_entries, rows)
        else:
            source = keep
            for slab, entries in ((self.keys, view.keys), (self.values, view.values), (self.positions, view.positions)):
                rows.put(slab, 2, 0, ops.gather_entries(entries, source))
        self._set_length(rows, kept)
        self.state.evicted(source, rows)
        for row in rows.numbers:
            self.num_evictions[row] += 1
        self.entries_dropped += (num_entries - kept) * len(rows) * self.keys.shape[1]
        if event is not None:
            self.on_evict(event)

    def _event(self, view: CacheView, scores: Tensor, keep: Tensor) -> EvictionEvent:
        gone = torch.ones(view.positions.shape, dtype=torch.bool, device=keep.device).scatter_(-1, keep, False)
        dropped = view.positions[gone].view(*keep.shape[:2], -1)
        return EvictionEvent(
            self.index,
            list(view.rows.numbers),
            [self.num_seen[row] - 1 for row in view.rows.numbers],
            view.positions.clone(),
            scores,
            view.positions.gather(-1, keep).sort(dim=-1).values,
            dropped.sort(dim=-1).values,
        )

    def _view(self, rows: Rows, rope: Rope, params: AttentionParams, num_heads: int) -> CacheView:
        """The stored part of some rows. ``rope`` holds the steps just seen; the last one is now."""
        length = max(self.lengths[row] for row in rows.numbers)
        steps = rope.cos.shape[1]
        return CacheView(
            *(rows.take(slab)[:, :, :length] for slab in (self.keys, self.values, self.positions)),
            torch.tensor([self.num_seen[row] - 1 for row in rows.numbers], device=self.keys.device),
            rope.steps(steps - 1, steps),
            params,
            num_heads,
            rows,
        )

    def _until_full(self, row: int, length: int) -> int:
        full_at = self.schedule.full_at(self.prompts[row])
        return 2**62 if full_at is None else full_at - length

    def _group_key(self, row: int) -> tuple:
        """Rows with equal keys hold as many entries, and are evicted alike."""
        prompt = self.prompts[row]
        plan = self.schedule.prefix_for(prompt), self.schedule.full_at(prompt)
        return self.lengths[row], self.num_seen[row], plan, self.state.row_key(row)

    def _set_length(self, rows: Rows, length: int) -> None:
        for row in rows.numbers:
            self.lengths[row] = length
        if rows.index is None:
            self._lengths.fill_(length)
        else:
            self._lengths[rows.index] = length

    # ----- rows -----

    def select_rows(self, index: Tensor) -> None:
        """Row i becomes what row ``index[i]`` was; the batch may grow or shrink. index: (B_new,) int64."""
        if not self.is_open:
            return
        index = index.to(self.keys.device)
        alike = len({(self._group_key(row), self.num_evictions[row]) for row in range(len(self.lengths))}) == 1
        numbers = None if alike else index.tolist()
        host = [0] * index.shape[0] if alike else numbers
        longest = max(self.lengths)
        for name in ("keys", "values", "positions"):
            slab = getattr(self, name)
            moved = slab[:, :, :longest].index_select(0, index)
            if slab.shape[0] != index.shape[0]:
                slab = slab.new_zeros(index.shape[0], *slab.shape[1:])
                setattr(self, name, slab)
            slab[:, :, :longest] = moved
        self._lengths = self._lengths.index_select(0, index)
        for name in ("lengths", "num_seen", "prompts", "num_evictions"):
            values = getattr(self, name)
            setattr(self, name, [values[row] for row in host])
        self.state.select_rows(index, numbers)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if an invariant is broken. Slow; for tests and idle moments."""
        if not self.is_open:
            return
        assert self._lengths.tolist() == self.lengths, (self._lengths.tolist(), self.lengths)
        for row, length in enumerate(self.lengths):
            full_at = self.schedule.full_at(self.prompts[row])
            assert length <= self.num_seen[row], (row, length, self.num_seen[row])
            assert full_at is None or length < full_at, (row, length, full_at)
            held = self.positions[row, :, :length].sort(dim=-1).values
            assert (held[:, 1:] > held[:, :-1]).all(), f"row {row} holds a position twice"
            if length == 0:
                continue
            assert (held[:, 0] >= 0).all(), f"row {row} holds a negative position"
            assert (held[:, -1] < self.num_seen[row]).all(), f"row {row} holds a position not yet seen"
            prefix = min(self.schedule.prefix_for(self.prompts[row]), length)
            protect = min(self.schedule.protect, length)
            start = torch.arange(prefix, device=held.device)
            end = self.num_seen[row] - protect + torch.arange(protect, device=held.device)
            assert (held[:, :prefix] == start).all(), f"row {row} lost protected first entries"
            assert (held[:, length - protect :] == end).all(), f"row {row} lost protected last entries"


def _pick(tensor: Tensor, order: Tensor) -> Tensor:
    """tensor (R, heads, m, D), order (R, c) -> (R, heads, c, D)."""
    index = order[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[-1])
    return tensor.gather(2, index)
