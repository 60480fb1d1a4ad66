"""Farthest point sampling with three operations per pick."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import sampling as reference

BLOCK = 1 << 18
"""Number of query components (float32) normalised at a time, so that they stay in the CPU's cache."""
TINY = torch.finfo(torch.float32).tiny


def farthest_point_sampling(queries: Tensor, num_samples: int) -> Tensor:
    """The same as :func:`beaconkv.ops.sampling.farthest_point_sampling`, pick for pick."""
    if num_samples < 1 or queries.ndim < 2 or queries.numel() == 0:
        return reference.farthest_point_sampling(queries, num_samples)
    size = queries.shape[-2]
    num_samples = min(num_samples, size)
    cos = _cosine_matrices(queries.reshape(-1, *queries.shape[-2:]))
    pick = cos.mean(dim=-1).argmin(dim=-1)  # (P, N, N) -> (P,)
    # A picked query has infinite cosine to itself, so it is never the farthest.
    cos.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    to_picks = cos.view(-1, size)  # (P * N, N): row of query j in set i: i * size + j
    first_row = torch.arange(cos.shape[0], device=cos.device) * size
    picks = torch.empty(num_samples, cos.shape[0], dtype=torch.int64, device=cos.device)
    nearest = torch.full_like(to_picks[: cos.shape[0]], -torch.inf)
    for i in range(num_samples):
        picks[i] = pick
        if i + 1 < num_samples:
            torch.maximum(nearest, to_picks.index_select(0, first_row + pick), out=nearest)
            pick = nearest.argmin(dim=-1)
    return picks.T.reshape(*queries.shape[:-2], num_samples)


def _cosine_matrices(queries: Tensor) -> Tensor:
    """queries (P, N, D) -> (P, N, N) float32, by the steps of ``cosine_matrix``.

    The largest component of each query is computed once: it scales the query, it finds the zero vector, and it is NaN
    or infinite if any component is.
    """
    sets, size, dim = queries.shape
    cos = torch.empty(sets, size, size, device=queries.device)
    largest = torch.empty(sets, size, 1, device=queries.device)
    step = sets if queries.device.type != "cpu" else max(1, BLOCK // (size * dim))
    for start in range(0, sets, step):
        part = slice(start, start + step)
        own = queries[part].float()
        # The extremes are vectorised; the maximum norm is not, and takes ten times as long.
        torch.maximum(own.amax(-1, keepdim=True), -own.amin(-1, keepdim=True), out=largest[part])
        unit = own / largest[part].clamp_min(TINY)
        unit /= unit.norm(dim=-1, keepdim=True).clamp_min(TINY)
        torch.matmul(unit, unit.transpose(-1, -2), out=cos[part])
    reference.require_finite(largest, "queries")
    cos.diagonal(dim1=-2, dim2=-1).copy_(largest.squeeze(-1) > 0)
    return cos
