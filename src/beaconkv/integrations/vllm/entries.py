"""The entries of one layer in the blocks of a paged cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Views = Callable[[Tensor], tuple[Tensor, Tensor]]
"""(a layer's cache) -> keys and values, each (blocks, H_kv, block size, D): views that can be written to."""


def side_by_side(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of a cache (blocks, H_kv, block size, 2 D) in which each slot holds its key, then its value."""
    return cache.chunk(2, dim=-1)


def half_by_half(cache: Tensor) -> tuple[Tensor, Tensor]:
    """The same where each block holds its keys, transposed (D, block size), and then its values: vLLM's CPU kernels."""
    blocks, heads, size, both = cache.shape
    keys, values = cache.view(blocks, heads, 2, size * both // 2).unbind(2)
    return keys.unflatten(-1, (both // 2, size)).transpose(-1, -2), values.unflatten(-1, (size, both // 2))


def read(entries: Tensor, table: Tensor, count: int) -> Tensor:
    """A copy of the first ``count`` entries of a request.

    Args:
        entries: (blocks, H_kv, block size, D).
        table: (n,) int32 or int64, the request's blocks in order; there may be more.

    Returns:
        (H_kv, count, D).
    """
    size = entries.shape[2]
    return entries[table[: -(-count // size)]].transpose(0, 1).flatten(1, 2)[:, :count]


def write(entries: Tensor, table: Tensor, slots: Tensor, new: Tensor) -> None:
    """Put entries in place.

    Args:
        entries: (blocks, H_kv, block size, D), written to.
        table: (n,) int32 or int64, the request's blocks in order; there may be more.
        slots: (H_kv, m) int64, where each head's entries go.
        new: (H_kv, m, D).
    """
    size = entries.shape[2]
    head = torch.arange(entries.shape[1], device=entries.device).unsqueeze(1)
    entries[table[slots // size], head, slots % size] = new


def slots_of(table: Tensor, start: int, stop: int, size: int) -> Tensor:
    """(stop - start,) int64: the slots of a request's entries in the whole cache, as vLLM numbers them."""
    at = torch.arange(start, stop, device=table.device)
    return table[at // size].long() * size + at % size
