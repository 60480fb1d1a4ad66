"""The entries of one layer in the blocks of a paged cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ... import ops
from ...types import CacheView

Views = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Function from a layer's cache to its keys and values, each (blocks, H_kv, block size, D): writable views."""


def side_by_side(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of a cache (blocks, H_kv, block size, 2 D) in which each slot holds its key, then its value."""
    return cache.chunk(2, dim=-1)


def half_by_half(cache: Tensor) -> tuple[Tensor, Tensor]:
    """The same for vLLM's CPU kernels, where each block holds its keys, transposed (D, block size), then its values."""
    blocks, heads, size, both = cache.shape
    keys, values = cache.view(blocks, heads, 2, size * both // 2).unbind(2)
    return keys.unflatten(-1, (both // 2, size)).transpose(-1, -2), values.unflatten(-1, (size, both // 2))


def read(entries: Tensor, table: Tensor, count: int) -> Tensor:
    """A copy of the first ``count`` entries of a request.

    Args:
        entries: Entries (blocks, H_kv, block size, D).
        table: Blocks of the request in order (n,) int32 or int64; there may be more.

    Returns:
        (H_kv, count, D).
    """
    size = entries.shape[2]
    return entries[table[: -(-count // size)]].transpose(0, 1).flatten(1, 2)[:, :count]


def write(entries: Tensor, table: Tensor, slots: Tensor, new: Tensor) -> None:
    """Write entries into their slots.

    Args:
        entries: Entries (blocks, H_kv, block size, D), written to.
        table: Blocks of the request in order (n,) int32 or int64; there may be more.
        slots: Slots of each head's entries (H_kv, m) int64.
        new: Entries (H_kv, m, D) to be written.
    """
    size = entries.shape[2]
    head = torch.arange(entries.shape[1], device=entries.device).unsqueeze(1)
    entries[table[slots // size], head, slots % size] = new


def slots_of(table: Tensor, start: int, stop: int, size: int) -> Tensor:
    """The slots of a request's entries in the whole cache (stop - start,) int64, by vLLM's numbering."""
    at = torch.arange(start, stop, device=table.device)
    return table[at // size].long() * size + at % size


class BlockStore:
    """The entries of one request in the blocks of some layers, the heads of the layers stacked.

    Args:
        caches: Keys and values of each layer, each (blocks, H_kv, block size, D), written to.
        table: Blocks of the request in order (n,) int32 or int64.
        held: Positions of the entries that the last eviction left (heads, K) int32; None before the first.

    Attributes:
        held: Positions as above, after :meth:`retain`.
    """

    def __init__(self, caches: list[tuple[Tensor, Tensor]], table: Tensor, held: Tensor | None) -> None:
        self.caches, self.table, self.held = caches, table, held

    def entries(self, count: int, seen: int) -> tuple[Tensor, Tensor, Tensor]:
        """A copy of the first ``count`` entries, after ``seen`` tokens.

        Returns:
            Keys and values (1, heads, count, D), and positions (1, heads, count) int32.
        """
        keys, values = (
            torch.cat([read(layer[part], self.table, count) for layer in self.caches])[None] for part in (0, 1)
        )
        return keys, values, positions_of(self.held, keys.shape[1], count, seen, keys.device)[None]

    def retain(self, view: CacheView, keep: Tensor) -> Tensor:
        """Keep some entries, moving them only into holes; see :class:`beaconkv.cache.EntryStore`."""
        count = view.positions.shape[-1]
        source = ops.fill_holes_source(keep, count)
        into, from_ = ops.hole_moves(source, count)
        moved = [ops.gather_entries(entries, from_)[0] for entries in (view.keys, view.values)]
        for number, layer in enumerate(self.caches):
            heads = slice(number * layer[0].shape[1], (number + 1) * layer[0].shape[1])
            for entries, new in zip(layer, moved, strict=True):
                write(entries, self.table, into[0, heads], new[heads])
        self.held = ops.gather_entries(view.positions, source)[0]
        return source


def positions_of(held: Tensor | None, heads: int, count: int, seen: int, device: torch.device) -> Tensor:
    """Positions (heads, count) int32: the entries that an eviction left, then the newer ones up to ``seen``."""
    kept = 0 if held is None else held.shape[1]
    newer = torch.arange(seen - (count - kept), seen, dtype=torch.int32, device=device).expand(heads, -1)
    return newer if held is None else torch.cat([held, newer], dim=1)
