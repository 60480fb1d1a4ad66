"""Closing the gaps after an eviction. Reference version.

Attention does not depend on the order of the entries, so survivors from above the new length fill the
holes below it: at most N - K entries move, the other K stay where they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..types import Rows


def fill_holes_source(keep: Tensor, num_entries: int) -> Tensor:
    """Source slot of each slot's entry when only the holes are filled.

    Args:
        keep: Slots to keep (R, H_kv, K) int64, ascending, K < num_entries.
        num_entries: Number of entries before the eviction, N.

    Returns:
        (R, H_kv, K) int64: slot i holds afterwards what slot ``source[..., i]`` held. Kept slots
        below K are their own source; holes take the survivors at or above K, both in ascending order.
    """
    new_length = keep.shape[-1]
    kept = torch.zeros(*keep.shape[:-1], num_entries, dtype=torch.bool, device=keep.device)
    kept.scatter_(-1, keep, True)
    hole = ~kept[..., :new_length]
    # The k-th hole is filled by the k-th survivor from above; those are the last entries of `keep`.
    num_above = hole.sum(dim=-1, keepdim=True)
    rank = hole.cumsum(dim=-1) - 1
    survivor = keep.gather(-1, (new_length - num_above + rank).clamp_(0, new_length - 1))
    own = torch.arange(new_length, device=keep.device).expand_as(keep)
    return torch.where(hole, survivor, own)


def hole_moves(source: Tensor, num_entries: int) -> tuple[Tensor, Tensor]:
    """The moves that fill the holes, as lists of one length for all heads.

    Args:
        source: Source slots (R, H_kv, K) from :func:`fill_holes_source`.
        num_entries: Number of entries before the eviction, N.

    Returns:
        into, from: (R, H_kv, min(N - K, K)) int64 slots. Where a head has fewer holes, slots are copied onto
        themselves, so that the shape does not depend on the data.
    """
    new_length = source.shape[-1]
    moves = min(num_entries - new_length, new_length)
    is_hole = source >= new_length
    into = is_hole.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :moves]  # holes first, in order
    return into, source.gather(-1, into)


def fill_holes(tensors: list[Tensor], source: Tensor, num_entries: int, rows: Rows | None = None) -> None:
    """Move entries in place so that slot i holds what ``source[..., i]`` held, moving at most N - K.

    Args:
        tensors: each (B, H_kv, capacity, ...), changed in place.
        source: (R, H_kv, K) from :func:`fill_holes_source`.
        num_entries: N, entries before the eviction. Slots in [K, N) are free afterwards.
        rows: the rows of the batch that ``source`` is for; None: all.
    """
    num_rows, heads, _ = source.shape
    into, from_ = hole_moves(source, num_entries)
    index = rows.index if rows is not None else None
    row = (torch.arange(num_rows, device=source.device) if index is None else index).view(-1, 1, 1)
    head = torch.arange(heads, device=source.device).view(1, -1, 1)
    for tensor in tensors:
        tensor[row, head, into] = tensor[row, head, from_]


def gather_entries(tensor: Tensor, source: Tensor) -> Tensor:
    """A copy in which slot i holds what slot ``source[..., i]`` held.

    Args:
        tensor: Tensor (R, H_kv, N, ...).
        source: Source slots (R, H_kv, K) int64.

    Returns:
        (R, H_kv, K, ...).
    """
    index = source.view(*source.shape, *(1,) * (tensor.ndim - 3)).expand(*source.shape, *tensor.shape[3:])
    return tensor.gather(2, index)
