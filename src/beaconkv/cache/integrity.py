"""Invariants of a slab and of its counters, checked one by one. Slow: for tests and idle moments."""

from __future__ import annotations

import torch

from ..schedule import EvictionSchedule
from .slab import EntrySlab


def check_integrity(slab: EntrySlab, schedule: EvictionSchedule) -> None:
    """Raise ``AssertionError`` if an invariant is broken.

    Args:
        slab: entries of some layers between two forward passes.
        schedule: schedule of these layers.
    """
    counts, device = slab.counts, slab.positions.device
    assert counts.lengths_on_device.tolist() == slab.lengths, (counts.lengths_on_device.tolist(), slab.lengths)
    assert counts.num_seen_on_device.tolist() == slab.num_seen, (counts.num_seen_on_device.tolist(), slab.num_seen)
    for number, row in enumerate(counts.rows):
        length, seen = row.stored, row.seen
        assert length <= seen, (number, length, seen)
        assert row.due is None, f"row {number} was to be evicted"
        assert row.full_at is None or length < row.full_at, (number, length, row.full_at)
        held = slab.positions[number, :, :length].sort(dim=-1).values
        assert (held[:, 1:] > held[:, :-1]).all(), f"row {number} holds a position twice"
        assert (held >= 0).all(), f"row {number} holds a negative position"
        assert (held < seen).all(), f"row {number} holds a position not yet seen"
        prefix, protect = min(schedule.prefix_for(row.prompt), length), min(schedule.protect, length)
        start, end = torch.arange(prefix, device=device), torch.arange(seen - protect, seen, device=device)
        assert (held[:, :prefix] == start).all(), f"row {number} lost protected first entries"
        assert (held[:, length - protect :] == end).all(), f"row {number} lost protected last entries"
