"""The attention of later queries to each entry, between one eviction and the next.

The table is made once for a schedule. The loss of any policy with that schedule is then a sum over the entries it
dropped, and the oracle uses the columns of the future.

    cycle   0            1            2
              |.... s_1 ....|.... s_2 ..|....       s_k: the token after which the k-th eviction comes
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import attention_blocks
from .trace import Trace


@dataclass(frozen=True)
class Demand:
    """Demand in one layer.

    Attributes:
        steps: positions after which evictions come.
        queries: (E + 1,) int64, queries in each cycle. Cycle 0 has those up to the first eviction.
        mass: (H, E + 1, T) float32, attention that the queries of a cycle pay to an entry, summed.
        wanted: (H_kv, E + 1, T) int32, how many queries of a cycle, of all heads of the group, have the entry among
            the ``top_keys`` they attend to most.
        top_keys: number of strongest keys of each query.
    """

    steps: list[int]
    queries: Tensor
    mass: Tensor
    wanted: Tensor
    top_keys: int

    def of_group(self) -> Tensor:
        """(H_kv, E + 1, T) float32: ``mass`` summed over the heads of each group."""
        kv_heads = self.wanted.shape[0]
        return self.mass.view(kv_heads, -1, *self.mass.shape[1:]).sum(1)


def find_demand(trace: Trace, layer: int, steps: list[int], top_keys: int = 16) -> Demand:
    """Compute the attention of one layer, and sum it over the intervals.

    Args:
        steps: Positions after which evictions come, ascending.
        top_keys: Number of keys of each query that count as wanted; of a query with fewer keys all count.

    Raises:
        ValueError: a layer that was not recorded, a count below 1.
    """
    if top_keys < 1:
        raise ValueError(f"top_keys must be at least 1, got {top_keys}")
    tokens, cycles = len(trace), len(steps) + 1
    kv_heads, group = len(trace.info.kv_heads), trace.info.group
    mass = torch.zeros(kv_heads * group, cycles, tokens)
    wanted = torch.zeros(kv_heads, cycles, tokens, dtype=torch.int32)
    bounds = torch.tensor(steps, dtype=torch.int64)
    counts = torch.bincount(torch.bucketize(torch.arange(tokens), bounds), minlength=cycles)
    for start, weights in attention_blocks(trace, layer, cuts=tuple(step + 1 for step in steps)):
        cycle = int(torch.bucketize(torch.tensor(start), bounds))
        num_queries, size = weights.shape[2:]
        mass[:, cycle, :size] += weights.sum(2).flatten(0, 1)
        share, places = weights.topk(min(top_keys, size), dim=-1, sorted=False)
        visible = places <= torch.arange(start, start + num_queries).view(-1, 1)
        flat = places.reshape(kv_heads, -1)
        wanted[:, cycle].scatter_add_(1, flat, visible.reshape(kv_heads, -1).int())
    return Demand(list(steps), counts, mass, wanted, top_keys)


@dataclass(frozen=True)
class Loss:
    """Loss of later queries by a policy's evictions, in one layer.

    Attributes:
        lost: (H, E + 1) float32, share of a query's attention on entries that are gone, mean over a cycle.
        recall: (H_kv, E + 1) float32, share of the wanted entries that are still held.
            Both are NaN for a cycle without queries: after an eviction at the last token.
        later_mass: (H_kv, T) float32, attention that later queries would have paid to a dropped entry, summed over
            queries and over the heads of the group; 0 for entries that stayed.
        later_wanted: (H_kv, T) int64, how many later queries wanted a dropped entry.
    """

    lost: Tensor
    recall: Tensor
    later_mass: Tensor
    later_wanted: Tensor


def find_loss(demand: Demand, event_of: Tensor) -> Loss:
    """Sum the demand over the entries that were dropped.

    Args:
        event_of: Number of the eviction that dropped an entry, from 1; 0 if none did (H_kv, T) int64.
    """
    heads, cycles, _ = demand.mass.shape
    kv_heads = demand.wanted.shape[0]
    cycle = torch.arange(cycles).view(1, -1, 1)
    gone = (event_of.unsqueeze(1) > 0) & (event_of.unsqueeze(1) <= cycle)  # (H_kv, E + 1, T)
    per_head = gone.repeat_interleave(heads // kv_heads, dim=0)
    lost = (demand.mass * per_head).sum(-1) / demand.queries
    missed = (demand.wanted * gone).sum(-1).double()
    total = demand.wanted.sum(-1).double()
    return Loss(
        lost=lost,
        recall=(1 - missed / total).float(),
        later_mass=(demand.of_group() * gone).sum(1),
        later_wanted=(demand.wanted * gone).sum(1),
    )
