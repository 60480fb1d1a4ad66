"""The bounded memory of past queries: recent ones, and older ones reduced by continual FPS.

BeaconKV, section 4.2 and Algorithm 2. Per query head there are

    history   at most n_beacon + n_recent queries before RoPE      -> the beacons
    recent    the last n_recent queries after RoPE, with cos, sin  -> the recent queries

In the paper every query is appended to one buffer, which is reduced to n_beacon by farthest point
sampling when it holds n_beacon + n_recent. Here a new query is first held among the recent ones
("fresh") and is un-rotated and appended to the history only when a reduction is due: the buffer of the
paper is ``history`` followed by the fresh ones of ``recent``, in order of time. Reductions happen

    - when history + fresh reach n_beacon + n_recent,
    - when n_recent steps are left before the cache is full: the beacons of this cycle are then fixed, and
      the queries of the following steps are only this cycle's recent queries,
    - after the eviction: fresh queries are appended to the beacons and the next cycle starts,
    - during prefill, after every ``sample_chunk`` tokens and at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor

from .. import ops
from ..types import CacheView, Rope, Rows, group_rows, persistent_copy, persistent_rows, persistent_zeros
from .base import LayerState, concat_heads, heads_of_layer


class QueryBuffer(LayerState):
    """Beacon and recent queries of one layer. Tensors are allocated at the first query.

    Args:
        batch: Number of rows B.
        n_recent: Number of recent queries per query head, >= 1.
        n_beacon: Number of beacon queries per query head, >= 0.
        sample_chunk: Number of prompt tokens per reduction during prefill; the similarity matrix of a whole
            long prompt is never built.
    """

    def __init__(self, batch: int, n_recent: int, n_beacon: int, sample_chunk: int) -> None:
        self.n_recent, self.n_beacon, self.sample_chunk = n_recent, n_beacon, sample_chunk
        self.recent: Tensor | None = None  # (B, H, n_recent, D) after RoPE, a ring
        self.rope: Rope | None = None  # of the ring, (B, n_recent, D_rot)
        self.history: Tensor | None = None  # (B, H, n_beacon + n_recent, D) before RoPE
        self.next = 0  # slot of the ring that the next query takes, the same in all rows
        self.num_recent = [0] * batch  # per row: filled slots of the ring
        self.num_fresh = [0] * batch  # per row: newest of them, not yet joined to the history
        self.num_history = [0] * batch

    def row_key(self, row: int) -> tuple[int, int, int]:
        return self.num_recent[row], self.num_fresh[row], self.num_history[row]

    def observe(self, queries: Tensor, rope: Rope, until_full: list[int], rows: Rows, view: CacheView | None) -> None:
        if self.recent is None:
            self._allocate(queries, rope)
        if queries.shape[2] == 1 and rows.index is None:
            self._append_step(queries, rope)
        else:
            self._append_chunk(queries, rope, until_full[0], rows)
        if self.n_beacon:
            self._reduce_if_due(until_full, rows)

    def observe_steps(self, queries: Tensor, rope: Rope, until_full: list[int], rows: Rows) -> None:
        if type(self).observe is not QueryBuffer.observe:
            super().observe_steps(queries, rope, until_full, rows)  # a subclass may do something else at each step
            return
        if self.recent is None:
            self._allocate(queries, rope)
        start, steps = 0, len(until_full)
        while start < steps:  # as many steps at once as come before the history changes
            fresh, history, count = self.num_fresh[0], self.num_history[0], 1
            while (
                start + count < steps
                and count < self.n_recent
                and self._due(fresh + count, history, until_full[start + count - 1]) is None
            ):
                count += 1
            self._append_steps(queries[:, :, start : start + count], rope.steps(start, start + count))
            start += count
            if self.n_beacon:
                self._reduce_if_due([until_full[start - 1]] * len(rows), rows)

    def _append_steps(self, queries: Tensor, rope: Rope) -> None:
        """Write at most n_recent tokens of every row into the ring: from its next slot on, then from its beginning."""
        count = queries.shape[2]
        first = min(count, self.n_recent - self.next)
        for ring, new, dim in ((self.recent, queries, 2), (self.rope.cos, rope.cos, 1), (self.rope.sin, rope.sin, 1)):
            ring.narrow(dim, self.next, first).copy_(new.narrow(dim, 0, first))
            if count > first:
                ring.narrow(dim, 0, count - first).copy_(new.narrow(dim, first, count - first))
        self.next = (self.next + count) % self.n_recent
        self.num_recent = [min(n + count, self.n_recent) for n in self.num_recent]
        self.num_fresh = [n + count for n in self.num_fresh]

    def _allocate(self, queries: Tensor, rope: Rope) -> None:
        batch, (_, heads, _, dim) = len(self.num_recent), queries.shape
        self.recent = persistent_zeros(queries, batch, heads, self.n_recent, dim)
        if self.n_beacon:
            self.history = persistent_zeros(queries, batch, heads, self.n_beacon + self.n_recent, dim)
        cos, sin = (persistent_zeros(t, batch, self.n_recent, t.shape[-1]) for t in (rope.cos, rope.sin))
        self.rope = Rope(cos, sin, rope.apply)

    def _append_step(self, queries: Tensor, rope: Rope) -> None:
        """Write one token of every row into one slot of the ring."""
        self.recent[:, :, self.next] = queries[:, :, 0]
        self.rope.cos[:, self.next] = rope.cos[:, 0]
        self.rope.sin[:, self.next] = rope.sin[:, 0]
        self.next = (self.next + 1) % self.n_recent
        self.num_recent = [min(n + 1, self.n_recent) for n in self.num_recent]
        self.num_fresh = [n + 1 for n in self.num_fresh]

    def _append_chunk(self, queries: Tensor, rope: Rope, until_full: int, rows: Rows) -> None:
        """Write several tokens at once, or one token of some rows; all rows are in equal states.

        The last tokens before the cache is full stay fresh, the others are appended to the history now.
        """
        self._align()
        num_new, fresh = queries.shape[2], self.num_fresh[rows.numbers[0]]
        stay = min(max(self.n_recent - max(until_full, 0), 0), num_new) if num_new > 1 else 1
        leave = num_new - stay
        if self.n_beacon:
            spill = fresh if leave else max(0, fresh + stay - self.n_recent)
            if spill:
                # After this boundary no other reduction comes before the eviction.
                self._join(self.before_rope(fresh, fresh - spill, rows), rows, reduce=leave == 0)
            for start in range(0, leave, self.sample_chunk):
                stop = min(start + self.sample_chunk, leave)
                self._join(ops.unrotate(queries[:, :, start:stop], rope.steps(start, stop)), rows, reduce=True)
            fresh = fresh - spill + stay

        tail = slice(max(0, num_new - self.n_recent), num_new)
        for ring, new, dim in (
            (self.recent, queries[:, :, tail], 2),
            (self.rope.cos, rope.cos[:, tail].expand(len(rows), -1, -1), 1),
            (self.rope.sin, rope.sin[:, tail].expand(len(rows), -1, -1), 1),
        ):
            size = self.n_recent - new.shape[dim]
            old = rows.take(ring).narrow(dim, self.n_recent - size, size)
            rows.put(ring, dim, 0, torch.cat([old, new.to(ring)], dim=dim))
        for row in rows.numbers:
            self.num_recent[row] = min(self.num_recent[row] + num_new, self.n_recent)
            self.num_fresh[row] = fresh

    def _reduce_if_due(self, until_full: list[int], rows: Rows) -> None:
        """Append fresh queries to the history where the cycle requires it, and reduce."""
        due: list = [None] * len(self.num_fresh)
        for row, left in zip(rows.numbers, until_full, strict=True):
            fresh, history = self.num_fresh[row], self.num_history[row]
            if (reduce := self._due(fresh, history, left)) is not None:
                due[row] = (fresh, history, reduce)
        if any(due):
            for key, group in group_rows(due, self.recent.device):
                if key is not None:
                    self._join_fresh(group, reduce=key[2])

    def _due(self, fresh: int, history: int, left: int) -> bool | None:
        """Whether fresh queries, appended to the history now, are reduced with it; None: they stay fresh."""
        if not self.n_beacon:
            return None
        if left == self.n_recent and fresh:
            return True
        is_full = fresh == self.n_recent or fresh + history >= self.n_beacon + self.n_recent
        return False if left > 0 and is_full else None

    def evicted(self, source: Tensor, rows: Rows) -> None:
        if self.n_beacon:
            self._join_fresh(rows, reduce=True)

    def _join_fresh(self, rows: Rows, reduce: bool) -> None:
        fresh, size = self.num_fresh[rows.numbers[0]], self.num_history[rows.numbers[0]]
        if rows.index is None and size + fresh <= self.history.shape[2]:
            start, into = (self.next - fresh) % self.n_recent, size
            for first, number in ((start, min(fresh, self.n_recent - start)), (0, fresh - (self.n_recent - start))):
                if number > 0:  # the ring from where the fresh ones begin to its end, then from its beginning
                    ops.unrotate_into(
                        self.history, into, self.recent.narrow(2, first, number), self.rope.steps(first, first + number)
                    )
                    into += number
            self._keep(self.history[:, :, : size + fresh], rows, reduce, is_stored=True)
        else:
            self._join(self.before_rope(fresh, 0, rows), rows, reduce)
        for row in rows.numbers:
            self.num_fresh[row] = 0

    def _join(self, before_rope: Tensor, rows: Rows, reduce: bool = False) -> None:
        """Append queries (R, H, m, D) to the history; reduce it to n_beacon if it is full or ``reduce`` is set."""
        size = self.num_history[rows.numbers[0]]
        joined = torch.cat([rows.take(self.history)[:, :, :size], before_rope.to(self.history)], dim=2)
        self._keep(joined, rows, reduce, is_stored=False)

    def _keep(self, joined: Tensor, rows: Rows, reduce: bool, is_stored: bool) -> None:
        """Set the history to these queries (R, H, m, D), or to what is left of them; it may hold them already."""
        size = joined.shape[2]
        if size >= self.n_beacon + self.n_recent or (reduce and size > self.n_beacon):
            picks = ops.farthest_point_sampling(joined, self.n_beacon)
            joined = ops.take_queries(joined, picks)
            is_stored = False
        if not is_stored:
            rows.put(self.history, 2, 0, joined)
        for row in rows.numbers:
            self.num_history[row] = joined.shape[2]

    def beacons(self, rows: Rows) -> Tensor:
        """(R, H, m, D) beacon queries before RoPE, m <= n_beacon once the cycle has fixed them."""
        if not self.n_beacon:
            return rows.take(self.recent)[:, :, :0]
        return rows.take(self.history)[:, :, : self.num_history[rows.numbers[0]]]

    def recents(self, rows: Rows) -> Tensor:
        """(R, H, m, D) the last queries after RoPE, oldest first; m = n_recent once that many were seen."""
        return rows.take(self.recent).index_select(2, self._slots(self.num_recent[rows.numbers[0]], 0))

    def observation_queries(self, rows: Rows) -> Tensor:
        recents = self.before_rope(self.num_recent[rows.numbers[0]], 0, rows)
        return torch.cat([self.beacons(rows).float(), recents], dim=2)

    def _slots(self, first: int, last: int) -> Tensor:
        """Ring slots of the queries from ``first`` steps back (inclusive) to ``last``, oldest first."""
        return torch.arange(self.next - first, self.next - last, device=self.recent.device) % self.n_recent

    def before_rope(self, first: int, last: int, rows: Rows) -> Tensor:
        """(R, H, first - last, D) before RoPE: recent queries from ``first`` steps back to ``last``, oldest first."""
        slots = self._slots(first, last)
        rope = Rope(self.rope.cos.index_select(1, slots), self.rope.sin.index_select(1, slots), self.rope.apply)
        return ops.unrotate(rows.take(self.recent).index_select(2, slots), rope.of_rows(rows))

    def _align(self) -> None:
        """Reorder the ring so that its slots are in order of time, in every row."""
        if self.next:
            order = self._slots(self.n_recent, 0)
            for ring, dim in ((self.recent, 2), (self.rope.cos, 1), (self.rope.sin, 1)):
                ring.copy_(ring.index_select(dim, order))
            self.next = 0

    def select_rows(self, index: Tensor, numbers: list[int]) -> None:
        self.num_recent = [self.num_recent[row] for row in numbers]
        self.num_fresh = [self.num_fresh[row] for row in numbers]
        self.num_history = [self.num_history[row] for row in numbers]
        if self.recent is None:
            return
        self.recent = persistent_rows(self.recent, index)
        if self.history is not None:
            self.history = persistent_rows(self.history, index)
        self.rope = Rope(persistent_rows(self.rope.cos, index), persistent_rows(self.rope.sin, index), self.rope.apply)

    @classmethod
    def stack(cls, states: Sequence[QueryBuffer]) -> QueryBuffer | None:
        if cls is not QueryBuffer:
            return None  # a subclass may hold more than this class can stack
        first = states[0]
        if first.recent is not None:
            first.recent = concat_heads([state.recent for state in states])
            if first.history is not None:
                first.history = concat_heads([state.history for state in states])
        return first

    def unstack(self, count: int) -> list[QueryBuffer]:
        states = []
        for number in range(count):
            own = copy(self)
            own.num_recent, own.num_fresh = list(self.num_recent), list(self.num_fresh)
            own.num_history = list(self.num_history)
            if self.recent is not None:
                own.recent = heads_of_layer(self.recent, number, count)
                own.rope = Rope(persistent_copy(self.rope.cos), persistent_copy(self.rope.sin), self.rope.apply)
                own.history = None if self.history is None else heads_of_layer(self.history, number, count)
            states.append(own)
        return states

    @property
    def nbytes(self) -> int:
        if self.recent is None:
            return 0
        tensors = [self.recent, self.rope.cos, self.rope.sin]
        return sum(t.nbytes for t in tensors) + (self.history.nbytes if self.history is not None else 0)
