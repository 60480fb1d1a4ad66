"""Triton twin of farthest point sampling: one program for each head.

Up to ``MATRIX`` queries, a head's cosines are held in registers. Beyond that, its unit vectors are written once, and
each step multiplies them with the pick again. Everything is float32: dot products are not rounded to TF32, divisions
and roots are those of IEEE, so that cosines that are equal in the reference are equal here.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import sampling as reference
from .launch import at_least_16, on_device_of

MATRIX = 64
"""Maximum number of queries whose matrix of cosines a program holds."""
BLOCK = 64
"""Number of queries that a program computes at a time when there are more."""
CHUNK = 16
"""Number of dimensions multiplied at a time. Without tensor cores the operands of a dot product take registers, so that
few are best."""
TINY = tl.constexpr(torch.finfo(torch.float32).tiny)


def farthest_point_sampling(queries: Tensor, num_samples: int) -> Tensor:
    """The same as :func:`beaconkv.ops.farthest_point_sampling`. Queries may be strided."""
    if num_samples <= 0 or queries.ndim < 2 or queries.numel() == 0:
        return reference.farthest_point_sampling(queries, num_samples)
    reference.require_finite(queries, "queries")
    *lead, size, dim = queries.shape
    num_samples = min(num_samples, size)
    picks = torch.empty(*lead, num_samples, dtype=torch.int64, device=queries.device)
    queries = queries.reshape(-1, size, dim)  # a view, unless the leading dimensions are out of order
    with on_device_of(queries):
        if size <= MATRIX:
            _sample_matrix[(queries.shape[0],)](
                queries,
                picks,
                *queries.stride(),
                size,
                dim,
                num_samples,
                SIZE=at_least_16(size),
                DIM=at_least_16(dim),
                CHUNK=CHUNK,
                num_warps=4 if size * dim <= 4096 else 8,
                enable_fp_fusion=False,
            )
        else:
            _sample_blocks(queries, picks)
    return picks


def _sample_blocks(queries: Tensor, picks: Tensor) -> None:
    heads, size, dim = queries.shape
    unit = torch.empty(heads, size, dim, dtype=torch.float32, device=queries.device)
    nearest = torch.empty(heads, size, dtype=torch.float32, device=queries.device)
    tile = dict(BLOCK=BLOCK, DIM=at_least_16(dim), num_warps=8, enable_fp_fusion=False)
    _unit_vectors[(heads, triton.cdiv(size, BLOCK))](queries, unit, *queries.stride(), size, dim, **tile)
    _sample[(heads,)](unit, nearest, picks, size, dim, picks.shape[-1], **tile)


@triton.jit
def _lengths(x):
    """x (rows, D) -> the largest component and, after division by it, the norm of each row."""
    largest = tl.maximum(tl.max(tl.abs(x), axis=1), TINY)
    x = tl.div_rn(x, tl.broadcast_to(largest[:, None], x.shape))
    return largest, tl.maximum(tl.sqrt_rn(tl.sum(x * x, axis=1)), TINY)


@triton.jit
def _scaled(x, largest, norm):
    x = tl.div_rn(x, tl.broadcast_to(largest[:, None], x.shape))
    return tl.div_rn(x, tl.broadcast_to(norm[:, None], x.shape))


@triton.jit(do_not_specialize=["size", "num_samples"])
def _sample_matrix(
    queries,
    picks,
    stride_head,
    stride_query,
    stride_dim,
    size,
    dim,
    num_samples,
    SIZE: tl.constexpr,
    DIM: tl.constexpr,
    CHUNK: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)  # (SIZE,)
    exists = i < size
    rows = queries + head * stride_head + i[:, None].to(tl.int64) * stride_query  # (SIZE, 1)
    d = tl.arange(0, DIM)
    x = tl.load(rows + d[None, :] * stride_dim, mask=exists[:, None] & (d < dim)[None, :], other=0.0).to(tl.float32)
    largest, norm = _lengths(x)  # x (SIZE, DIM) -> (SIZE,)
    nonzero = tl.max(tl.abs(x), axis=1) > 0

    cos = tl.zeros((SIZE, SIZE), dtype=tl.float32)
    for start in range(0, dim, CHUNK):
        c = start + tl.arange(0, CHUNK)
        part = tl.load(rows + c[None, :] * stride_dim, mask=exists[:, None] & (c < dim)[None, :], other=0.0)
        part = _scaled(part.to(tl.float32), largest, norm)  # (SIZE, CHUNK)
        cos = tl.dot(part, tl.trans(part), cos, input_precision="ieee")  # (SIZE, SIZE)
    # A query's cosine to itself is exactly 1 (0 for the zero vector): rounding there would break ties.
    cos = tl.where(i[:, None] == i[None, :], tl.where(nonzero, 1.0, 0.0)[:, None], cos)

    count = tl.zeros((SIZE,), dtype=tl.float32) + size
    average = tl.where(exists, tl.div_rn(tl.sum(cos, axis=1), count), float("inf"))
    pick = tl.argmin(average, axis=0)
    nearest = tl.where(exists, -float("inf"), float("inf"))  # cosine to the nearest pick; +inf: never picked
    for step in range(num_samples):
        tl.store(picks + head * num_samples + step, pick.to(tl.int64))
        to_pick = tl.sum(tl.where(i[None, :] == pick, cos, 0.0), axis=1)  # (SIZE,)
        nearest = tl.where(i == pick, float("inf"), tl.maximum(nearest, to_pick))
        pick = tl.argmin(nearest, axis=0)


@triton.jit
def _unit_vectors(
    queries, unit, stride_head, stride_query, stride_dim, size, dim, BLOCK: tl.constexpr, DIM: tl.constexpr
):
    head = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, DIM)
    inside = (i < size)[:, None] & (d < dim)[None, :]
    at = queries + head * stride_head + i[:, None] * stride_query + d[None, :] * stride_dim
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    largest, norm = _lengths(x)  # x (BLOCK, DIM) -> (BLOCK,)
    tl.store(unit + (head * size + i[:, None]) * dim + d[None, :], _scaled(x, largest, norm), mask=inside)


@triton.jit(do_not_specialize=["size", "num_samples"])
def _sample(unit, nearest, picks, size, dim, num_samples, BLOCK: tl.constexpr, DIM: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    unit += head * size * dim
    nearest += head * size
    i = tl.arange(0, BLOCK)
    d = tl.arange(0, DIM)

    total = tl.zeros((DIM,), dtype=tl.float32)
    for start in range(0, size, BLOCK):
        at = unit + (start + i)[:, None].to(tl.int64) * dim + d[None, :]
        total += tl.sum(tl.load(at, mask=(start + i < size)[:, None] & (d < dim)[None, :], other=0.0), axis=0)

    # The mean cosine to all from u_i . sum_j u_j; the term of a query with itself is left out, since its cosine is
    # exactly 1 (0 for the zero vector).
    count = tl.zeros((BLOCK,), dtype=tl.float32) + size
    lowest = tl.full((), float("inf"), dtype=tl.float32)
    pick = tl.full((), 0, dtype=tl.int32)
    for start in range(0, size, BLOCK):
        exists = start + i < size
        at = unit + (start + i)[:, None].to(tl.int64) * dim + d[None, :]
        tile = tl.load(at, mask=exists[:, None] & (d < dim)[None, :], other=0.0)
        itself = tl.where(tl.max(tl.abs(tile), axis=1) > 0, 1.0, 0.0)
        average = tl.div_rn(tl.sum(tile * (total[None, :] - tile), axis=1) + itself, count)
        average = tl.where(exists, average, float("inf"))
        low = tl.min(average, axis=0)
        pick = tl.where(low < lowest, start + tl.argmin(average, axis=0), pick)  # <: ties go to the lowest index
        lowest = tl.minimum(low, lowest)
        tl.store(nearest + start + i, tl.full((BLOCK,), -float("inf"), dtype=tl.float32), mask=exists)

    for step in range(num_samples):
        tl.store(picks + head * num_samples + step, pick.to(tl.int64))
        picked = tl.load(unit + pick.to(tl.int64) * dim + d, mask=d < dim, other=0.0)  # (DIM,)
        lowest = tl.full((), float("inf"), dtype=tl.float32)
        following = tl.full((), 0, dtype=tl.int32)
        tl.debug_barrier()  # other threads of the program wrote what this one reads
        for start in range(0, size, BLOCK):
            exists = start + i < size
            at = unit + (start + i)[:, None].to(tl.int64) * dim + d[None, :]
            tile = tl.load(at, mask=exists[:, None] & (d < dim)[None, :], other=0.0)
            near = tl.load(nearest + start + i, mask=exists, other=float("inf"))  # (BLOCK,)
            near = tl.maximum(near, tl.sum(tile * picked[None, :], axis=1))
            near = tl.where(start + i == pick, float("inf"), near)
            tl.store(nearest + start + i, near, mask=exists)
            low = tl.min(near, axis=0)
            following = tl.where(low < lowest, start + tl.argmin(near, axis=0), following)
            lowest = tl.minimum(low, lowest)
        pick = following
