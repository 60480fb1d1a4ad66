"""Memory of past queries of one layer: all of them, or those that a fixed rule picks from their numbers alone.

History is what came before the last n_recent queries, as in the continual buffer of BeaconKV: a query that
still scores as a recent one does not belong to it. It is kept before RoPE.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import ops
from ..types import CacheView, Rope, Rows, device_index, persistent_rows, persistent_zeros
from .base import LayerState, concat_heads, heads_of_layer, require_int, require_positive
from .observation import ObservationPolicy
from .query_buffer import QueryBuffer
from .retention import EverySlot

GROWTH = 256
"""Number of slots by which a history without a limit grows, so that its size depends on the tokens seen alone."""


class History(LayerState):
    """Recent queries, and the history before them.

    Args:
        batch: Number of rows B.
        n_recent: Number of recent queries per query head.
        n_beacon: Number of representatives per query head.
        rule: Rule for which queries stay, and in which slot.
        represent: Function (history (R, H, N, D), count (R,), m) -> (R, H, m, D) representatives; None: the history
            itself.
    """

    def __init__(
        self,
        batch: int,
        n_recent: int,
        n_beacon: int,
        rule: EverySlot,
        represent: Callable[[Tensor, Tensor, int], Tensor] | None = None,
    ) -> None:
        self.n_recent, self.n_beacon, self.rule, self.represent = n_recent, n_beacon, rule, represent
        self.window = QueryBuffer(batch, n_recent, 0, 1)
        self.past: Tensor | None = None  # (B, H, slots, D) before RoPE, grown by GROWTH
        self.dtype: torch.dtype | None = None  # of the queries as they come
        self.num_past = [0] * batch  # per row: queries that have left the recent ones

    def row_key(self, row: int) -> tuple[int, int]:
        return self.window.num_recent[row], min(self._filled(row), self.n_beacon)

    def _filled(self, row: int) -> int:
        return self.rule.filled(self.num_past[row])

    def observe(self, queries: Tensor, rope: Rope, until_full: list[int], rows: Rows, view: CacheView | None) -> None:
        self.dtype = queries.dtype
        if queries.shape[2] == 1 and rows.index is None:
            self._remember_oldest(rows)
        else:
            self._remember_chunk(queries, rope, rows)
        self.window.observe(queries, rope, until_full, rows, view)

    def _remember_oldest(self, rows: Rows) -> None:
        """Prepare for one step: where the recent queries are complete, the oldest of them leaves."""
        targets = []
        for row, recent in enumerate(self.window.num_recent):
            if recent == self.n_recent:
                slot = self.rule.slot(self.num_past[row])
                self.num_past[row] += 1
                if slot is not None:
                    targets.append((row, slot))
        if not targets:
            return
        leaving = self.window.before_rope(self.n_recent, self.n_recent - 1, rows)
        numbers, slots = zip(*targets, strict=True)
        self._reserve(leaving, max(slots) + 1)
        if len(numbers) == len(rows) and len(set(slots)) == 1:
            self.past[:, :, slots[0]] = leaving[:, :, 0]
        else:
            row, slot = (device_index(list(n), leaving.device) for n in (numbers, slots))
            self.past[row, :, slot] = leaving[row, :, 0].to(self.past)

    def _remember_chunk(self, queries: Tensor, rope: Rope, rows: Rows) -> None:
        """Several queries arrive in rows in the same state: as many leave the recent ones."""
        first, num_new = rows.numbers[0], queries.shape[2]
        recent, start = self.window.num_recent[first], self.num_past[first]
        leave = max(0, recent + num_new - self.n_recent)
        if not leave:
            return
        from_recent = min(leave, recent)
        chosen = {self.rule.slot(start + i): i for i in range(leave)}  # the last one in a slot stays
        chosen.pop(None, None)
        old = {slot: i for slot, i in chosen.items() if i < from_recent}
        new = {slot: i - from_recent for slot, i in chosen.items() if i >= from_recent}
        if old:
            leaving = self.window.before_rope(recent, recent - from_recent, rows)
            self._write(rows, list(old), leaving.index_select(2, device_index(list(old.values()), queries.device)))
        if new:
            steps = device_index(list(new.values()), queries.device)
            at = Rope(rope.cos.index_select(1, steps), rope.sin.index_select(1, steps), rope.apply)
            self._write(rows, list(new), ops.unrotate(queries.index_select(2, steps), at))
        for row in rows.numbers:
            self.num_past[row] += leave

    def _write(self, rows: Rows, slots: list[int], queries: Tensor) -> None:
        """queries (R, H, len(slots), D) into these slots of these rows."""
        self._reserve(queries, max(slots) + 1)
        index = device_index(slots, queries.device)
        if rows.index is None:
            self.past[:, :, index] = queries.to(self.past)
        else:
            self.past[rows.index.unsqueeze(1), :, index] = queries.transpose(1, 2).to(self.past)

    def _reserve(self, like: Tensor, slots: int) -> None:
        held = 0 if self.past is None else self.past.shape[2]
        if slots <= held:
            return
        slots = max(slots, self.rule.limit or -(-slots // GROWTH) * GROWTH)
        new = persistent_zeros(like, len(self.num_past), like.shape[1], slots, like.shape[3], dtype=self.dtype)
        if held:
            new[:, :, :held] = self.past
        self.past = new

    def beacons(self, rows: Rows) -> Tensor:
        """(R, H, m, D) representatives before RoPE, m = n_beacon once the history is that long."""
        sizes = [self._filled(row) for row in rows.numbers]
        if not max(sizes):
            return self.window.recents(rows)[:, :, :0]
        past = rows.take(self.past)[:, :, : max(sizes)]
        if self.represent is None:
            return past
        return self.represent(past, device_index(sizes, past.device), min(*sizes, self.n_beacon))

    def recents(self, rows: Rows) -> Tensor:
        """(R, H, m, D) the last queries after RoPE, oldest first."""
        return self.window.recents(rows)

    def observation_queries(self, rows: Rows) -> Tensor:
        window = self.window
        recents = window.before_rope(window.num_recent[rows.numbers[0]], 0, rows)
        return torch.cat([self.beacons(rows).float(), recents], dim=2)

    def select_rows(self, index: Tensor, numbers: list[int]) -> None:
        self.window.select_rows(index, numbers)
        self.num_past = [self.num_past[row] for row in numbers]
        if self.past is not None:
            self.past = persistent_rows(self.past, index)

    @classmethod
    def stack(cls, states: Sequence[History]) -> History | None:
        if cls is not History:
            return None  # a subclass may hold more than this class can stack
        first = states[0]
        if first.rule.limit is None:
            return None  # the whole history of all layers would be read at once, which needs too much memory
        first.window = QueryBuffer.stack([state.window for state in states])
        if first.past is not None:
            first.past = concat_heads([state.past for state in states])
        return first

    def unstack(self, count: int) -> list[History]:
        states = []
        for number, window in enumerate(self.window.unstack(count)):
            own = copy(self)
            own.window, own.num_past = window, list(self.num_past)
            own.past = None if self.past is None else heads_of_layer(self.past, number, count)
            states.append(own)
        return states

    @property
    def nbytes(self) -> int:
        return self.window.nbytes + (0 if self.past is None else self.past.nbytes)


@dataclass(frozen=True)
class HistoryPolicy(ObservationPolicy):
    """The last ``n_recent`` queries, and ``n_beacon`` that represent the history, rotated to now.

    Scored and pooled as BeaconKV does.

    Attributes:
        n_beacon: number of queries per query head that represent the history.
        beacon_scale: as for BeaconKV.
    """

    per_head = True

    n_beacon: int = 16
    beacon_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self.name, "beacon_scale", self.beacon_scale)
        require_int(self.name, "n_beacon", self.n_beacon, 1)

    @property
    def logit_scales(self) -> tuple[float, float]:
        return self.beacon_scale, self.recent_scale

    @abstractmethod
    def new_state(self, batch: int) -> History: ...


@dataclass(frozen=True)
class WholeHistoryPolicy(HistoryPolicy):
    """Representatives of the whole history, which is kept: memory and time grow with the text."""

    def new_state(self, batch: int) -> History:
        return History(batch, self.n_recent, self.n_beacon, EverySlot(), self.represent)

    @abstractmethod
    def represent(self, history: Tensor, count: Tensor, num: int) -> Tensor:
        """(R, H, num, D) queries before RoPE that represent a history.

        Args:
            history: Queries (R, H, N, D), oldest first; slots at and after ``count`` must not be read.
            count: Number of queries of each row (R,) int64, at least ``num``.
            num: Number of representatives.
        """
