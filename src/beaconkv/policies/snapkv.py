"""SnapKV, applied whenever the cache is full."""

from __future__ import annotations

from dataclasses import dataclass

from .observation import ObservationPolicy
from .preset import Preset

PAPER = "Li et al., SnapKV, arXiv 2404.14469"


@dataclass(frozen=True)
class SnapKV(ObservationPolicy, name="snapkv"):
    """Attention of the last 32 queries, averaged over queries and the group, and smoothed along the text.

    It was published for the end of a prompt; here the same score is used at every eviction, as in the BeaconKV
    paper. The published code scores each query head and repeats keys for it; here a GQA group
    shares one average, since entries are kept once per KV head.
    """

    source = PAPER
    presets = {
        "paper": Preset(
            {"position_pool": "max", "position_kernel": 7},
            f"{PAPER}, LongBench experiments (window 32, max pooling, kernel 7)",
            prefix=0,
            protect=32,
        ),
        "code": Preset(
            {"position_pool": "avg", "position_kernel": 5},
            "github.com/FasterDecoding/SnapKV, snapkv_utils.py, init_snapkv (window 32, avgpool, kernel 5)",
            prefix=0,
            protect=32,
        ),
    }

    n_recent: int = 32
    query_pool: str = "mean"
    group_pool: str = "mean"
    position_pool: str = "avg"
    position_kernel: int = 5
