"""The common base of methods that score entries by the attention of a set of observation queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import ops
from ..types import FREE, CacheView
from .base import EvictionPolicy, require_choice, require_int, require_positive
from .query_buffer import QueryBuffer

HEAD_POOLS = ("group", "all")


@dataclass(frozen=True)
class ObservationPolicy(EvictionPolicy):
    """Attention of observation queries, pooled over queries, then over heads, then along the text.

    The queries are the last ``n_recent``, at their own positions; a subclass may join others, the beacons, which are
    kept before RoPE and rotated to the current position.

    Attributes:
        n_recent: number of last queries per query head.
        query_pool: "max" or "mean" over the observation queries.
        group_pool: "max" or "mean" over the query heads of a GQA group (R-KV also has "logits").
        head_pool: "group": each KV head scores for itself. "all": the scores of all KV heads of the layer
            are pooled at the end, as ``group_pool`` says ("logits": mean); all heads keep the same entries.
        past_only: the softmax is over the entries before the last ``n_recent`` alone, which score 0.
        value_norm: the pooled weight is multiplied by the L2 norm of the entry's value.
        position_pool: "none", "avg" or "max" over the ``position_kernel`` entries around each, in order of time.
        position_kernel: odd.
        redundancy_weight: w > 0 scores (1 - w) * importance - w * redundancy, where redundancy is
            :func:`~beaconkv.ops.key_redundancy`, and importance, all of the above, is divided by its sum
            over the head's entries: both sum to 1. (R-KV itself does not divide.)
        recent_scale: factor of the logits of recent queries before the softmax, an inverse temperature. 1 is the
            model's own attention; below 1 the weights of a query are spread over more entries.
    """

    per_head: ClassVar[bool] = True
    group_pools: ClassVar[tuple[str, ...]] = ops.POOLS
    normalises_importance: ClassVar[bool] = True

    n_recent: int = 16
    query_pool: str = "max"
    group_pool: str = "max"
    head_pool: str = "group"
    past_only: bool = False
    value_norm: bool = False
    position_pool: str = "none"
    position_kernel: int = 7
    redundancy_weight: float = 0.0
    recent_scale: float = 1.0

    def __post_init__(self) -> None:
        require_int(self.name, "n_recent", self.n_recent, 1)
        require_choice(self.name, "query_pool", self.query_pool, ops.POOLS)
        require_choice(self.name, "group_pool", self.group_pool, self.group_pools)
        require_choice(self.name, "head_pool", self.head_pool, HEAD_POOLS)
        require_choice(self.name, "position_pool", self.position_pool, ops.POSITION_POOLS)
        require_int(self.name, "position_kernel", self.position_kernel, 1)
        if self.position_kernel % 2 == 0:
            raise ValueError(f"{self.name}: position_kernel must be odd, got {self.position_kernel}")
        require_positive(self.name, "recent_scale", self.recent_scale)
        if self.recent_scale != 1 and self.group_pool == "logits":
            raise ValueError(f"{self.name}: recent_scale={self.recent_scale} is unsupported with group_pool='logits'")
        for setting in ("past_only", "value_norm"):
            if not isinstance(getattr(self, setting), bool):
                raise ValueError(f"{self.name}: {setting} must be true or false, got {getattr(self, setting)!r}")
        weight = self.redundancy_weight
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
            raise ValueError(f"{self.name}: redundancy_weight must be between 0 and 1, got {weight!r}")

    def new_state(self, batch: int) -> QueryBuffer:
        return QueryBuffer(batch, self.n_recent, 0, 1)

    def score(self, view: CacheView, state: QueryBuffer) -> Tensor:
        score, weight = self.importance(view, state), self.redundancy_weight
        if weight:
            if self.normalises_importance:
                score = score / score.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(score.dtype).tiny)
            score = (1 - weight) * score - weight * self.redundancy(view)
        if self.head_pool == "all":
            how = "mean" if self.group_pool == "logits" else self.group_pool
            by_layer = score.unflatten(1, (view.layers, -1))
            score = ops.pool(by_layer, 2, how).unsqueeze(2).expand_as(by_layer).flatten(1, 2)
        return score

    def importance(self, view: CacheView, state: QueryBuffer) -> Tensor:
        """(R, H_kv, N) float32, >= 0: what the observation queries attend to."""
        importance = self._attention(view, state)
        if self.value_norm:
            importance = importance * view.values.float().norm(dim=-1)
        if self.position_pool != "none":
            importance = ops.pool_positions(importance, view.positions, self.position_kernel, self.position_pool)
        return importance

    def redundancy(self, view: CacheView) -> Tensor:
        """(R, H_kv, N) float32, sums to 1."""
        return ops.key_redundancy(view.keys, view.positions)

    def _attention(self, view: CacheView, state: QueryBuffer) -> Tensor:
        beacons = ops.rotate(state.beacons(view.rows), view.rope)
        recents = state.recents(view.rows).float()
        age = torch.arange(recents.shape[2] - 1, -1, -1, device=recents.device)
        now, held = view.now.unsqueeze(1), view.positions  # (R, 1), (R, H_kv, N)
        if self.past_only:
            held = held.masked_fill(held > now.unsqueeze(2) - self.n_recent, FREE)
        queries = torch.cat([beacons, recents], dim=2)
        at = torch.cat([now.expand(-1, beacons.shape[2]), now - age], dim=1)
        if self.group_pool == "logits":
            weights = ops.group_attention_weights(queries, view.keys, view.params, at, held)
            return ops.pool(weights, 2, self.query_pool)
        pools, scales = (self.query_pool, self.group_pool), None
        beacon_scale, recent_scale = self.logit_scales
        if (beacon_scale, recent_scale) != (1, 1):
            scales = torch.full((queries.shape[2],), recent_scale, dtype=torch.float32, device=queries.device)  # (n,)
            scales[: beacons.shape[2]] = beacon_scale
        return ops.observation_scores(queries, view.keys, view.params, at, held, *pools, scales)

    @property
    def logit_scales(self) -> tuple[float, float]:
        """Factors of the logits of beacon queries and of recent queries."""
        return 1.0, self.recent_scale
