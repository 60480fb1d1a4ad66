"""Farthest point sampling over the whole history: what continual FPS approximates."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .. import ops
from .beacon import PAPER
from .history import WholeHistoryPolicy


@dataclass(frozen=True)
class NaiveFPS(WholeHistoryPolicy, name="naive_fps"):
    """16 farthest points of all past queries, rotated to the current position, and the last 16.

    They are scored as in BeaconKV.
    """

    source = f"{PAPER}, Figure 7"

    def represent(self, history: Tensor, count: Tensor, num: int) -> Tensor:
        return ops.take_queries(history, ops.farthest_points(history, count, num))
