"""Triton twin of closing the gaps after an eviction."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...types import Rows
from .. import compaction as reference
from .launch import on_device_of

SLOTS = 16
"""Number of slots that a program handles."""
WIDEST = 128
"""Maximum number of an entry's components copied at a time."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Size in bytes -> dtype of the copy: entries are copied bit by bit, whatever their dtype."""


def fill_holes(tensors: list[Tensor], source: Tensor, num_entries: int, rows: Rows | None = None) -> None:
    """The same as :func:`beaconkv.ops.fill_holes`. Only holes are written.

    All holes may be filled at once and in any order: they lie below K, and what fills them at or above K.
    """
    if source.numel() == 0 or not all(_ordinary(tensor, source, rows) for tensor in tensors):
        reference.fill_holes(tensors, source, num_entries, rows)
        return
    index = rows.index if rows is not None else None
    num_rows, heads, new_length = source.shape
    grid = (num_rows * heads, triton.cdiv(new_length, SLOTS))
    with on_device_of(source):
        for tensor in tensors:
            width = math.prod(tensor.shape[3:])
            _fill[grid](
                tensor.view(INTEGERS[tensor.element_size()]),
                source,
                index,
                *tensor.stride()[:3],
                *source.stride(),
                heads,
                new_length,
                width,
                ROWS=index is not None,
                SLOTS=SLOTS,
                WIDTH=min(WIDEST, triton.next_power_of_2(width)),
            )


def _ordinary(tensor: Tensor, source: Tensor, rows: Rows | None) -> bool:
    """Whether the kernel supports it: contiguous entries, and rows and heads that match the index."""
    every = rows is None or rows.index is None
    return (
        tensor.element_size() in INTEGERS
        and tensor.numel() > 0
        and tensor.shape[1] == source.shape[1]
        and (not every or tensor.shape[0] == source.shape[0])
        and (every or rows.index.shape == source.shape[:1] and rows.index.is_contiguous())
        and tensor[0, 0, 0].is_contiguous()
    )


@triton.jit
def _fill(
    tensor, source, index, stride_row, stride_head, stride_slot, stride_sr, stride_sh, stride_sk,
    heads, new_length, width,
    ROWS: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    row, head = program // heads, program % heads
    slot = tl.program_id(1).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)
    from_ = tl.load(source + row * stride_sr + head * stride_sh + slot * stride_sk, mask=slot < new_length, other=0)
    hole = from_ >= new_length  # (SLOTS,)
    if ROWS:
        row = tl.load(index + row)
    entries = tensor + row * stride_row + head * stride_head
    for start in range(0, width, WIDTH):
        d = start + tl.arange(0, WIDTH)
        moves = hole[:, None] & (d < width)[None, :]  # (SLOTS, WIDTH)
        moved = tl.load(entries + from_[:, None] * stride_slot + d[None, :], mask=moves)
        tl.store(entries + slot[:, None] * stride_slot + d[None, :], moved, mask=moves)
