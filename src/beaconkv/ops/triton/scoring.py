"""Triton twin of the pooled attention of observation queries. The (n, N) weights are never in memory.

First pass: each program takes a span of entries and one query head, and writes the log-sum-exp of each query's
visible logits in the span. Second pass: each program takes a block of entries and one KV head, combines the spans of
each query, computes the logits again, and pools exp(logit - total) over queries and heads.

Accuracy: logits are those of float32 queries and keys as stored. Float32 and float16 keys are multiplied in IEEE
float32. Keys in bfloat16 go through tensor cores without rounding the queries: a float32 is the sum of three
bfloat16 (3 x 8 bits of mantissa), each product of two bfloat16 is exact in float32, and sums are float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...types import AttentionParams
from .. import scoring as reference
from ..backend import interpreted
from .launch import on_device_of

ENTRIES = 64
"""Number of entries multiplied at a time."""
SPAN = 256
"""Number of entries of a program in the first pass."""
MAX_QUERIES = 32
"""Maximum number of queries multiplied at a time."""


def observation_scores(
    queries: Tensor,
    keys: Tensor,
    params: AttentionParams,
    query_positions: Tensor,
    key_positions: Tensor,
    query_pool: str = "max",
    group_pool: str = "max",
    query_scales: Tensor | None = None,
) -> Tensor:
    """The same as :func:`beaconkv.ops.observation_scores`. All tensors may be strided."""
    if not _ordinary(queries, keys, params, query_positions, key_positions, query_pool, group_pool):
        return reference.observation_scores(
            queries, keys, params, query_positions, key_positions, query_pool, group_pool, query_scales
        )
    rows, heads, n, dim = queries.shape
    kv_heads, size = keys.shape[1:3]
    spans = triton.cdiv(size, SPAN)
    parts = torch.empty(rows, heads, n, spans, dtype=torch.float32, device=keys.device)
    scores = torch.empty(rows, kv_heads, size, dtype=torch.float32, device=keys.device)
    bfloat16 = keys.dtype == torch.bfloat16
    scales = None if query_scales is None else query_scales.expand(rows, heads, n)
    shared = (
        queries,
        keys,
        query_positions,
        key_positions,
        *queries.stride(),
        *keys.stride(),
        *query_positions.stride(),
        *key_positions.stride(),
        heads,
        heads // kv_heads,
        n,
        size,
        dim,
        float(params.scaling),
        float(params.softcap or 0.0),
        scales,
        *((0, 0, 0) if scales is None else scales.stride()),
    )
    settings = dict(
        SOFTCAP=params.softcap is not None,
        SCALES=scales is not None,
        PARTS=0 if not bfloat16 else 1 if queries.dtype == torch.bfloat16 else 3,
        QUERIES=min(MAX_QUERIES, max(16, triton.next_power_of_2(n))),
        ENTRIES=ENTRIES,
        CHUNK=32 if bfloat16 else 16,  # without tensor cores the operands take many registers, so that few are best
        TENSOR_CORES=keys.is_cuda and not interpreted(),
        enable_fp_fusion=False,
    )
    with on_device_of(keys):
        _span_totals[(rows * heads, spans, triton.cdiv(n, settings["QUERIES"]))](
            parts, *shared, spans, SPAN=SPAN, **settings
        )
        _pooled_weights[(rows * kv_heads, triton.cdiv(size, ENTRIES))](
            parts,
            scores,
            params.sinks,
            *shared,
            spans,
            SPANS=triton.next_power_of_2(spans),
            SINKS=params.sinks is not None,
            QUERY_MAX=query_pool == "max",
            GROUP_MAX=group_pool == "max",
            **settings,
        )
    return scores


def _ordinary(queries, keys, params, query_positions, key_positions, query_pool, group_pool) -> bool:
    """Whether the kernels may run: broadcast, empty and invalid arguments are left to the reference."""
    if queries.ndim != 4 or keys.ndim != 4:
        return False
    rows, heads, n, dim = queries.shape
    return (
        keys.shape[0] == rows
        and keys.shape[3] == dim
        and query_positions.shape == (rows, n)
        and key_positions.shape == keys.shape[:3]
        and queries.numel() > 0
        and keys.numel() > 0
        and heads % keys.shape[1] == 0
        and (params.sinks is None or params.sinks.shape == (heads,) and params.sinks.is_contiguous())
        and params.softcap != 0
        and query_pool in reference.POOLS
        and group_pool in reference.POOLS
    )


@triton.jit
def _add_product(a, b, total, TENSOR_CORES: tl.constexpr):
    """total + a @ b of bfloat16, summed in float32."""
    if not TENSOR_CORES:  # the interpreter would multiply the bits of bfloat16 as integers
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def _pooled(largest, total, count, MAX: tl.constexpr):
    pooled = total / count
    if MAX:
        # On a device a maximum may lose NaN. The sum does not, and NaN must reach the check of the scores.
        pooled = tl.where(total == total, largest, total)
    return pooled


@triton.jit
def _logits(
    query_rows, key_rows, query_exists, entry_exists, stride_query_dim, stride_key_dim, dim, scaling, softcap,
    SOFTCAP: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr, TENSOR_CORES: tl.constexpr,
):  # fmt: skip
    """query_rows (queries, 1), key_rows (1, entries) pointers -> (queries, entries) float32."""
    logits = tl.zeros((query_rows.shape[0], key_rows.shape[1]), dtype=tl.float32)
    for start in range(0, dim, CHUNK):
        d = start + tl.arange(0, CHUNK)
        q = tl.load(
            query_rows + d[None, :] * stride_query_dim, mask=query_exists[:, None] & (d < dim)[None, :], other=0.0
        )
        k = tl.load(key_rows + d[:, None] * stride_key_dim, mask=entry_exists[None, :] & (d < dim)[:, None], other=0.0)
        if PARTS == 0:
            logits = tl.dot(q.to(tl.float32), k.to(tl.float32), logits, input_precision="ieee")
        elif PARTS == 1:
            logits = _add_product(q, k, logits, TENSOR_CORES)
        else:
            q = q.to(tl.float32)
            high = q.to(tl.bfloat16)
            rest = q - high.to(tl.float32)
            middle = rest.to(tl.bfloat16)
            low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
            logits = _add_product(low, k, logits, TENSOR_CORES)
            logits = _add_product(middle, k, logits, TENSOR_CORES)
            logits = _add_product(high, k, logits, TENSOR_CORES)
    logits = logits * scaling
    if SOFTCAP:
        shrunk = tl.exp(-2.0 * tl.abs(logits / softcap))  # tanh(x) = (1 - exp(-2x)) / (1 + exp(-2x)), for x >= 0
        capped = softcap * (1.0 - shrunk) / (1.0 + shrunk)
        logits = tl.where(logits < 0, -capped, capped)
    return logits


@triton.jit
def _span_totals(
    parts, queries, keys, query_positions, key_positions,
    stride_qr, stride_qh, stride_qn, stride_qd, stride_kr, stride_kh, stride_kn, stride_kd,
    stride_qpr, stride_qpn, stride_kpr, stride_kph, stride_kpn,
    heads, group, n, size, dim, scaling, softcap, scales, stride_sr, stride_sh, stride_sn, spans,
    SPAN: tl.constexpr, SOFTCAP: tl.constexpr, SCALES: tl.constexpr, PARTS: tl.constexpr,
    QUERIES: tl.constexpr, ENTRIES: tl.constexpr, CHUNK: tl.constexpr, TENSOR_CORES: tl.constexpr,
):  # fmt: skip
    """parts (R, H, n, spans): log-sum-exp of a query's visible logits in a span, -inf where there are none."""
    program = tl.program_id(0).to(tl.int64)
    row, head = program // heads, program % heads
    span = tl.program_id(1)
    i = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES)
    query_exists = i < n
    i64 = i.to(tl.int64)
    query_rows = queries + row * stride_qr + head * stride_qh + i64[:, None] * stride_qn  # (QUERIES, 1)
    at = tl.load(query_positions + row * stride_qpr + i64 * stride_qpn, mask=query_exists, other=0)
    if SCALES:
        scale = tl.load(scales + row * stride_sr + head * stride_sh + i64 * stride_sn, mask=query_exists, other=0.0)
        scale = scale.to(tl.float32)
    keys += row * stride_kr + (head // group) * stride_kh
    key_positions += row * stride_kpr + (head // group) * stride_kph

    largest = tl.full((QUERIES,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((QUERIES,), dtype=tl.float32)  # of exp(logit - largest)
    for start in range(0, SPAN, ENTRIES):
        j = span * SPAN + start + tl.arange(0, ENTRIES)
        entry_exists = j < size
        j64 = j.to(tl.int64)
        held = tl.load(key_positions + j64 * stride_kpn, mask=entry_exists, other=0)
        visible = (held[None, :] <= at[:, None]) & entry_exists[None, :] & query_exists[:, None]
        logits = _logits(
            query_rows, keys + j64[None, :] * stride_kn, query_exists, entry_exists, stride_qd, stride_kd,
            dim, scaling, softcap, SOFTCAP, PARTS, CHUNK, TENSOR_CORES,
        )  # fmt: skip
        if SCALES:
            logits *= scale[:, None]
        # (QUERIES, ENTRIES); the product with an entry that is not visible may be NaN
        logits = tl.where(visible, logits, -float("inf"))
        above = tl.maximum(largest, tl.max(logits, axis=1))
        base = tl.where(above == -float("inf"), 0.0, above)  # no visible logit so far: avoids -inf - (-inf)
        total = total * tl.exp(largest - base) + tl.sum(tl.exp(logits - base[:, None]), axis=1)
        largest = above
    largest = tl.where(largest == -float("inf"), 0.0, largest)
    tl.store(parts + (program * n + i64) * spans + span, largest + tl.log(total), mask=query_exists)


@triton.jit
def _pooled_weights(
    parts, scores, sinks, queries, keys, query_positions, key_positions,
    stride_qr, stride_qh, stride_qn, stride_qd, stride_kr, stride_kh, stride_kn, stride_kd,
    stride_qpr, stride_qpn, stride_kpr, stride_kph, stride_kpn,
    heads, group, n, size, dim, scaling, softcap, scales, stride_sr, stride_sh, stride_sn, spans,
    SPANS: tl.constexpr, SINKS: tl.constexpr, QUERY_MAX: tl.constexpr, GROUP_MAX: tl.constexpr,
    SOFTCAP: tl.constexpr, SCALES: tl.constexpr, PARTS: tl.constexpr,
    QUERIES: tl.constexpr, ENTRIES: tl.constexpr, CHUNK: tl.constexpr, TENSOR_CORES: tl.constexpr,
):  # fmt: skip
    """scores (R, H_kv, N)."""
    program = tl.program_id(0).to(tl.int64)
    kv_heads = heads // group
    row, kv_head = program // kv_heads, program % kv_heads
    j = tl.program_id(1) * ENTRIES + tl.arange(0, ENTRIES)
    entry_exists = j < size
    j64 = j.to(tl.int64)
    key_rows = keys + row * stride_kr + kv_head * stride_kh + j64[None, :] * stride_kn  # (1, ENTRIES)
    held = tl.load(
        key_positions + row * stride_kpr + kv_head * stride_kph + j64 * stride_kpn, mask=entry_exists, other=0
    )
    s = tl.arange(0, SPANS)

    over_group = tl.zeros((ENTRIES,), dtype=tl.float32)
    group_sum = tl.zeros((ENTRIES,), dtype=tl.float32)
    for member in range(group):
        head = kv_head * group + member
        over_queries = tl.zeros((ENTRIES,), dtype=tl.float32)
        query_sum = tl.zeros((ENTRIES,), dtype=tl.float32)
        for start in range(0, n, QUERIES):
            i = start + tl.arange(0, QUERIES)
            query_exists = i < n
            i64 = i.to(tl.int64)
            at = tl.load(query_positions + row * stride_qpr + i64 * stride_qpn, mask=query_exists, other=0)

            span_total = tl.load(
                parts + ((row * heads + head) * n + i64[:, None]) * spans + s[None, :],
                mask=query_exists[:, None] & (s < spans)[None, :],
                other=-float("inf"),
            )
            largest = tl.max(span_total, axis=1)  # (QUERIES, SPANS) -> (QUERIES,)
            if SCALES:
                scale = tl.load(
                    scales + row * stride_sr + head * stride_sh + i64 * stride_sn, mask=query_exists, other=0.0
                ).to(tl.float32)
            if SINKS:
                sink = tl.load(sinks + head).to(tl.float32)
                if SCALES:
                    sink = sink * scale
                largest = tl.maximum(largest, sink)
            total = tl.sum(tl.exp(span_total - largest[:, None]), axis=1)
            if SINKS:
                total += tl.exp(sink - largest)
            total = largest + tl.log(total)  # NaN for a query without visible entries, which then adds no weight

            logits = _logits(
                queries + row * stride_qr + head * stride_qh + i64[:, None] * stride_qn, key_rows,
                query_exists, entry_exists, stride_qd, stride_kd, dim, scaling, softcap,
                SOFTCAP, PARTS, CHUNK, TENSOR_CORES,
            )  # fmt: skip
            if SCALES:
                logits *= scale[:, None]
            visible = (held[None, :] <= at[:, None]) & entry_exists[None, :] & query_exists[:, None]
            weights = tl.where(visible, tl.exp(logits - total[:, None]), 0.0)
            over_queries = tl.maximum(over_queries, tl.max(weights, axis=0))  # (QUERIES, ENTRIES) -> (ENTRIES,)
            query_sum += tl.sum(weights, axis=0)
        pooled = _pooled(over_queries, query_sum, n, QUERY_MAX)
        over_group = tl.maximum(over_group, pooled)
        group_sum += pooled
    pooled = _pooled(over_group, group_sum, group, GROUP_MAX)
    tl.store(scores + program * size + j64, pooled, mask=entry_exists)
