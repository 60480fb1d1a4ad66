"""Farthest point sampling over queries (BeaconKV, section 4.2 and Algorithm 1). Reference version."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import require_finite


def unit_vectors(x: Tensor) -> Tensor:
    """x (..., D) of any float dtype -> vectors of length 1, float32. A zero vector stays zero."""
    x = x.float()
    # Scaling by the largest component first keeps tiny vectors from underflowing in the norm.
    x = x / x.abs().amax(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return x / x.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)


def cosine_matrix(x: Tensor) -> Tensor:
    """Cosine similarity of every pair: x (..., N, D) -> (..., N, N) float32.

    A zero vector has cosine 0 with everything.
    """
    unit = unit_vectors(x)
    cos = unit @ unit.transpose(-1, -2)
    # A query's cosine to itself is exactly 1 (0 for the zero vector): rounding there would break ties.
    cos.diagonal(dim1=-2, dim2=-1).copy_(unit.any(dim=-1))
    return cos


def farthest_point_sampling(queries: Tensor, num_samples: int) -> Tensor:
    """Indices of ``num_samples`` queries that cover the directions of all of them.

    The first pick p has the lowest mean cosine to the whole set, a_i = mean_j cos(q_i, q_j). Each
    later pick is the unpicked query whose nearest pick is farthest: argmin_j S_j with
    S_j = max over picks p of cos(q_j, q_p). Ties go to the lowest index.

    Args:
        queries: Queries (..., N, D), before RoPE, any float dtype; computed in float32.
        num_samples: Number of queries to pick, >= 0.

    Returns:
        (..., min(num_samples, N)) int64, distinct, in the order of picking.

    Raises:
        ValueError: a negative count, fewer than two dimensions, NaN or infinity in ``queries``.
    """
    if num_samples < 0:
        raise ValueError(f"num_samples must be >= 0, got {num_samples}")
    if queries.ndim < 2:
        raise ValueError(f"queries must be (..., N, D), got shape {tuple(queries.shape)}")
    require_finite(queries, "queries")
    num_samples = min(num_samples, queries.shape[-2])
    picks = torch.empty(*queries.shape[:-2], num_samples, dtype=torch.int64, device=queries.device)
    if num_samples == 0:
        return picks

    cos = cosine_matrix(queries)  # (..., N, N)
    pick = cos.mean(dim=-1).argmin(dim=-1, keepdim=True)  # (..., 1)
    nearest = torch.full_like(cos[..., 0], -torch.inf)  # S: cosine to the nearest pick; +inf once picked
    for i in range(num_samples):
        picks[..., i : i + 1] = pick
        to_pick = cos.gather(-2, pick.unsqueeze(-1).expand(*pick.shape, cos.shape[-1])).squeeze(-2)
        nearest = torch.maximum(nearest, to_pick).scatter_(-1, pick, torch.inf)
        pick = nearest.argmin(dim=-1, keepdim=True)
    return picks
