"""One layer's bounded cache: the order of events, and nothing of any host.

A forward pass does, in this order:

    inputs = layer.append(keys, values, real)    entries that the new queries may attend to
    ... the host computes attention over them ...
    layer.observe(queries, rope, params)          the policy sees the queries; full rows are evicted

Rows of a batch may be evicted at different steps: each does what it would do alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import ops
from ..policies import EvictionPolicy, LayerState
from ..schedule import EvictionSchedule
from ..types import FREE, AttentionParams, CacheView, EvictionEvent, Rope, RotaryFn, Rows, group_rows
from .progress import NO_EVICTION
from .slab import EntrySlab


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
    """Entries on their way in: attended to, not yet stored.

    Attributes:
        inputs: the ``stored`` slots there were, and the new entries behind them.
        real, counts: as given to :meth:`BoundedLayer.append`.
    """

    inputs: AttentionInputs
    stored: int
    real: Tensor | None
    counts: list[int]


@dataclass(frozen=True)
class QueryForm:
    """What a layer's queries are like: number of heads, size, types, and what turns them."""

    heads: int
    dim: int
    dtype: torch.dtype
    rotary_dim: int
    rotary_dtype: torch.dtype
    apply: RotaryFn


class BoundedLayer:
    """Entries and policy state of one layer.

    Args:
        policy: what to keep.
        schedule: when, and how much.
        index: the layer's number in the model, for events and errors; or those of several layers whose heads
            stand side by side and are evicted together (:class:`~beaconkv.cache.LayerStack`).
        on_evict: called after each eviction with an :class:`~beaconkv.types.EvictionEvent`.

    Raises:
        ValueError: a policy that evicts without a budget, or the reverse.
    """

    def __init__(
        self,
        policy: EvictionPolicy,
        schedule: EvictionSchedule,
        index: int | Sequence[int] = 0,
        on_evict: Callable[[EvictionEvent], None] | None = None,
    ) -> None:
        if policy.evicts and schedule.budget is None:
            raise ValueError(f"policy {policy.name!r} needs a budget")
        if not policy.evicts and schedule.budget is not None:
            raise ValueError(f"policy {policy.name!r} never evicts: budget must be None, got {schedule.budget}")
        self.policy, self.schedule, self.on_evict = policy, schedule, on_evict
        self.indices = (index,) if isinstance(index, int) else tuple(index)
        self.reset()

    @property
    def index(self) -> int:
        """The layer's number in the model, or the first one's."""
        return self.indices[0]

    def reset(self) -> None:
        """Forget everything, counters included."""
        self.slab: EntrySlab | None = None
        self.state: LayerState | None = None
        self.params: AttentionParams | None = None  # of the last queries
        self.form: QueryForm | None = None  # of the last queries
        self.rotation: int | None = None  # number of their cos and sin in the last pass
        self.entries_dropped = self.peak_entries = self.copied_bytes = 0
        self.keeps_columns = False  # whoever reads attention weights sets it
        self.columns: Tensor | None = None  # then: slot_positions() before the last step's eviction, if there was one
        self._chunk: _Chunk | None = None
        self._slots: int | None = None  # B_max, and the prompt where it does not count

    @property
    def prompts(self) -> list[int]:
        """Per row: tokens of the prompt."""
        return self.slab.counts.prompts if self.is_open else []

    @property
    def num_evictions(self) -> list[int]:
        """Per row."""
        return self.slab.counts.num_evictions if self.is_open else []

    @property
    def is_open(self) -> bool:
        """Whether memory is allocated."""
        return self.slab is not None

    def open(
        self,
        keys: Tensor,
        values: Tensor,
        prompts: list[int],
        allocate: Callable[[Tensor, Tensor, int | None], EntrySlab] = EntrySlab,
    ) -> None:
        """Allocate for a batch whose prompt begins with so many real tokens per row.

        Args:
            keys, values: any new entries (B, H_kv, m, D), for shapes, dtype and device.
            prompts: real tokens per row.
            allocate: makes the slab of such entries with so many slots.

        Raises:
            ValueError: a prompt that, protected as prefix, leaves no room within the budget.
        """
        if self.schedule.budget is not None:
            for prompt in prompts:
                self.schedule.kept_for(prompt)
        self._slots = self._capacity(prompts, [0] * len(prompts))
        self.slab = allocate(keys, values, self._slots)
        self.slab.counts.prompts = list(prompts)
        self.state = self.policy.new_state(len(prompts))

    def extend_prompt(self, keys: Tensor, counts: list[int]) -> None:
        """More of the prompt is coming in a further forward pass.

        Args:
            keys: its keys (B, H_kv, m, D).
            counts: its real tokens per row.

        Raises:
            ValueError: as :meth:`open` and :meth:`append`.
        """
        self.require_fit(keys)
        prompts = [old + new for old, new in zip(self.prompts, counts, strict=True)]
        if self.schedule.budget is not None:
            for prompt in prompts:
                self.schedule.kept_for(prompt)
            self._reserve(self._capacity(prompts, self.num_evictions))
        self.slab.counts.prompts = prompts

    def _capacity(self, prompts: list[int], evictions: list[int]) -> int | None:
        if self.schedule.budget is None:
            return None
        return max(self.schedule.full_at(p, e) for p, e in zip(prompts, evictions, strict=True))

    def _reserve(self, slots: int) -> None:
        self._slots = max(self._slots, slots)  # rows may have been dropped: no slab shrinks
        self.slab.reserve(self._slots)

    @property
    def state_bytes(self) -> int:
        """Bytes of positions, lengths and the policy's state."""
        if not self.is_open:
            return 0
        return self.slab.extra_bytes + (0 if self.state is None else self.state.nbytes)

    @property
    def formula_bytes(self) -> int:
        """Bytes keys and values should take: rows · H_kv · B_max · (D_key + D_value) · itemsize."""
        if not self.is_open:
            return 0
        return (self._slots or self.slab.keys.shape[2]) * self.slab.bytes_per_slot

    def append(
        self,
        keys: Tensor,
        values: Tensor,
        real: Tensor | None = None,
        counts: list[int] | None = None,
        in_steps: bool = True,
    ) -> AttentionInputs:
        """Take new entries in.

        Args:
            keys, values: (B, H_kv, m, D), keys after RoPE.
            real: (B, m) bool, False where a token is padding; None when none is.
            counts: real tokens per row, if the host knows them: counting waits for the device.
            in_steps: a single token is a decode step; else it is a piece of a prompt, and is evicted as one.

        Returns:
            What the new queries attend to.

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
        self.require_fit(keys)
        slab = self.slab
        if keys.shape[2] == 1 and real is None and in_steps:
            step = slab.begin_step()
            step.write(0, keys, values)
            self.peak_entries = max(self.peak_entries, slab.longest)
            return AttentionInputs(step.keys[0], step.values[0], step.valid)
        inputs = self._chunk_inputs(keys, values, real)
        self._chunk = _Chunk(inputs, slab.longest, real, counts)
        most = max(n + c for n, c in zip(slab.lengths, counts, strict=True))
        self.peak_entries = max(self.peak_entries, most)
        self.copied_bytes = inputs.keys.nbytes + inputs.values.nbytes if slab.longest else 0
        return inputs

    def look(self, keys: Tensor, values: Tensor, real: Tensor | None) -> AttentionInputs:
        """As :meth:`append`, for queries that attend now to entries which are taken in later."""
        if not self.is_open:
            return AttentionInputs(keys, values, real)
        self.require_fit(keys)
        return self._chunk_inputs(keys.detach(), values.detach(), real)

    def slot_positions(self) -> Tensor:
        """(B, H_kv, longest row) int32: the token behind each stored entry, in slot order; -1 where a row has none."""
        size = self.slab.longest
        held, valid = self.slab.positions[:, :, :size].clone(), self.slab.valid(size)
        return held if valid is None else held.masked_fill_(~valid.unsqueeze(1), -1)

    def require_fit(self, keys: Tensor) -> None:
        """Raise ``ValueError`` unless new keys (B, H_kv, m, D) have the shape of those stored."""
        expected = (*self.slab.keys.shape[:2], self.slab.keys.shape[3])
        if (*keys.shape[:2], keys.shape[3]) != expected:
            raise ValueError(
                f"layer {self.index}: new keys (B, H_kv, m, D) = {tuple(keys.shape)} do not fit the cache's "
                f"(B, H_kv, D) = {expected}; use a new cache for another batch"
            )

    def _chunk_inputs(self, keys: Tensor, values: Tensor, real: Tensor | None) -> AttentionInputs:
        """Several tokens are attended to beside what is stored, and stored by :meth:`observe`."""
        slab, stored = self.slab, self.slab.longest
        if stored == 0:
            return AttentionInputs(keys, values, real)
        valid = slab.valid(stored)
        if valid is not None or real is not None:
            old = valid if valid is not None else real.new_ones(real.shape[0], stored)
            new = real if real is not None else valid.new_ones(valid.shape[0], keys.shape[2])
            valid = torch.cat([old, new], dim=1)
        keys = torch.cat([slab.keys[:, :, :stored], keys], dim=2)
        return AttentionInputs(keys, torch.cat([slab.values[:, :, :stored], values], dim=2), valid)

    def observe(self, queries: Tensor, rope: Rope, params: AttentionParams) -> None:
        """Let the policy see the queries of the entries appended last, and evict the rows that are full.

        Args:
            queries: (B, H, m, D) after RoPE.
            rope: the model's rope of these m tokens.
            params: how the layer computes its logits.
        """
        queries, chunk, self._chunk = queries.detach(), self._chunk, None
        self.params, self.rotation = params, rope.table
        turn = rope.cos.shape[-1], rope.cos.dtype, rope.apply
        self.form = QueryForm(queries.shape[1], queries.shape[3], queries.dtype, *turn)
        if chunk is not None:
            keys = [
                (self._group_key(row), self.slab.num_seen[row], count) if count else None
                for row, count in enumerate(chunk.counts)
            ]
            for key, rows in group_rows(keys, queries.device):
                if key is not None:
                    self._store_chunk(chunk, rows, queries, rope, params)
            return
        self.observe_step(queries, rope, params)

    def observe_step(self, queries: Tensor, rope: Rope, params: AttentionParams) -> None:
        """As :meth:`observe`, of a decode step: one query (B, H, 1, D) of each row."""
        left = [self._until_full(row, length) for row, length in enumerate(self.slab.lengths)]
        everyone = Rows(list(range(len(left))))
        if self.policy.observes_entries and self.policy.observes_free_slots:
            slab, size = self.slab, self.slab.longest
            held = slab.positions[:, :, :size]
            if (valid := slab.valid(size)) is not None:
                held = held.masked_fill(~valid.unsqueeze(1), FREE)
            view = self._view(everyone, rope, params, [slab.keys[:, :, :size], slab.values[:, :, :size], held])
            self.state.observe(queries, rope, left, everyone, view)
        elif self.policy.observes_entries:  # rows of one length at a time: a view shows no free slot
            every = [self._group_key(row) for row in range(len(left))]
            for _, rows in group_rows(every, queries.device):
                view = self._view(rows, rope.of_rows(rows), params)
                own_left = [left[row] for row in rows.numbers]
                self.state.observe(rows.take(queries), rope.of_rows(rows), own_left, rows, view)
        else:
            self.state.observe(queries, rope, left, everyone, None)
        self.columns = None
        if min(left) <= 0:
            if self.keeps_columns:
                self.columns = self.slot_positions()
            keys = [self._group_key(row) if n <= 0 else None for row, n in enumerate(left)]
            for key, rows in group_rows(keys, queries.device):
                if key is not None:
                    self._evict(self._view(rows, rope.of_rows(rows), params), stored=True)

    def _store_chunk(self, chunk: _Chunk, rows: Rows, queries: Tensor, rope: Rope, params: AttentionParams) -> None:
        """Store a chunk of rows that are alike; what does not fit is evicted before it is stored."""
        slab, first = self.slab, rows.numbers[0]
        count, stored, seen = chunk.counts[first], slab.lengths[first], slab.num_seen[first]
        both = [rows.take(t) for t in (chunk.inputs.keys, chunk.inputs.values)]
        queries, rope = rows.take(queries), rope.of_rows(rows)
        new = [t[:, :, chunk.stored :] for t in both]
        is_padded = count < new[0].shape[2]
        if is_padded:
            order = (~rows.take(chunk.real)).to(torch.int8).argsort(dim=1, stable=True)[:, :count]
            new, queries, rope = [pick_steps(t, order) for t in new], pick_steps(queries, order), rope.gather(order)
        positions = torch.arange(seen, seen + count, dtype=torch.int32, device=queries.device)
        positions = positions.expand(*new[0].shape[:2], -1)
        slab.saw(rows, count)
        full_at = self.schedule.full_at(self.prompts[first], self.num_evictions[first])
        left = NO_EVICTION if full_at is None else full_at - stored - count
        if left > 0:  # the next step may be full before the chunk would have been
            left = max(1, self._until_full(first, stored + count))
        view = None
        if left > 0:
            slab.append_chunk(rows, *new, positions)
            if self.policy.observes_entries:
                view = self._view(rows, rope, params)
        else:
            if is_padded or stored < chunk.stored:
                both = [
                    torch.cat([rows.take(t)[:, :, :stored], n], dim=2)
                    for t, n in zip((slab.keys, slab.values), new, strict=True)
                ]
                self.copied_bytes += sum(t.nbytes for t in both)
            held = torch.cat([rows.take(slab.positions)[:, :, :stored], positions], dim=2)
            view = self._view(rows, rope, params, [*both, held])
        self.state.observe(queries, rope, [left] * len(rows), rows, view if self.policy.observes_entries else None)
        if left <= 0:
            self._evict(view, stored=False)

    def _evict(self, view: CacheView, stored: bool) -> None:
        """Score, select, compact. All rows of the view are alike.

        Args:
            stored: whether the view's entries are those of the slab, or a copy that was never stored.
        """
        rows, first = view.rows, view.rows.numbers[0]
        prompt = self.prompts[first]
        scores = self.policy.score(view, self.state)
        evictions, length = self.num_evictions[first], scores.shape[-1]
        if stored:
            budget = self.schedule.kept_in_step(prompt, evictions, length)
        else:
            budget = self.schedule.kept_in_chunk(prompt, evictions)
        keep = ops.select_entries(
            scores,
            view.positions,
            budget,
            prefix=self.schedule.prefix_for(prompt),
            protect=self.schedule.protect,
        )
        events = self._events(view, scores, keep) if self.on_evict is not None else []
        if stored:
            source = self.slab.compact(rows, keep)
        else:
            source = self.slab.replace(rows, view.keys, view.values, view.positions, keep)
        self.state.evicted(source, rows)
        for row in rows.numbers:
            self.num_evictions[row] += 1
        if self.schedule.growth:
            self._reserve(self._capacity(self.prompts, self.num_evictions))
        self.entries_dropped += (scores.shape[-1] - keep.shape[-1]) * scores.shape[0] * scores.shape[1]
        for event in events:
            self.on_evict(event)

    def _events(self, view: CacheView, scores: Tensor, keep: Tensor) -> list[EvictionEvent]:
        """One for each layer."""
        gone = torch.ones(scores.shape, dtype=torch.bool, device=keep.device).scatter_(-1, keep, False)
        dropped = view.positions[gone].view(*keep.shape[:2], -1)
        kept = view.positions.gather(-1, keep).sort(dim=-1).values
        tables = view.positions.clone(), scores, kept, dropped.sort(dim=-1).values
        rows, now = view.rows.numbers, [self.slab.num_seen[row] - 1 for row in view.rows.numbers]
        by_layer = zip(*(table.chunk(len(self.indices), dim=1) for table in tables), strict=True)
        return [
            EvictionEvent(index, list(rows), list(now), *(table.contiguous() for table in own))
            for index, own in zip(self.indices, by_layer, strict=True)
        ]

    def _view(self, rows: Rows, rope: Rope, params: AttentionParams, entries: list[Tensor] | None = None) -> CacheView:
        """Entries of some rows, by default those stored. ``rope``: the steps just seen; the last one is now."""
        slab, steps = self.slab, rope.cos.shape[1]
        if entries is None:
            length = max(slab.lengths[row] for row in rows.numbers)
            entries = [rows.take(t)[:, :, :length] for t in (slab.keys, slab.values, slab.positions)]
        now = rows.take(slab.num_seen_on_device).long() - 1
        return CacheView(*entries, now, rope.steps(steps - 1, steps), params, rows, len(self.indices))

    def _full_at(self, row: int) -> int | None:
        return self.schedule.full_in_step_at(self.prompts[row], self.num_evictions[row])

    def _until_full(self, row: int, length: int) -> int:
        full_at = self._full_at(row)
        return NO_EVICTION if full_at is None else full_at - length

    def _group_key(self, row: int) -> Hashable:
        """Rows with equal keys hold as many entries, and are evicted alike."""
        plan = self.schedule.prefix_for(self.prompts[row]), self._full_at(row)
        return self.slab.lengths[row], plan, self.state.row_key(row)

    def select_rows(self, index: Tensor) -> None:
        """Row i becomes what row ``index[i]`` was; the batch may grow or shrink. index: (B_new,) int64."""
        if not self.is_open:
            return
        index, numbers = self._numbers_of(index)
        self.slab.select_rows(index, numbers)
        self.state.select_rows(index, numbers)

    def _numbers_of(self, index: Tensor) -> tuple[Tensor, list[int]]:
        """index (B_new,) on the device, and on the host: where rows are alike, any may stand for another."""
        index = index.to(self.slab.keys.device)
        every = range(len(self.prompts))
        alike = len({(self._group_key(row), self.slab.num_seen[row], self.num_evictions[row]) for row in every}) == 1
        return index, [0] * index.shape[0] if alike else index.tolist()

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if an invariant is broken. Slow; for tests and idle moments."""
        if not self.is_open:
            return
        self.slab.check_integrity()
        for row, length in enumerate(self.slab.lengths):
            prompt, seen = self.prompts[row], self.slab.num_seen[row]
            full_at = self.schedule.full_at(prompt, self.num_evictions[row])
            assert full_at is None or length < full_at, (row, length, full_at)
            held = self.slab.positions[row, :, :length].sort(dim=-1).values
            prefix, protect = min(self.schedule.prefix_for(prompt), length), min(self.schedule.protect, length)
            start = torch.arange(prefix, device=held.device)
            end = torch.arange(seen - protect, seen, device=held.device)
            assert (held[:, :prefix] == start).all(), f"row {row} lost protected first entries"
            assert (held[:, length - protect :] == end).all(), f"row {row} lost protected last entries"


def pick_steps(tensor: Tensor, order: Tensor) -> Tensor:
    """Steps of each row's own choice. tensor (R, heads, m, D), order (R, c) int64 -> (R, heads, c, D), a copy."""
    index = order[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[-1])
    return tensor.gather(2, index)
