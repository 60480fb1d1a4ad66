"""How often each head of a trace looks back, and whether the queries that do fall into groups, in numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from .geometry import Clustering, cluster_check
from .revisiting import Revisiting, find_revisits
from .trace import Trace


@dataclass(frozen=True)
class Diagnosis:
    """How the queries of a trace look back.

    Attributes:
        revisiting: Distances, targets, and which queries are global.
        frequency: Share of global queries among those counted (L, H) float32 (Figure 3).
        clusters: Test whether its global queries fall into groups, by (layer, head); None where they are too few.
    """

    revisiting: Revisiting
    frequency: Tensor
    clusters: dict[tuple[int, int], Clustering | None]

    def summary(self) -> dict[str, Any]:
        """Plain JSON."""
        tested = [c for c in self.clusters.values() if c is not None]
        significant = [c for c in tested if c.p_value <= 0.05]
        judged = [c for c in tested if not math.isnan(c.local)]
        return {
            "top_keys": self.revisiting.top_keys,
            "distance": self.revisiting.distance,
            "global_share": self.frequency.mean().item(),
            "heads": self.frequency.numel(),
            "heads_tested": len(tested),
            "heads_clustered": len(significant),
            "silhouette": _mean(c.silhouette for c in tested),
            "silhouette_shuffled": _mean(c.shuffled for c in tested),
            "silhouette_global_beside_local": _mean(c.beside_local for c in judged),
            "silhouette_local": _mean(c.local for c in judged),
            "frequency": [[round(x, 4) for x in row] for row in self.frequency.tolist()],
            "clusters": [
                {"layer": layer, "head": head, **_plain(asdict(c))}
                for (layer, head), c in self.clusters.items()
                if c is not None
            ],
        }


def diagnose(
    trace: Trace,
    *,
    layers: list[int] | None = None,
    top_keys: int = 150,
    distance: float = 200,
    start: int | None = None,
    stop: int | None = None,
    targets: int = 8,
    seed: int = 0,
    advance: Callable[[int], None] = lambda layers: None,
) -> Diagnosis:
    """Find the global queries of each layer and head, and test whether they fall into groups.

    Args:
        layers: None: all recorded ones.
        top_keys, distance: number of strongest keys and distance of :func:`find_revisits`.
        start, stop: tokens that are counted; by default what follows the prompt.
        targets: keys of each query that are kept for pictures.
        seed: random seed of :func:`cluster_check`.
        advance: called after each layer.

    Raises:
        ValueError: as :func:`find_revisits`; an empty range.
    """
    start = trace.info.prompt_length if start is None else start
    stop = len(trace) if stop is None else stop
    if not 0 <= start < stop <= len(trace):
        raise ValueError(f"tokens {start} to {stop}: choose a range within 0 to {len(trace)}")
    found = find_revisits(trace, layers=layers, top_keys=top_keys, distance=distance, targets=targets, advance=advance)
    far = found.is_global[:, :, start:stop]
    clusters = {}
    for number, layer in enumerate(found.layers):
        queries = trace.queries_before_rope(layer, start, stop)[0]
        for at, head in enumerate(trace.info.heads):
            clusters[layer, head] = cluster_check(queries[at], far[number, at], seed=seed)
    return Diagnosis(found, found.frequency(start, stop), clusters)


def _mean(values: Any) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value != value else value for name, value in values.items()}
