"""Random past queries, and the recent ones."""

from __future__ import annotations

from dataclasses import dataclass

from .base import require_int
from .beacon import PAPER
from .history import History, HistoryPolicy
from .retention import Reservoir


@dataclass(frozen=True)
class RandomHistory(HistoryPolicy, name="random_history"):
    """16 past queries, uniformly at random, rotated to now, and the last 16; scored as BeaconKV.

    Reservoir sampling is uniform; which steps are remembered depends on the seed and on the length of the text alone.

    Attributes:
        seed: random seed of the draws.
    """

    source = f"{PAPER}, Figure 6"
    per_head = True

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.name, "seed", self.seed, 0)

    def new_state(self, batch: int) -> History:
        return History(batch, self.n_recent, self.n_beacon, Reservoir(self.n_beacon, self.seed))
