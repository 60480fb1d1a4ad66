"""Which queries look far back: thought revisiting tokens (BeaconKV, section 3 and appendix B)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import attention_blocks
from .trace import Trace


@dataclass(frozen=True)
class Revisiting:
    """How far the queries of a trace look back.

    Attributes:
        layers: Indices in the model; the first dimension of all tensors.
        top_keys, distance: Numbers as given to :func:`find_revisits`.
        mean_distance: Mean distance in tokens (L, H, T) float32.
        targets: Entries that each query attends to most, strongest first (L, H, T, K) int32; -1 where there are fewer.
        weights: Share of the query's attention on them (L, H, T, K) float32.
    """

    layers: list[int]
    top_keys: int
    distance: float
    mean_distance: Tensor
    targets: Tensor
    weights: Tensor

    @property
    def is_global(self) -> Tensor:
        """(L, H, T) bool: the query's mean distance exceeds ``distance``."""
        return self.mean_distance > self.distance

    def frequency(self, start: int = 0, stop: int | None = None) -> Tensor:
        """(L, H) float32: share of global queries among those at ``[start, stop)`` (Figure 3)."""
        return self.is_global[:, :, start:stop].float().mean(-1)


def find_revisits(
    trace: Trace,
    *,
    layers: list[int] | None = None,
    top_keys: int = 150,
    distance: float = 200,
    targets: int = 8,
    advance: Callable[[int], None] = lambda layers: None,
) -> Revisiting:
    """The mean distance of each query to the keys it attends to most; beyond ``distance`` it is global.

    For a query with fewer keys all are taken. Of equal probabilities any may be taken.

    Args:
        layers: None: all recorded ones.
        top_keys, distance: the paper's 150 keys and 200 tokens.
        targets: how many of the keys are returned.
        advance: called after each layer.

    Raises:
        ValueError: a layer that was not recorded, a count below 1.
    """
    for name, value in (("top_keys", top_keys), ("targets", targets)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not 1 <= distance < float("inf"):
        raise ValueError(f"distance must be at least 1, got {distance}")
    layers = trace.info.layers if layers is None else layers
    shape = (len(layers), trace.info.num_heads, len(trace))
    mean = torch.zeros(shape)
    places = torch.full((*shape, targets), -1, dtype=torch.int32)
    shares = torch.zeros(*shape, targets)
    for number, layer in enumerate(layers):
        for start, weights in attention_blocks(trace, layer):
            weights = weights.flatten(0, 1)  # (H, n, N)
            stop = start + weights.shape[1]
            part = slice(start, stop)
            mean[number, :, part] = mean_distance(weights, start, top_keys)
            most = min(targets, weights.shape[2])
            share, place = weights.topk(most, dim=-1)
            shares[number, :, part, :most] = share
            places[number, :, part, :most] = place.int().masked_fill(share == 0, -1)
        advance(1)
    return Revisiting(list(layers), top_keys, distance, mean, places, shares)


def mean_distance(weights: Tensor, start: int, top_keys: int) -> Tensor:
    """Mean distance of queries to the keys they attend to most.

    Args:
        weights: Attention (H, n, N) of queries at ``start``, ``start + 1``, ... over entries at 0 ... N - 1.

    Returns:
        (H, n) float32.
    """
    num_queries, num_keys = weights.shape[1:]
    at = torch.arange(start, start + num_queries)
    if num_keys <= top_keys:  # all keys that are visible to the query
        return (at / 2).expand(weights.shape[0], -1)
    # Where fewer keys than that have any weight, zeros are picked as well, also after the query: not counted.
    _, places = weights.topk(top_keys, dim=-1, sorted=False)
    distances = at.view(1, -1, 1) - places
    seen = distances >= 0
    mean = (distances * seen).sum(-1) / seen.sum(-1)
    return torch.where(at + 1 < top_keys, at / 2, mean)
