"""One eviction: score, select, move, report. A store knows where the entries are."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .. import ops
from ..policies import EvictionPolicy, LayerState
from ..types import CacheView, EvictionEvent

logger = logging.getLogger(__name__)


class EntryStore(Protocol):
    """A place that holds entries: a slab, entries that are not stored yet, the blocks of a paged cache."""

    def retain(self, view: CacheView, keep: Tensor) -> Tensor:
        """Keep some of the entries of a view, and free the slots of the others.

        Args:
            view: entries of rows in the same state.
            keep: (R, H_kv, K) int64, ascending: which entries of the view stay.

        Returns:
            (R, H_kv, K) int64: slot i now holds entry ``source[..., i]`` of the view.
        """


@dataclass(frozen=True)
class Retention:
    """How much an eviction leaves.

    Attributes:
        keep: number of entries that stay, for each KV head.
        prefix, protect: numbers of first and last entries that stay whatever their scores.
    """

    keep: int
    prefix: int
    protect: int


def evict(
    policy: EvictionPolicy,
    state: LayerState,
    view: CacheView,
    store: EntryStore,
    retention: Retention,
    layers: Sequence[int] = (),
    now: Sequence[int] = (),
) -> list[EvictionEvent]:
    """Evict entries of rows in the same state.

    Args:
        policy: scores the entries.
        state: what the policy has seen of these rows.
        view: all entries there are.
        store: what holds them.
        retention: number of entries that stay.
        layers: indices of the layers whose heads the view holds; an event is made for each.
        now: for these events, logical position of the newest token of each row.

    Returns:
        The events, in the order of ``layers``. Making them takes a copy of positions and a sort.

    Source: Kim et al., BeaconKV, arXiv 2609.04971, Algorithm 1; every other method of the library in the same loop.
    """
    scores = policy.score(view, state)
    keep = ops.select_entries(
        scores, view.positions, retention.keep, prefix=retention.prefix, protect=retention.protect
    )
    if logger.isEnabledFor(logging.DEBUG):  # nothing is computed otherwise, and nothing waits for the device
        held, (count, heads) = view.positions.shape[-1], view.positions.shape[:2]
        logger.debug("%s: %d rows, %d heads: %d of %d entries stay", policy.name, count, heads, retention.keep, held)
    events = _events(view, scores, keep, state.observation_queries(view.rows), layers, now) if layers else []
    state.evicted(store.retain(view, keep), view.rows)
    return events


def _events(
    view: CacheView,
    scores: Tensor,
    keep: Tensor,
    queries: Tensor | None,
    layers: Sequence[int],
    now: Sequence[int],
) -> list[EvictionEvent]:
    gone = torch.ones(scores.shape, dtype=torch.bool, device=keep.device).scatter_(-1, keep, False)
    dropped = view.positions[gone].view(*keep.shape[:2], -1)
    kept = view.positions.gather(-1, keep).sort(dim=-1).values
    tables = view.positions.clone(), scores, kept, dropped.sort(dim=-1).values
    by_layer = zip(*(table.chunk(len(layers), dim=1) for table in tables), strict=True)
    observed = [None] * len(layers) if queries is None else queries.chunk(len(layers), dim=1)
    return [
        EvictionEvent(index, list(view.rows.numbers), list(now), *(t.contiguous() for t in own), of_layer)
        for index, own, of_layer in zip(layers, by_layer, observed, strict=True)
    ]
