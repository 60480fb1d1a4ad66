"""How similar queries are: cosines, principal components, and clusters tested against chance.

BeaconKV, section 3 and Figure 4: queries that look far back are reported to have, before RoPE, few and narrow
directions. :func:`cluster_check` tests that on a whole model instead of showing one head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import ops


def principal_components(x: Tensor, components: int = 2) -> tuple[Tensor, Tensor]:
    """x (N, D) -> coordinates (N, components) float32, and the share of variance of each (components,).

    The sign of a component is chosen so that its largest loading is positive: a picture then always looks the same.

    Raises:
        ValueError: fewer than two points, or fewer dimensions than components.
    """
    if x.shape[0] < 2 or components > min(x.shape):
        raise ValueError(f"{components} components need at least as many points and dimensions, got {tuple(x.shape)}")
    centred = x.float() - x.float().mean(dim=0)
    _, scale, directions = torch.linalg.svd(centred, full_matrices=False)
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    directions = directions * largest.sign()
    variance = scale.square()
    return centred @ directions[:components].T, variance[:components] / variance.sum().clamp_min(1e-30)


def unusual(queries: Tensor, count: int) -> Tensor:
    """Indices (count,) of the queries (N, D) whose mean cosine to all is lowest, ascending (Figure 4, right)."""
    mean = ops.cosine_matrix(queries).mean(-1)
    return mean.topk(min(count, len(mean)), largest=False).indices.sort().values


ROUNDING = 1e-6
"""Distances below this count as 0: equal tokens have equal queries, up to rounding."""


def silhouette(cosine: Tensor, member: Tensor) -> Tensor:
    """Mean silhouette with the distance 1 - cosine (Rousseeuw 1987).

    The only point of a cluster has silhouette 0, as is usual; so has a point whose distances are all rounding.

    Args:
        cosine: Cosines (B, N, N).
        member: Cluster of each point (B, N, k) one-hot float.

    Returns:
        (B,) float32 in [-1, 1].
    """
    size = member.sum(dim=1, keepdim=True)  # (B, 1, k)
    distance = (1 - cosine).clamp_min(0)
    distance = torch.where(distance < ROUNDING, 0.0, distance)
    sums = distance @ member  # (B, N, k): summed distance to each cluster
    own_size = (member * size).sum(-1)
    own = (sums * member).sum(-1) / (own_size - 1).clamp_min(1)
    mean = (sums / size.clamp_min(1)).masked_fill((member > 0) | (size == 0), torch.inf)
    other = mean.amin(dim=-1)
    value = (other - own) / torch.maximum(other, own).clamp_min(1e-12)
    return value.masked_fill((own_size <= 1) | other.isinf(), 0.0).mean(-1)


@dataclass(frozen=True)
class Clustering:
    """How well one head's queries fall into groups, compared with chance.

    Attributes:
        count: Number of queries in the test.
        clusters: Number of groups with the best silhouette.
        silhouette: Silhouette with that number.
        shuffled: Mean of the best silhouettes of shuffled queries: each dimension is permuted by itself, so that every
            dimension keeps its values and only the dependence between dimensions is removed.
        highest_shuffled: Highest of the best silhouettes of shuffled queries.
        local: Best silhouette of local queries of the same head; NaN where these are too few.
        beside_local: Best silhouette of as many global queries as local ones; NaN where ``local`` is NaN.
        p_value: Share of shuffles at least as good, the real order counted among them.
    """

    count: int
    clusters: int
    silhouette: float
    shuffled: float
    highest_shuffled: float
    local: float
    beside_local: float
    p_value: float


def best_silhouettes(x: Tensor, clusters: tuple[int, ...], iterations: int = 10) -> tuple[Tensor, Tensor]:
    """The best mean silhouette of spherical k-means over several k.

    Args:
        x: Points (B, N, D).

    Returns:
        (B,) float32 silhouettes and (B,) int64 numbers of clusters; the smaller number where they are equal.
    """
    cosine = ops.cosine_matrix(x)
    unit, count = ops.unit_vectors(x), torch.full((x.shape[0],), x.shape[1])
    values = []
    for k in clusters:
        _, centres = ops.spherical_kmeans(x.unsqueeze(1), count, k, iterations)
        nearest = (unit @ centres[:, 0].transpose(-1, -2)).argmax(-1)
        values.append(silhouette(cosine, torch.nn.functional.one_hot(nearest, k).float()))
    best = torch.stack(values).max(dim=0)
    return best.values, torch.tensor(clusters)[best.indices]


def cluster_check(
    queries: Tensor,
    is_global: Tensor,
    *,
    clusters: tuple[int, ...] = (2, 3, 4, 6, 8),
    shuffles: int = 19,
    most: int = 256,
    seed: int = 0,
) -> Clustering | None:
    """Test whether the global queries of one head fall into groups better than by chance.

    Args:
        queries: (T, D) before RoPE.
        is_global: (T,) bool.
        clusters: numbers of groups that are tried.
        shuffles: shuffles of the queries; 19 allow for a p-value of 0.05 at best.
        most: queries looked at; more are thinned at random.
        seed: random seed of all random choices.

    Returns:
        None where there are fewer than four global queries for each group of the largest number.
    """
    draw = torch.Generator().manual_seed(seed)
    far, near = (which.nonzero().flatten() for which in (is_global, ~is_global))
    far, near = (which[torch.randperm(len(which), generator=draw)[:most]] for which in (far, near))
    least = 4 * max(clusters)
    if len(far) < least:
        return None
    real = queries[far].float()
    order = torch.rand(shuffles, *real.shape, generator=draw).argsort(dim=1)
    shuffled = real.expand(shuffles, -1, -1).gather(1, order)
    values, numbers = best_silhouettes(torch.cat([real.unsqueeze(0), shuffled]), clusters)
    local = other = float("nan")
    if (both := min(len(far), len(near))) >= least:
        pair = torch.stack([queries[near[:both]], queries[far[:both]]]).float()
        local, other = best_silhouettes(pair, clusters)[0].tolist()
    chance = values[1:]
    return Clustering(
        count=len(far),
        clusters=int(numbers[0]),
        silhouette=values[0].item(),
        shuffled=chance.mean().item(),
        highest_shuffled=chance.max().item(),
        local=local,
        beside_local=other,
        p_value=(1 + int((chance >= values[0]).sum())) / (1 + shuffles),
    )
