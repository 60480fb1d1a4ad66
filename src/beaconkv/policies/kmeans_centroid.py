"""k-means over the whole history: averages as beacons."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .. import ops
from .base import require_int
from .beacon import PAPER
from .history import WholeHistoryPolicy


@dataclass(frozen=True)
class KMeansCentroid(WholeHistoryPolicy, name="kmeans_centroid"):
    """The 16 k-means centroids of all past queries, rotated to now, and the last 16; scored as BeaconKV.

    They are scored as in BeaconKV. The sources name no distance. Clusters are by cosine here (spherical k-means), as
    farthest point sampling is, and start from its picks; a centroid is the mean of its queries with their lengths.

    Attributes:
        iterations: number of steps of Lloyd's algorithm, without early stopping.
    """

    source = f"{PAPER}, Figure 7"

    iterations: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int(self.name, "iterations", self.iterations, 1)

    def represent(self, history: Tensor, count: Tensor, num: int) -> Tensor:
        return ops.spherical_kmeans(history, count, num, self.iterations)[0]
