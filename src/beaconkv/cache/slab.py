"""The storage of one layer: keys, values and positions in slabs (B, H_kv, capacity, D).

    slot      0 ........ length          capacity
    row 0     |entries...|  free         |
    row 1     |entries........|  free    |

Rows may differ in length. The host knows all lengths by counting, so nothing here waits for the device.
The slots of a row are in order of time until holes are first filled; ``positions`` always tells.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import ops
from ..types import Rows, lasting_rows, lasting_zeros

GROWTH = 256
"""Slots by which a slab without a budget grows."""


class EntrySlab:
    """Entries of a batch. With a budget, allocated once and never again.

    Args:
        keys, values: any entries (B, H_kv, m, D): shapes, dtype and device are taken from them.
        capacity: slots, or None to grow as needed.

    Attributes:
        keys, values: (B, H_kv, capacity, D).
        positions: (B, H_kv, capacity) int32, logical positions.
        lengths: per row, entries stored.
        num_seen: per row, tokens seen: the next logical position.
        num_seen_on_device: (B,) int32, the same where the entries are.
    """

    def __init__(self, keys: Tensor, values: Tensor, capacity: int | None) -> None:
        batch, heads, _, dim = keys.shape
        self.grows = capacity is None
        slots = GROWTH if capacity is None else capacity
        # Zeros, not empty: free slots of a shorter row are masked, but 0 times NaN would still be NaN.
        self.keys = lasting_zeros(keys, batch, heads, slots, dim)
        self.values = lasting_zeros(values, batch, heads, slots, values.shape[-1])
        self.positions = lasting_zeros(keys, batch, heads, slots, dtype=torch.int32)
        self.lengths, self.num_seen = [0] * batch, [0] * batch
        self._lengths = lasting_zeros(keys, batch, dtype=torch.int64)  # the same, on the device
        self.num_seen_on_device = lasting_zeros(keys, batch, dtype=torch.int32)

    @property
    def longest(self) -> int:
        """Entries of the fullest row."""
        return max(self.lengths)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the allocated keys and values, measured."""
        return self.keys.untyped_storage().nbytes() + self.values.untyped_storage().nbytes()

    @property
    def extra_bytes(self) -> int:
        """Bytes beside them: positions and lengths."""
        return self.positions.nbytes + self._lengths.nbytes + self.num_seen_on_device.nbytes

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of one key and value in all rows and heads."""
        batch, heads, _, dim = self.keys.shape
        return batch * heads * (dim * self.keys.itemsize + self.values.shape[-1] * self.values.itemsize)

    def valid(self, size: int) -> Tensor | None:
        """(B, size) bool: which of the first slots hold entries; None when all do."""
        if min(self.lengths) >= size:
            return None
        return torch.arange(size, device=self.keys.device) < self._lengths.unsqueeze(1)

    def append_step(self, keys: Tensor, values: Tensor) -> None:
        """One new entry in every row, written in place. keys, values: (B, H_kv, 1, D)."""
        slot = self.longest
        self._ensure_capacity(slot + 1)
        if min(self.lengths) == slot:
            self.keys[:, :, slot] = keys[:, :, 0]
            self.values[:, :, slot] = values[:, :, 0]
            self.positions[:, :, slot] = self.num_seen_on_device.unsqueeze(1)
        else:
            row = torch.arange(len(self.lengths), device=keys.device)
            self.keys[row, :, self._lengths] = keys[:, :, 0]
            self.values[row, :, self._lengths] = values[:, :, 0]
            self.positions[row, :, self._lengths] = self.num_seen_on_device.unsqueeze(1)
        self._lengths.add_(1)
        self.num_seen_on_device.add_(1)
        self.lengths = [n + 1 for n in self.lengths]
        self.num_seen = [n + 1 for n in self.num_seen]

    def append_chunk(self, rows: Rows, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        """Several new entries in rows of one length. keys, values: (R, H_kv, m, D), positions (R, H_kv, m)."""
        start = self.lengths[rows.numbers[0]]
        self._ensure_capacity(start + keys.shape[2])
        for slab, new in ((self.keys, keys), (self.values, values), (self.positions, positions)):
            rows.put(slab, 2, start, new)
        self._set(rows, start + keys.shape[2])

    def saw(self, rows: Rows, tokens: int) -> None:
        """Count tokens that came in a chunk, stored or not."""
        for row in rows.numbers:
            self.num_seen[row] += tokens
        if rows.index is None:
            self.num_seen_on_device.add_(tokens)
        else:
            self.num_seen_on_device[rows.index] += tokens

    def compact(self, rows: Rows, keep: Tensor) -> Tensor:
        """Keep these slots, moving entries only into holes.

        Args:
            keep: (R, H_kv, K) int64 ascending slots; the rows are of one length.

        Returns:
            (R, H_kv, K) int64: slot i now holds what slot ``source[..., i]`` held.
        """
        num_entries = self.lengths[rows.numbers[0]]
        source = ops.fill_holes_source(keep, num_entries)
        ops.fill_holes([self.keys, self.values, self.positions], source, num_entries, rows)
        self._set(rows, keep.shape[-1])
        return source

    def replace(self, rows: Rows, keys: Tensor, values: Tensor, positions: Tensor, keep: Tensor) -> Tensor:
        """Store the chosen ones of other entries (R, H_kv, N, D) instead; returns the source as :meth:`compact`."""
        for slab, entries in ((self.keys, keys), (self.values, values), (self.positions, positions)):
            rows.put(slab, 2, 0, ops.gather_entries(entries, keep))
        self._set(rows, keep.shape[-1])
        return keep

    def _set(self, rows: Rows, length: int) -> None:
        for row in rows.numbers:
            self.lengths[row] = length
        if rows.index is None:
            self._lengths.fill_(length)
        else:
            self._lengths[rows.index] = length

    def _ensure_capacity(self, needed: int) -> None:
        missing = needed - self.keys.shape[2]
        if missing <= 0:
            return
        if not self.grows:
            raise AssertionError(f"{needed} entries do not fit the {self.keys.shape[2]} slots of a bounded slab")
        self.reserve(self.keys.shape[2] + -(-missing // GROWTH) * GROWTH)

    def reserve(self, capacity: int) -> None:
        """Have at least so many slots. Copies everything, so never in a decode step of a bounded slab."""
        more = capacity - self.keys.shape[2]
        if more > 0:
            for name in ("keys", "values", "positions"):
                old = getattr(self, name)
                new = lasting_zeros(old, *old.shape[:2], capacity, *old.shape[3:])
                new[:, :, : old.shape[2]] = old
                setattr(self, name, new)

    def held_positions(self) -> Tensor:
        """(B, H_kv, longest) int32: logical positions held, ascending; -1 fills shorter rows."""
        last = torch.iinfo(torch.int32).max
        free = torch.arange(self.longest, device=self.positions.device) >= self._lengths.view(-1, 1, 1)
        held = self.positions[:, :, : self.longest].masked_fill(free, last).sort(dim=-1).values
        return held.masked_fill(held == last, -1)

    def select_rows(self, index: Tensor, numbers: list[int]) -> None:
        """Row i becomes what row ``index[i]`` was. index (B_new,) int64, and the same on the host.

        Where rows are alike, any of them may stand for another in ``numbers``.
        """
        stored = self.longest
        for name in ("keys", "values", "positions"):
            slab = getattr(self, name)
            moved = slab[:, :, :stored].index_select(0, index)
            if slab.shape[0] != index.shape[0]:
                slab = lasting_zeros(slab, index.shape[0], *slab.shape[1:])
                setattr(self, name, slab)
            slab[:, :, :stored] = moved
        self._lengths = lasting_rows(self._lengths, index)
        self.num_seen_on_device = lasting_rows(self.num_seen_on_device, index)
        self.lengths = [self.lengths[row] for row in numbers]
        self.num_seen = [self.num_seen[row] for row in numbers]

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` if an invariant is broken. Slow."""
        assert self._lengths.tolist() == self.lengths, (self._lengths.tolist(), self.lengths)
        assert self.num_seen_on_device.tolist() == self.num_seen, (self.num_seen_on_device.tolist(), self.num_seen)
        for row, length in enumerate(self.lengths):
            assert length <= self.num_seen[row], (row, length, self.num_seen[row])
            held = self.positions[row, :, :length].sort(dim=-1).values
            assert (held[:, 1:] > held[:, :-1]).all(), f"row {row} holds a position twice"
            assert (held >= 0).all(), f"row {row} holds a negative position"
            assert (held < self.num_seen[row]).all(), f"row {row} holds a position not yet seen"
