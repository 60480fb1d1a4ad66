"""Attention of observation queries to each entry (BeaconKV, section 4.3). Reference version."""

from __future__ import annotations

import torch
from torch import Tensor

from ..types import AttentionParams

POOLS = ("max", "mean")


def pool(x: Tensor, dim: int, how: str) -> Tensor:
    """``max`` or ``mean`` over one dimension. Raises ``ValueError`` for another name."""
    if how not in POOLS:
        raise ValueError(f"pool must be one of {', '.join(POOLS)}; got {how!r}")
    return x.amax(dim) if how == "max" else x.mean(dim)


def attention_weights(
    queries: Tensor,
    keys: Tensor,
    params: AttentionParams,
    query_positions: Tensor,
    key_positions: Tensor,
    query_scales: Tensor | None = None,
) -> Tensor:
    """W[h, q, j]: softmax over all entries j of q·k_j, causal, float32.

    Args:
        queries: (R, H, n, D) after RoPE; H is a multiple of H_kv and heads of a group are adjacent.
        keys: (R, H_kv, N, D) after RoPE.
        params: scaling, softcap and sinks of the layer.
        query_positions: (R, n), logical positions; a query sees entries at or before its own.
        key_positions: (R, H_kv, N), logical positions.
        query_scales: broadcasts to (R, H, n): the logits of a query, those of sinks included, are multiplied by its
            scale, an inverse temperature of the softmax; None: 1.

    Returns:
        (R, H_kv, G, n, N) float32 with G = H / H_kv. A query without any visible entry has weight 0 everywhere.

    Raises:
        ValueError: H is not a multiple of H_kv.
    """
    visible = _visible(query_positions, key_positions)
    logits, sinks = _logits(queries, keys, params), _sinks(params, keys.shape[1])
    if query_scales is not None:
        scales = query_scales.float().expand(queries.shape[:3]).unflatten(1, (keys.shape[1], -1)).unsqueeze(4)
        logits = logits * scales  # (R, H_kv, G, n, N)
        sinks = None if sinks is None else sinks * scales
    return _softmax(logits.masked_fill(~visible, -torch.inf), visible, sinks)


def group_attention_weights(
    queries: Tensor,
    keys: Tensor,
    params: AttentionParams,
    query_positions: Tensor,
    key_positions: Tensor,
) -> Tensor:
    """W[h, q, j] of a whole GQA group: softmax over j of the largest logit among its heads (R-KV).

    Arguments and errors are those of :func:`attention_weights`. Of learned sinks the maximum is taken, too.

    Returns:
        (R, H_kv, n, N) float32.
    """
    visible = _visible(query_positions, key_positions)
    logits = _logits(queries, keys, params).amax(dim=2, keepdim=True).masked_fill(~visible, -torch.inf)
    sinks = _sinks(params, keys.shape[1])
    return _softmax(logits, visible, None if sinks is None else sinks.amax(dim=2, keepdim=True)).squeeze(2)


def _logits(queries: Tensor, keys: Tensor, params: AttentionParams) -> Tensor:
    """(R, H_kv, G, n, N) float32."""
    rows, heads, n, dim = queries.shape
    kv_heads = keys.shape[1]
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads are not a multiple of {kv_heads} KV heads")
    grouped = queries.float().view(rows, kv_heads, heads // kv_heads, n, dim)  # (R, H_kv, G, n, D)
    logits = params.scaling * torch.einsum("rhgnd,rhkd->rhgnk", grouped, keys.float())
    return logits if params.softcap is None else params.softcap * torch.tanh(logits / params.softcap)


def _visible(query_positions: Tensor, key_positions: Tensor) -> Tensor:
    """(R, H_kv, 1, n, N) bool: entries at or before the query."""
    return key_positions[:, :, None, None, :] <= query_positions[:, None, None, :, None]


def _sinks(params: AttentionParams, kv_heads: int) -> Tensor | None:
    """(1, H_kv, G, 1, 1)."""
    return None if params.sinks is None else params.sinks.float().view(1, kv_heads, -1, 1, 1)


def _softmax(logits: Tensor, visible: Tensor, sinks: Tensor | None) -> Tensor:
    if sinks is None:
        total = logits.logsumexp(dim=-1, keepdim=True)
    else:
        sinks = sinks.expand(*logits.shape[:4], 1)
        total = torch.cat([logits, sinks], dim=-1).logsumexp(dim=-1, keepdim=True)
    return torch.where(visible, (logits - total).exp(), 0.0)


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
    """Score[j]: attention weight pooled over observation queries, then over the heads of the GQA group.

    The paper takes the maximum over both; the two pools are independent here (its Table 2 changes
    them together). Arguments are those of :func:`attention_weights`, and
    ``query_pool``, ``group_pool``: "max" or "mean".

    Returns:
        (R, H_kv, N) float32.

    Raises:
        ValueError: an unknown pool, or heads that do not form groups.
    """
    weights = attention_weights(queries, keys, params, query_positions, key_positions, query_scales)
    return pool(pool(weights, 3, query_pool), 2, group_pool)  # (R, H_kv, G, n, N) -> (R, H_kv, N)
