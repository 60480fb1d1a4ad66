"""One layer's bounded cache: the order of events, independent of any host.

A forward pass does, in this order:

    inputs = layer.append(keys, values, real)    entries that the new queries may attend to
    ... the host computes attention over them ...
    layer.observe(queries, rope, params)          the policy sees the queries; full rows are evicted

Rows of a batch may be evicted at different steps: each does what it would do alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from torch import Tensor

from ..policies import EvictionPolicy, LayerState
from ..schedule import EvictionSchedule
from ..types import FREE, AttentionParams, CacheView, EvictionEvent, Rope, Rows, group_rows
from .eviction import EntryStore, Retention, evict
from .integrity import check_integrity
from .pending import AttentionInputs, PendingChunk, inputs_behind
from .progress import Progress
from .query_form import QueryForm
from .slab import EntrySlab


class BoundedLayer:
    """Entries and policy state of one layer.

    Args:
        policy: scores the entries.
        schedule: the budget, and when entries are evicted.
        index: index of the layer in the model, for events and errors; or those of several layers whose heads
            are stacked and evicted together (:class:`~beaconkv.cache.LayerStack`).
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
        """Index of the layer in the model; of stacked layers, that of the first."""
        return self.indices[0]

    def reset(self) -> None:
        """Clear all entries, states and counters."""
        self.slab: EntrySlab | None = None
        self.state: LayerState | None = None
        self.params: AttentionParams | None = None  # of the last queries
        self.form: QueryForm | None = None  # of the last queries
        self.rotation: int | None = None  # number of their cos and sin in the last pass
        self.entries_dropped = self.peak_entries = self.copied_bytes = 0
        self.keeps_columns = False  # set where attention weights are read
        self.columns: Tensor | None = None  # then: slot_positions() before the last step's eviction, if there was one
        self.pending: PendingChunk | None = None  # between append() and observe() of a chunk
        self.capacity: int | None = None  # number of slots: B_max, and the prompt where it does not count

    @property
    def rows(self) -> list[Progress]:
        """The counter of each row; none before memory is allocated."""
        return self.slab.counts.rows if self.is_allocated else []

    @property
    def prompts(self) -> list[int]:
        """Per row: number of tokens of the prompt."""
        return [row.prompt for row in self.rows]

    @property
    def num_evictions(self) -> list[int]:
        """Number of evictions per row."""
        return [row.evictions for row in self.rows]

    @property
    def is_allocated(self) -> bool:
        """Whether memory is allocated."""
        return self.slab is not None

    def allocate(
        self,
        keys: Tensor,
        values: Tensor,
        prompts: list[int],
        make_slab: Callable[[Tensor, Tensor, int | None], EntrySlab] = EntrySlab,
    ) -> None:
        """Allocate memory for a batch.

        Args:
            keys, values: any new entries (B, H_kv, m, D), for shapes, dtype and device.
            prompts: number of real tokens of the prompt, per row.
            make_slab: makes the slab of such entries with a given number of slots.

        Raises:
            ValueError: a prompt that, protected as prefix, leaves no room within the budget.
        """
        rows = [Progress(self.schedule, prompt) for prompt in prompts]
        self.capacity = None if self.schedule.budget is None else max(row.full_at for row in rows)
        self.slab = make_slab(keys, values, self.capacity)
        self.slab.counts.rows = rows
        self.state = self.policy.new_state(len(prompts))

    def extend_prompt(self, keys: Tensor, counts: list[int]) -> None:
        """A further forward pass continues the prompt.

        Args:
            keys: its keys (B, H_kv, m, D).
            counts: number of its real tokens per row.

        Raises:
            ValueError: as :meth:`allocate` and :meth:`append`; nothing has changed then.
        """
        self.require_fit(keys)
        for row, count in zip(self.rows, counts, strict=True):
            row.require_room(count)
        for row, count in zip(self.rows, counts, strict=True):
            row.extend_prompt(count)
        self._reserve()

    def _reserve(self) -> None:
        """Have slots for every row, where prompts or evictions add to the budget."""
        if self.schedule.budget is not None:
            self.capacity = max(self.capacity, *(row.full_at for row in self.rows))  # no slab shrinks
            self.slab.reserve(self.capacity)

    @property
    def state_bytes(self) -> int:
        """Bytes of positions, lengths and the policy's state."""
        if not self.is_allocated:
            return 0
        return self.slab.extra_bytes + (0 if self.state is None else self.state.nbytes)

    @property
    def formula_bytes(self) -> int:
        """Bytes keys and values should take: rows · H_kv · B_max · (D_key + D_value) · itemsize."""
        if not self.is_allocated:
            return 0
        return (self.capacity or self.slab.keys.shape[2]) * self.slab.bytes_per_slot

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
            counts: number of real tokens per row, if the host knows them: counting waits for the device.
            in_steps: a single token is a decode step; else it is a chunk of a prompt, and is evicted as one.

        Returns:
            What the new queries attend to.

        Raises:
            ValueError: shapes that do not fit what is stored.
            RuntimeError: the queries of the previous entries were never observed.
        """
        if self.pending is not None:
            raise RuntimeError(f"layer {self.index}: append() twice without observe()")
        keys, values = keys.detach(), values.detach()
        if counts is None:
            counts = [keys.shape[2]] * keys.shape[0] if real is None else real.sum(dim=1).tolist()
        if not self.is_allocated:
            self.allocate(keys, values, counts)
        self.require_fit(keys)
        slab = self.slab
        if keys.shape[2] == 1 and real is None and in_steps:
            step = slab.begin_step()
            step.write(0, keys, values)
            self.peak_entries = max(self.peak_entries, slab.longest)
            return AttentionInputs(step.keys[0], step.values[0], step.valid)
        inputs = inputs_behind(slab, keys, values, real)
        self.pending = PendingChunk(inputs, slab.longest, real, counts)
        most = max(row.stored + count for row, count in zip(self.rows, counts, strict=True))
        self.peak_entries = max(self.peak_entries, most)
        self.copied_bytes = inputs.keys.nbytes + inputs.values.nbytes if slab.longest else 0
        return inputs

    def peek(self, keys: Tensor, values: Tensor, real: Tensor | None) -> AttentionInputs:
        """As :meth:`append`, for queries that attend now to entries which are taken in later."""
        if not self.is_allocated:
            return AttentionInputs(keys, values, real)
        self.require_fit(keys)
        return inputs_behind(self.slab, keys.detach(), values.detach(), real)

    def require_fit(self, keys: Tensor) -> None:
        """Raise ``ValueError`` unless new keys (B, H_kv, m, D) have the shape of those stored."""
        expected = (*self.slab.keys.shape[:2], self.slab.keys.shape[3])
        if (*keys.shape[:2], keys.shape[3]) != expected:
            raise ValueError(
                f"layer {self.index}: new keys (B, H_kv, m, D) = {tuple(keys.shape)} do not fit the cache's "
                f"(B, H_kv, D) = {expected}; use a new cache for another batch"
            )

    def observe(self, queries: Tensor, rope: Rope, params: AttentionParams) -> None:
        """Let the policy see the queries of the entries appended last, and evict the rows that are full.

        Args:
            queries: (B, H, m, D) after RoPE.
            rope: the model's rope of these m tokens.
            params: how the layer computes its logits.
        """
        queries, chunk, self.pending = queries.detach(), self.pending, None
        self.params, self.rotation = params, rope.table
        self.form = QueryForm.of(queries, rope)
        if chunk is None:
            self.observe_step(queries, rope, params)
            return
        keys = [
            (self._group_of(number), row.seen, count) if count else None
            for number, (row, count) in enumerate(zip(self.rows, chunk.counts, strict=True))
        ]
        for key, rows in group_rows(keys, queries.device):
            if key is not None:
                self._observe_chunk(chunk, rows, queries, rope, params)

    def observe_step(self, queries: Tensor, rope: Rope, params: AttentionParams) -> None:
        """As :meth:`observe`, of a decode step: one query (B, H, 1, D) of each row."""
        left = [row.left for row in self.rows]
        all_rows = Rows(list(range(len(left))))
        if self.policy.observes_entries and self.policy.observes_free_slots:
            slab, size = self.slab, self.slab.longest
            held = slab.positions[:, :, :size]
            if (valid := slab.valid(size)) is not None:
                held = held.masked_fill(~valid.unsqueeze(1), FREE)
            view = self._view(all_rows, rope, params, [slab.keys[:, :, :size], slab.values[:, :, :size], held])
            self.state.observe(queries, rope, left, all_rows, view)
        elif self.policy.observes_entries:  # rows of one length at a time: a view shows no free slot
            for _, rows in group_rows([self._group_of(number) for number in all_rows.numbers], queries.device):
                view = self._view(rows, rope.of_rows(rows), params)
                own_left = [left[number] for number in rows.numbers]
                self.state.observe(rows.take(queries), rope.of_rows(rows), own_left, rows, view)
        else:
            self.state.observe(queries, rope, left, all_rows, None)
        self.columns = None
        if min(left) <= 0:
            if self.keeps_columns:
                self.columns = self.slab.slot_positions()
            keys = [self._group_of(number) if n <= 0 else None for number, n in enumerate(left)]
            for key, rows in group_rows(keys, queries.device):
                if key is not None:
                    self._evict(self._view(rows, rope.of_rows(rows), params), self.slab)

    def _observe_chunk(
        self, chunk: PendingChunk, rows: Rows, queries: Tensor, rope: Rope, params: AttentionParams
    ) -> None:
        """Store a chunk of rows in the same state; what does not fit is evicted before it is stored."""
        own = chunk.of_rows(self.slab, rows, queries, rope)
        left, view = self.slab.counts.store(rows, own.keys.shape[2]), None
        if left > 0:
            own.store()
            if self.policy.observes_entries:
                view = self._view(rows, own.rope, params)
        else:
            entries, copied = own.entries()
            self.copied_bytes += copied
            view = self._view(rows, own.rope, params, entries)
        observed = view if self.policy.observes_entries else None
        self.state.observe(own.queries, own.rope, [left] * len(rows), rows, observed)
        if left <= 0:
            self._evict(view, own)

    def _evict(self, view: CacheView, store: EntryStore) -> None:
        """Evict rows in the same state. store: what holds the entries of the view."""
        row, rows = self.rows[view.rows.numbers[0]], self.rows
        keep, length = row.due, view.positions.shape[-1]
        retention = Retention(keep, self.schedule.prefix_for(row.prompt), self.schedule.protect)
        now = [rows[number].seen - 1 for number in view.rows.numbers]
        layers = self.indices if self.on_evict is not None else ()
        events = evict(self.policy, self.state, view, store, retention, layers, now)
        if self.schedule.growth:
            self._reserve()
        self.entries_dropped += (length - keep) * view.positions.shape[0] * view.positions.shape[1]
        for event in events:
            self.on_evict(event)

    def _view(self, rows: Rows, rope: Rope, params: AttentionParams, entries: list[Tensor] | None = None) -> CacheView:
        """Entries of some rows, by default those stored. ``rope``: the steps just seen; the last one is now."""
        slab, steps = self.slab, rope.cos.shape[1]
        if entries is None:
            length = max(self.rows[number].stored for number in rows.numbers)
            entries = [rows.take(t)[:, :, :length] for t in (slab.keys, slab.values, slab.positions)]
        now = rows.take(slab.num_seen_on_device).long() - 1
        return CacheView(*entries, now, rope.steps(steps - 1, steps), params, rows, len(self.indices))

    def _group_of(self, number: int) -> Hashable:
        """Rows in equal groups hold the same number of entries, and are evicted alike."""
        return self.rows[number].group, self.state.row_key(number)

    def select_rows(self, index: Tensor) -> None:
        """Row i becomes what row ``index[i]`` was; the batch may grow or shrink. index: (B_new,) int64."""
        if not self.is_allocated:
            return
        index = index.to(self.slab.keys.device)
        alike = {(row.group, self.state.row_key(n), row.seen, row.evictions) for n, row in enumerate(self.rows)}
        # Rows in the same state can replace each other here, and the host need not wait for the device.
        numbers = [0] * index.shape[0] if len(alike) == 1 else index.tolist()
        self.slab.select_rows(index, numbers)
        self.state.select_rows(index, numbers)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if an invariant is broken. Slow; for tests and idle moments."""
        if self.is_allocated:
            check_integrity(self.slab, self.schedule)
