"""TOVA: entries with the least attention of the newest query are evicted."""

from __future__ import annotations

from dataclasses import dataclass

from .observation import ObservationPolicy
from .preset import Preset

PAPER = "Oren et al., Transformers are Multi-State RNNs, arXiv 2401.06104"


@dataclass(frozen=True)
class TOVA(ObservationPolicy, name="tova"):
    """Attention of the newest query, averaged over all heads of the layer.

    The paper drops one entry at every step, protects none, and pools over the layer: all KV heads keep
    the same entries. ``head_pool="group"`` lets each KV head choose.
    """

    source = PAPER
    presets = {
        "paper": Preset({}, f"{PAPER}, section 4", prefix=0, protect=0, every=1),
    }

    n_recent: int = 1
    query_pool: str = "mean"
    group_pool: str = "mean"
    head_pool: str = "all"
