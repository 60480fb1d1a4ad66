"""R-KV: importance against redundancy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .. import ops
from ..types import CacheView
from .observation import ObservationPolicy
from .preset import Preset

PAPER = "Cai et al., R-KV, arXiv 2505.24133"


@dataclass(frozen=True)
class RKV(ObservationPolicy, name="rkv"):
    """lambda * importance - (1 - lambda) * redundancy, with redundancy_weight = 1 - lambda.

    Importance is the attention of the last 8 queries, averaged, and max-pooled along the text; a GQA group
    takes the largest logit of its heads before the softmax. Redundancy is that of the keys as they are
    stored, after RoPE, as in the published code.

    Attributes:
        group_pool: Pooling over a GQA group. "logits": the maximum before the softmax, as published; or "max" or "mean"
            after it.
        threshold: Cosine above which two keys count as equal.
    """

    source = PAPER
    per_head = True
    default_protect = 8
    group_pools: ClassVar[tuple[str, ...]] = (*ops.POOLS, "logits")
    normalises_importance: ClassVar[bool] = False
    presets = {
        "paper": Preset(
            {"redundancy_weight": 0.9},
            f"{PAPER} (lambda = 0.1)",
            prefix=0,
            protect=8,
            every=128,
            note="the paper counts the 128 new entries on top of its budget",
        ),
        "code": Preset(
            {"redundancy_weight": 0.93, "past_only": True},
            "github.com/Zefan-Cai/R-KV, rkv/compression/r1_kv.py (mix_lambda = 0.07)",
            prefix=0,
            protect=8,
            every=128,
        ),
    }

    n_recent: int = 8
    query_pool: str = "mean"
    group_pool: str = "logits"
    position_pool: str = "max"
    redundancy_weight: float = 0.9
    threshold: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.threshold, bool) or not isinstance(self.threshold, int | float):
            raise ValueError(f"{self.name}: threshold must be a number, got {self.threshold!r}")

    def redundancy(self, view: CacheView) -> Tensor:
        return ops.key_redundancy(view.keys, view.positions, self.threshold)
