"""Pooling of scores along the text, so that neighbours stay together (SnapKV, RPC, R-KV). Reference version."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

POSITION_POOLS = ("none", "avg", "max")


def pool_positions(scores: Tensor, positions: Tensor, kernel: int, how: str) -> Tensor:
    """Replace each score by the average or maximum of the ``kernel`` entries around it, in order of time.

    Neighbours are entries that follow each other among those held, whatever was evicted between them, and
    wherever their slots are. At either end only entries that exist are pooled: an average is over
    fewer of them. (Published codes divide by the whole kernel there, after leaving out the protected
    entries; here those are neighbours like others.)

    Args:
        scores: Scores (R, H_kv, N) float.
        positions: Positions (R, H_kv, N) integer, distinct within a head.
        kernel: Number of entries, odd.
        how: Pooling: "none", "avg" or "max".

    Returns:
        (R, H_kv, N), in the order of ``scores``.

    Raises:
        ValueError: an even kernel, or another ``how``.
    """
    if how not in POSITION_POOLS:
        raise ValueError(f"how must be one of {', '.join(POSITION_POOLS)}; got {how!r}")
    if kernel < 1 or kernel % 2 == 0:
        raise ValueError(f"kernel must be odd and >= 1, got {kernel}")
    if how == "none":
        return scores
    oldest_first = positions.argsort(dim=-1)
    in_time = scores.gather(-1, oldest_first)  # (R, H_kv, N), oldest first
    if how == "avg":
        pooled = functional.avg_pool1d(in_time, kernel, stride=1, padding=kernel // 2, count_include_pad=False)
    else:
        pooled = functional.max_pool1d(in_time, kernel, stride=1, padding=kernel // 2)
    return torch.empty_like(pooled).scatter_(-1, oldest_first, pooled)
