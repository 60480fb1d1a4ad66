"""BeaconKV: score the cache with beacon queries, turned to now, and with the recent queries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .. import ops
from ..types import CacheView
from .base import EvictionPolicy, require_int
from .presets import Preset
from .query_buffer import QueryBuffer

PAPER = "Kim et al., BeaconKV, arXiv 2609.04971"


@dataclass(frozen=True)
class BeaconKV(EvictionPolicy, name="beaconkv"):
    """Beacon queries (continual FPS over past queries before RoPE) and recent queries, max-pooled.

    Attributes:
        n_recent: last queries per query head, scored at their own positions.
        n_beacon: representative past queries per query head, scored at the current position.
        query_pool, group_pool: "max" or "mean" over the observation queries, and over the query heads
            of a GQA group. The paper takes the maximum of both.
        sample_chunk: prompt tokens per reduction of the query buffer during prefill.
    """

    source = f"{PAPER}, sections 4.1-4.3, Algorithms 1 and 2"
    presets = {
        **{
            f"{recent}-{beacon}": Preset({"n_recent": recent, "n_beacon": beacon}, f"{PAPER}, Table 1")
            for recent, beacon in ((32, 0), (31, 1), (16, 16), (4, 28), (1, 31))
        },
        **{
            f"{queries}-{heads}": Preset(
                {"query_pool": queries, "group_pool": heads},
                f"{PAPER}, Table 2" + ("" if queries == heads else " taken apart"),
                note=f"{queries} over queries, {heads} over the heads of a group",
            )
            for queries in ops.POOLS
            for heads in ops.POOLS
        },
    }

    n_recent: int = 16
    n_beacon: int = 16
    query_pool: str = "max"
    group_pool: str = "max"
    sample_chunk: int = 512

    def __post_init__(self) -> None:
        require_int(self.name, "n_recent", self.n_recent, 1)
        require_int(self.name, "n_beacon", self.n_beacon, 0)
        require_int(self.name, "sample_chunk", self.sample_chunk, 1)
        for setting in ("query_pool", "group_pool"):
            if getattr(self, setting) not in ops.POOLS:
                choices = ", ".join(ops.POOLS)
                raise ValueError(f"{self.name}: {setting} must be one of {choices}; got {getattr(self, setting)!r}")

    def new_state(self, batch: int) -> QueryBuffer:
        return QueryBuffer(batch, self.n_recent, self.n_beacon, self.sample_chunk)

    def score(self, view: CacheView, state: QueryBuffer) -> Tensor:
        beacons = ops.rotate(state.beacons(view.rows), view.rope)
        recents = state.recents(view.rows).float()
        age = torch.arange(recents.shape[2] - 1, -1, -1, device=recents.device)
        now = view.now.unsqueeze(1)  # (R, 1)
        return ops.observation_scores(
            torch.cat([beacons, recents], dim=2),
            view.keys,
            view.params,
            torch.cat([now.expand(-1, beacons.shape[2]), now - age], dim=1),
            view.positions,
            self.query_pool,
            self.group_pool,
        )
