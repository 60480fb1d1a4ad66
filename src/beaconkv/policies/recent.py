"""Recent queries only: what is left of BeaconKV without its beacons."""

from __future__ import annotations

from dataclasses import dataclass

from .beacon import BeaconKV


@dataclass(frozen=True)
class Recent(BeaconKV, name="recent"):
    """The last ``n_recent`` queries alone, scored and pooled as in BeaconKV."""

    source = "Kim et al., BeaconKV, arXiv 2609.04971, Figure 6 (32 recent queries)"

    n_recent: int = 32
    n_beacon: int = 0
