"""BeaconKV: score the cache with beacon queries, rotated to now, and with the recent queries."""

from __future__ import annotations

from dataclasses import dataclass

from .. import ops
from .base import require_int, require_positive
from .observation import ObservationPolicy
from .preset import Preset
from .query_buffer import QueryBuffer

PAPER = "Kim et al., BeaconKV, arXiv 2609.04971"
OURS = "this project, docs/results.md (beaconkv:plus)"


@dataclass(frozen=True)
class BeaconKV(ObservationPolicy, name="beaconkv"):
    """Beacon queries (continual FPS over past queries before RoPE) and recent queries, max-pooled.

    The paper takes the maximum over queries and over heads; the other options of
    :class:`ObservationPolicy` are off.

    Attributes:
        n_beacon: representative past queries per query head, scored at the current position.
        sample_chunk: number of prompt tokens per reduction of the query buffer during prefill.
        beacon_scale: factor of the logits of beacon queries before the softmax, an inverse temperature; the paper's
            is 1. Beacons are outliers among queries, and their attention is peaked: below 1 they protect what
            resembles the entries they attend to.
    """

    source = f"{PAPER}, sections 4.1-4.3, Algorithms 1 and 2"
    per_head = True
    presets = {
        **{
            f"{recent}-{beacon}": Preset({"n_recent": recent, "n_beacon": beacon}, f"{PAPER}, Table 1")
            for recent, beacon in ((32, 0), (31, 1), (16, 16), (4, 28), (1, 31))
        },
        **{
            f"{queries}-{heads}": Preset(
                {"query_pool": queries, "group_pool": heads},
                f"{PAPER}, Table 2" + ("" if queries == heads else ", separately"),
                note=f"{queries} over queries, {heads} over the heads of a group",
            )
            for queries in ops.POOLS
            for heads in ops.POOLS
        },
        "plus": Preset(
            {"n_recent": 4, "n_beacon": 12, "query_pool": "mean", "redundancy_weight": 0.1},
            OURS,
            note="not the paper's: fewer queries (20 vectors a head, not 48), mean over them, 0.1 of redundancy",
        ),
        "soft": Preset(
            {"n_recent": 1, "n_beacon": 31, "beacon_scale": 0.25, "redundancy_weight": 0.5},
            "this project, docs/results.md (soft beacons)",
            note="not the paper's: beacons' logits times 0.25, 31 beacons and 1 recent query, 0.5 of redundancy",
        ),
    }

    n_beacon: int = 16
    sample_chunk: int = 512
    beacon_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self.name, "beacon_scale", self.beacon_scale)
        require_int(self.name, "n_beacon", self.n_beacon, 0)
        require_int(self.name, "sample_chunk", self.sample_chunk, 1)

    def new_state(self, batch: int) -> QueryBuffer:
        return QueryBuffer(batch, self.n_recent, self.n_beacon, self.sample_chunk)

    @property
    def logit_scales(self) -> tuple[float, float]:
        return self.beacon_scale, self.recent_scale
