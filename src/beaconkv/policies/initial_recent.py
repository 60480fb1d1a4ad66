"""The first queries of the text, and the recent ones."""

from __future__ import annotations

from dataclasses import dataclass

from .beacon import PAPER
from .history import History, HistoryPolicy
from .retention import FirstSlots


@dataclass(frozen=True)
class InitialRecent(HistoryPolicy, name="initial_recent"):
    """The first 16 queries of the text, rotated to the current position, and the last 16; scored as in BeaconKV."""

    source = f"{PAPER}, Table 3"
    per_head = True

    def new_state(self, batch: int) -> History:
        return History(batch, self.n_recent, self.n_beacon, FirstSlots(self.n_beacon))
