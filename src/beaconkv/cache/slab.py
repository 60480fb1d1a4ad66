"""The storage of one layer: keys, values and positions in slabs (B, H_kv, capacity, D)::

    slot      0 ........ length          capacity
    row 0     |entries...|  free         |
    row 1     |entries........|  free    |

Rows may differ in length. The host knows all lengths by counting, so nothing here waits for the device.
The slots of a row are in order of time until holes are first filled; ``positions`` names the token in each slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import ops
from ..types import CacheView, Rows, persistent_zeros
from .counts import RowCounts

GROWTH = 256
"""Slots by which a slab without a budget grows."""


@dataclass(frozen=True)
class Step:
    """One decode step in a slab: views, made once for all layers, of where its entries go and of all there are.

    Attributes:
        keys, values: per layer, (B, H_kv, N, D): the entries, the new ones included.
        valid: (B, N) bool, entries that exist, or None when all do.
        new_keys, new_values: per layer, (B, H_kv, D): the new entries, where rows are of one length; else None.
        slots: (B,) rows and (B,) slots, int64, of the new entries, where rows differ; else None.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    valid: Tensor | None
    new_keys: tuple[Tensor, ...] | None
    new_values: tuple[Tensor, ...] | None
    slots: tuple[Tensor, Tensor] | None

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Put the new entry of every row in its place. keys, values: (B, H_kv, 1, D)."""
        if self.slots is None:
            self.new_keys[layer].copy_(keys[:, :, 0])
            self.new_values[layer].copy_(values[:, :, 0])
        else:
            row, slot = self.slots
            for slab, new in ((self.keys[layer], keys), (self.values[layer], values)):
                slab[row, :, slot] = new[:, :, 0].to(slab.dtype)  # as copy_() would: autocast changes types midway


class EntrySlab:
    """Entries of a batch. With a budget, allocated once and never again.

    Args:
        keys, values: any entries (B, H_kv, m, D): shapes, dtype and device are taken from them.
        capacity: slots, or None to grow as needed.
        layers: number of layers of this shape whose heads are stacked in the slab.

    Attributes:
        keys, values: (B, layers * H_kv, capacity, D).
        positions: (B, layers * H_kv, capacity) int32, logical positions.
        counts: entries and tokens of each row.
    """

    def __init__(self, keys: Tensor, values: Tensor, capacity: int | None, layers: int = 1) -> None:
        batch, heads, _, dim = keys.shape
        self.grows = capacity is None
        slots, heads = GROWTH if capacity is None else capacity, layers * heads
        # Zeros, not empty: free slots of a shorter row are masked, but 0 times NaN would still be NaN.
        self.keys = persistent_zeros(keys, batch, heads, slots, dim)
        self.values = persistent_zeros(values, batch, heads, slots, values.shape[-1])
        self.positions = persistent_zeros(keys, batch, heads, slots, dtype=torch.int32)
        self.counts = RowCounts(keys)

    @property
    def lengths(self) -> list[int]:
        """Per row, number of entries stored."""
        return [row.stored for row in self.counts.rows]

    @property
    def num_seen(self) -> list[int]:
        """Per row, number of tokens seen: the next logical position."""
        return [row.seen for row in self.counts.rows]

    @property
    def num_seen_on_device(self) -> Tensor:
        """(B,) int32, the same where the entries are."""
        return self.counts.num_seen_on_device

    @property
    def longest(self) -> int:
        """Number of entries of the fullest row."""
        return max(row.stored for row in self.counts.rows)

    @property
    def shortest(self) -> int:
        """Number of entries of the emptiest row."""
        return min(row.stored for row in self.counts.rows)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the allocated keys and values, measured."""
        return self.keys.untyped_storage().nbytes() + self.values.untyped_storage().nbytes()

    @property
    def extra_bytes(self) -> int:
        """Bytes of positions and lengths."""
        return self.positions.nbytes + self.counts.nbytes

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of one key and value in all rows and heads."""
        batch, heads, _, dim = self.keys.shape
        return batch * heads * (dim * self.keys.itemsize + self.values.shape[-1] * self.values.itemsize)

    def valid(self, size: int) -> Tensor | None:
        """(B, size) bool: which of the first slots hold entries; None when all do."""
        if self.shortest >= size:
            return None
        return torch.arange(size, device=self.keys.device) < self.counts.lengths_on_device.unsqueeze(1)

    def begin_step(self, layers: int = 1) -> Step:
        """Count one new entry in every row; the caller writes it. layers: number of layers whose heads are stacked."""
        last, counts = self.longest, self.counts
        self._ensure_capacity(last + 1)
        new_keys = new_values = slots = None
        if self.shortest == last:
            self.positions[:, :, last] = counts.num_seen_on_device.unsqueeze(1)
            new_keys, new_values = (t.select(2, last).chunk(layers, dim=1) for t in (self.keys, self.values))
        else:
            row = torch.arange(len(counts.rows), device=self.keys.device)
            slots = row, counts.lengths_on_device.clone()
            self.positions[row, :, slots[1]] = counts.num_seen_on_device.unsqueeze(1)
        counts.step()
        keys, values = (t.narrow(2, 0, last + 1).chunk(layers, dim=1) for t in (self.keys, self.values))
        return Step(keys, values, self.valid(last + 1), new_keys, new_values, slots)

    def append_chunk(self, rows: Rows, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        """Write the entries that were counted last, in rows in the same state.

        Args:
            rows: whose entries these are.
            keys, values: (R, H_kv, m, D).
            positions: (R, H_kv, m) int32.
        """
        stop = self.counts.rows[rows.numbers[0]].stored
        self._ensure_capacity(stop)
        for slab, new in ((self.keys, keys), (self.values, values), (self.positions, positions)):
            rows.put(slab, 2, stop - keys.shape[2], new)

    def retain(self, view: CacheView, keep: Tensor) -> Tensor:
        """Keep some of the entries stored, moving them only into holes; see :class:`~.eviction.EntryStore`."""
        num_entries = view.positions.shape[-1]
        source = ops.fill_holes_source(keep, num_entries)
        ops.fill_holes([self.keys, self.values, self.positions], source, num_entries, view.rows)
        self.counts.settle(view.rows)
        return source

    def replace(self, view: CacheView, keep: Tensor) -> Tensor:
        """Store some entries of a view that were never stored, in the place of those that were; as :meth:`retain`."""
        for slab, entries in ((self.keys, view.keys), (self.values, view.values), (self.positions, view.positions)):
            view.rows.put(slab, 2, 0, ops.gather_entries(entries, keep))
        self.counts.settle(view.rows)
        return keep

    def slot_positions(self) -> Tensor:
        """(B, H_kv, longest row) int32: the token behind each stored entry, in slot order; -1 where a row has none."""
        size = self.longest
        held, valid = self.positions[:, :, :size].clone(), self.valid(size)
        return held if valid is None else held.masked_fill_(~valid.unsqueeze(1), -1)

    def _ensure_capacity(self, needed: int) -> None:
        missing = needed - self.keys.shape[2]
        if missing <= 0:
            return
        if not self.grows:
            raise AssertionError(f"{needed} entries do not fit the {self.keys.shape[2]} slots of a bounded slab")
        self.reserve(self.keys.shape[2] + -(-missing // GROWTH) * GROWTH)

    def reserve(self, capacity: int) -> None:
        """Grow to at least ``capacity`` slots. Copies everything, so never in a decode step of a bounded slab."""
        more = capacity - self.keys.shape[2]
        if more > 0:
            for name in ("keys", "values", "positions"):
                old = getattr(self, name)
                new = persistent_zeros(old, *old.shape[:2], capacity, *old.shape[3:])
                new[:, :, : old.shape[2]] = old
                setattr(self, name, new)

    def held_positions(self) -> Tensor:
        """(B, H_kv, longest) int32: logical positions held, ascending; -1 fills shorter rows."""
        last = torch.iinfo(torch.int32).max
        free = torch.arange(self.longest, device=self.positions.device) >= self.counts.lengths_on_device.view(-1, 1, 1)
        held = self.positions[:, :, : self.longest].masked_fill(free, last).sort(dim=-1).values
        return held.masked_fill(held == last, -1)

    def select_rows(self, index: Tensor, numbers: list[int]) -> None:
        """Row i becomes what row ``index[i]`` was. index (B_new,) int64, and the same on the host.

        Rows in the same state can replace each other in ``numbers``.
        """
        self.move_rows(index, self.longest)
        self.counts.select_rows(index, numbers)

    def move_rows(self, index: Tensor, stored: int) -> None:
        """Move the entries, as :meth:`select_rows` does; the first ``stored`` slots may hold any."""
        for name in ("keys", "values", "positions"):
            slab = getattr(self, name)
            moved = slab[:, :, :stored].index_select(0, index)
            if slab.shape[0] != index.shape[0]:
                slab = persistent_zeros(slab, index.shape[0], *slab.shape[1:])
                setattr(self, name, slab)
            slab[:, :, :stored] = moved


class SlabPart(EntrySlab):
    """The heads of one layer in a slab that holds those of several.

    Args:
        whole: the slab.
        heads: whose heads these are.
    """

    def __init__(self, whole: EntrySlab, heads: slice) -> None:
        self.whole, self.heads, self.grows = whole, heads, whole.grows
        self.counts = RowCounts(whole.keys)

    @property
    def keys(self) -> Tensor:
        """(B, H_kv, capacity, D), a view."""
        return self.whole.keys[:, self.heads]

    @property
    def values(self) -> Tensor:
        """(B, H_kv, capacity, D), a view."""
        return self.whole.values[:, self.heads]

    @property
    def positions(self) -> Tensor:
        """(B, H_kv, capacity) int32, a view."""
        return self.whole.positions[:, self.heads]

    @property
    def kv_bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def reserve(self, capacity: int) -> None:
        self.whole.reserve(capacity)

    def move_rows(self, index: Tensor, stored: int) -> None:
        """Do nothing: the stack moves the entries of all layers at once."""
