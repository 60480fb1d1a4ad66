"""Recent queries only: BeaconKV without its beacons."""

from __future__ import annotations

from dataclasses import dataclass

from .beacon import PAPER, BeaconKV
from .preset import Preset


@dataclass(frozen=True)
class Recent(BeaconKV, name="recent"):
    """The last ``n_recent`` queries alone, scored and pooled as in BeaconKV."""

    source = f"{PAPER}, Figure 6 (32 recent queries)"
    presets = {
        "32": Preset({"n_recent": 32}, f"{PAPER}, Figure 6"),
        "16": Preset({"n_recent": 16}, f"{PAPER}, Figure 6"),
    }

    n_recent: int = 32
    n_beacon: int = 0
