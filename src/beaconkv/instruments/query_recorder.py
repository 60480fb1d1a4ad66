"""Recording the queries of a model that reads a text with the full cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..integrations.transformers.cache import BoundedCache
from ..integrations.transformers.host_layer import BoundedCacheLayer
from ..policies import EvictionPolicy, LayerState
from ..types import AttentionParams, CacheView, Rope, Rows


@dataclass(frozen=True)
class QueryRecorder(EvictionPolicy):
    """Evicts nothing and remembers queries. It has no name, so that the registry does not list it.

    Attributes:
        positions: positions of the tokens whose queries are remembered; None: all.
    """

    positions: tuple[int, ...] | None = None

    evicts = False
    observes_entries = True

    def new_state(self, batch: int) -> RecordedQueries:
        return RecordedQueries(self.positions)

    def score(self, view: CacheView, state: LayerState) -> Tensor:
        raise AssertionError("nothing is evicted")


class RecordedQueries(LayerState):
    """Queries of one layer since the last :meth:`take`, for :class:`QueryRecorder`. All rows are in equal states.

    Attributes:
        num_heads: query heads of the layer.
        rope: rope of the tokens that came last.
        params: how the layer computes its logits.
    """

    def __init__(self, positions: tuple[int, ...] | None) -> None:
        self._positions = positions
        self._queries: list[Tensor] = []
        self.num_heads = 0
        self.rope: Rope | None = None
        self.params: AttentionParams | None = None

    def observe(self, queries: Tensor, rope: Rope, until_full: list[int], rows: Rows, view: CacheView) -> None:
        if self._positions is not None:
            start = int(view.now[0]) - queries.shape[2] + 1
            queries = queries[:, :, [p - start for p in self._positions if start <= p < start + queries.shape[2]]]
        self._queries.append(queries)
        self.num_heads = queries.shape[1]
        self.rope, self.params = rope, view.params

    def take(self) -> Tensor:
        """(B, H, n, D) after RoPE: the remembered queries, oldest first; they are then forgotten."""
        queries, self._queries = self._queries, []
        return torch.cat(queries, dim=2)


def bounded_layers(cache: BoundedCache) -> list[tuple[int, BoundedCacheLayer]]:
    """The bounded layers and their index in the model."""
    return [(i, layer) for i, layer in enumerate(cache.layers) if isinstance(layer, BoundedCacheLayer)]
