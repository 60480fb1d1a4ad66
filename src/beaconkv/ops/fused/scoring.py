"""Observation scores in blocks of KV heads, so that the weights of a block stay in the CPU's cache."""

from __future__ import annotations

import torch
from torch import Tensor

from ...types import AttentionParams
from ..scoring import pool

BLOCK = {"cpu": 1 << 18}
"""Number of weights (float32) that exist at the same time, by kind of device."""
OTHERS = 1 << 26


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
    """The same as :func:`beaconkv.ops.scoring.observation_scores`, up to rounding."""
    rows, heads, n, dim = queries.shape
    kv_heads, num_entries = keys.shape[1:3]
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads are not a multiple of {kv_heads} KV heads")
    group = heads // kv_heads
    grouped = (queries.float() * params.scaling).view(rows, kv_heads, group * n, dim)  # (R, H_kv, G * n, D)
    sinks = None if params.sinks is None else params.sinks.float().view(kv_heads, group, 1, 1)
    scales = None
    if query_scales is not None:
        scales = query_scales.float().expand(rows, heads, n).unflatten(1, (kv_heads, group)).unsqueeze(4)
    size = max(1, BLOCK.get(queries.device.type, OTHERS) // max(1, rows * group * n * num_entries))
    parts = []
    for start in range(0, kv_heads, size):
        part = slice(start, start + size)
        own_sinks = None if sinks is None else sinks[part]
        own_scales = None if scales is None else scales[:, part]
        weights = _weights(
            grouped[:, part], keys[:, part], params, query_positions, key_positions[:, part], own_sinks, own_scales
        )
        if query_pool == group_pool == "max":
            parts.append(weights.amax(dim=(2, 3)))
        else:
            parts.append(pool(pool(weights, 3, query_pool), 2, group_pool))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _weights(
    queries: Tensor,
    keys: Tensor,
    params: AttentionParams,
    at: Tensor,
    held: Tensor,
    sinks: Tensor | None,
    scales: Tensor | None,
) -> Tensor:
    """queries (R, h, G * n, D) float32, scaled; keys (R, h, N, D); sinks (h, G, 1, 1); scales (R, h, G, n, 1).

    Returns:
        (R, h, G, n, N) float32.
    """
    logits = (queries @ keys.float().transpose(-1, -2)).unflatten(2, (-1, at.shape[1]))  # (R, h, G, n, N)
    if params.softcap is not None:
        logits = logits.div_(params.softcap).tanh_().mul_(params.softcap)
    if scales is not None:
        logits.mul_(scales)
    hidden = held[:, :, None, None, :] > at[:, None, None, :, None]
    logits.masked_fill_(hidden, torch.finfo(logits.dtype).min)
    if sinks is None:
        weights = logits.softmax(dim=-1)
    else:
        column = (sinks if scales is None else sinks * scales).expand(*logits.shape[:4], 1)
        weights = torch.cat([logits, column], dim=-1).softmax(dim=-1)[..., :-1]
    # The softmax of a query without visible entries is uniform; its weights are zero by definition.
    sees = (held.amin(dim=-1, keepdim=True) <= at.unsqueeze(1))[:, :, None, :, None]  # (R, h, 1, n, 1)
    return weights.mul_(sees)
