"""k-means over the whole history: the real query nearest to each centre as a beacon."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .. import ops
from .kmeans_centroid import KMeansCentroid


@dataclass(frozen=True)
class KMeansNearest(KMeansCentroid, name="kmeans_nearest"):
    """The past query nearest to each of 16 k-means centres, rotated to now, and the last 16; scored as BeaconKV.

    They are scored as in BeaconKV. Nearest is by cosine; no query is taken twice.
    """

    def represent(self, history: Tensor, count: Tensor, num: int) -> Tensor:
        centres = ops.spherical_kmeans(history, count, num, self.iterations)[1]
        return ops.take_queries(history, ops.nearest_queries(history, count, centres))
