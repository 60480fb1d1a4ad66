"""Representatives of a whole history of queries: farthest points, k-means. Reference versions.

Rows of a batch may have histories of different length: slots at and after ``count`` are ignored. Nothing of
size N x N is built, so the history may be long. Cosine is used throughout, as in farthest point sampling.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .sampling import unit_vectors

TIE = 1e-5
"""Cosines closer than this count as equal."""


def _exists(x: Tensor, count: Tensor) -> Tensor:
    """(R, 1, N) bool: the slots before each row's count."""
    return torch.arange(x.shape[2], device=x.device) < count.view(-1, 1, 1)


def take_queries(x: Tensor, picks: Tensor) -> Tensor:
    """x (R, H, N, D), picks (R, H, m) int64 -> (R, H, m, D)."""
    size, dim = x.shape[2:]
    first = torch.arange(x.shape[0] * x.shape[1], device=x.device).mul_(size).view(*x.shape[:2], 1)
    # Whole vectors are copied: gather() would look up every component.
    return x.reshape(-1, dim).index_select(0, (first + picks).flatten()).view(*picks.shape, dim)


def farthest_points(queries: Tensor, count: Tensor, num_samples: int) -> Tensor:
    """The picks of :func:`farthest_point_sampling`, up to rounding, over rows of different length.

    a_i = mean_j cos(q_i, q_j) is computed as u_i . mean_j u_j with the unit vectors u.

    Args:
        queries: Queries (R, H, N, D), any float dtype; computed in float32.
        count: Number of queries in each row (R,) int64, at least ``num_samples``.
        num_samples: Number of queries to pick.

    Returns:
        (R, H, num_samples) int64, distinct, in the order of picking.
    """
    exists = _exists(queries, count)
    unit = unit_vectors(queries).masked_fill(~exists.unsqueeze(-1), 0.0)
    mean = unit.sum(dim=2, keepdim=True) / count.view(-1, 1, 1, 1)
    average = (unit @ mean.transpose(-1, -2)).squeeze(-1)  # (R, H, N)
    pick = average.masked_fill(~exists, torch.inf).argmin(dim=-1, keepdim=True)
    nearest = torch.full_like(average, -torch.inf).masked_fill(~exists, torch.inf)  # +inf: never picked
    picks = []
    for _ in range(num_samples):
        picks.append(pick)
        to_pick = (unit @ take_queries(unit, pick).transpose(-1, -2)).squeeze(-1)
        nearest = torch.maximum(nearest, to_pick).scatter_(-1, pick, torch.inf)
        pick = nearest.argmin(dim=-1, keepdim=True)
    return torch.cat(picks, dim=-1)


def spherical_kmeans(queries: Tensor, count: Tensor, num_clusters: int, iterations: int) -> tuple[Tensor, Tensor]:
    """k-means by cosine, with a start and a number of steps that are always the same.

    The first centres are farthest points. One step gives each query to the centre of highest cosine
    (ties: the first), and rotates each centre to the sum of its queries' unit vectors; a centre without
    queries stays. After the last step queries are not given out again.

    Args:
        queries: Queries (R, H, N, D), any float dtype; computed in float32.
        count: Number of queries in each row (R,) int64, at least ``num_clusters``.
        num_clusters: Number of clusters k.
        iterations: Number of steps, >= 1.

    Returns:
        Centroids (R, H, k, D) float32, the mean of each cluster's queries as they are, lengths included (the first
        centre's query for a cluster that ended empty); and centres (R, H, k, D) float32, the unit vectors of the
        last step.
    """
    exists = _exists(queries, count)
    queries = queries.float().masked_fill(~exists.unsqueeze(-1), 0.0)
    unit = unit_vectors(queries)
    seeds = farthest_points(queries, count, num_clusters)
    centres = take_queries(unit, seeds)
    order = torch.arange(num_clusters, device=queries.device, dtype=torch.float32).view(-1, 1)
    for _ in range(iterations):
        cos = centres @ unit.transpose(-1, -2)  # (R, H, k, N)
        # argmax over a dimension that is not the last is many times slower on a CPU than this.
        best = cos == cos.amax(dim=2, keepdim=True)
        nearest = torch.where(best, order, torch.inf).amin(dim=2, keepdim=True)  # (R, H, 1, N)
        member = ((nearest == order) & exists.unsqueeze(2)).float()
        size = member.sum(dim=-1, keepdim=True)
        centres = torch.where(size > 0, unit_vectors(member @ unit), centres)
    centroids = torch.where(size > 0, (member @ queries) / size.clamp_min(1), take_queries(queries, seeds))
    return centroids, centres


def nearest_queries(queries: Tensor, count: Tensor, centres: Tensor) -> Tensor:
    """For each centre in turn, the query of highest cosine among those that no earlier centre was assigned.

    The two queries of a cluster of two are equally near to its centre: rounding must not decide. Of all
    that are within ``TIE`` of the highest cosine, the first is therefore taken.

    Args:
        queries: Queries (R, H, N, D), any float dtype; computed in float32.
        count: Number of queries in each row (R,) int64, at least k.
        centres: Unit vectors (R, H, k, D).

    Returns:
        (R, H, k) int64, distinct.
    """
    cos = centres @ unit_vectors(queries).transpose(-1, -2)  # (R, H, k, N)
    cos = cos.masked_fill(~_exists(queries, count).unsqueeze(2), -torch.inf)
    picks = []
    for cluster in range(centres.shape[2]):
        own = cos[:, :, cluster]
        near = own >= own.amax(dim=-1, keepdim=True) - TIE
        picks.append(near.to(torch.uint8).argmax(dim=-1, keepdim=True))
        cos.scatter_(-1, picks[-1].unsqueeze(2).expand(-1, -1, cos.shape[2], -1), -torch.inf)
    return torch.cat(picks, dim=-1)
