"""The loss of an eviction that knows the future, and a lower bound of the loss of every eviction.

Dropped entries never return, so the best choice at one eviction depends on all later ones.

- :func:`oracle` is a policy that knows all future queries: at each eviction it keeps the entries to which all later
  queries together pay most attention (as Belady's rule keeps what is needed), under the same protected entries. It can
  be reached, but need not be the best.
- :func:`least_loss` forgets that dropped entries never return, and that some are protected: in each cycle the best
  entries for that cycle alone. No policy with this schedule loses less.

The true optimum lies between the two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import ops
from ..cache import EvictionSchedule
from .demand import Demand


def oracle(demand: Demand, schedule: EvictionSchedule, prompt: int) -> Tensor:
    """Evictions, in one layer, of a policy that keeps the entries to which later queries attend most.

    Args:
        demand: demand of the layer, with the steps of this schedule.
        schedule: budgets and protected entries.
        prompt: tokens of the prompt.

    Returns:
        (H_kv, T) int64: the number of the eviction that drops an entry, from 1; 0 if none does.
    """
    mass = demand.of_group()
    future = mass.flip(1).cumsum(1).flip(1)  # (H_kv, E + 1, T): from this cycle on
    kv_heads, _, tokens = mass.shape
    event_of = torch.zeros(kv_heads, tokens, dtype=torch.int64)
    held = torch.zeros(kv_heads, 0, dtype=torch.int64)
    seen = 0
    for number, step in enumerate(demand.steps):
        new = torch.arange(seen, step + 1).expand(kv_heads, -1)
        held, seen = torch.cat([held, new], dim=1), step + 1
        keep = ops.select_entries(
            future[:, number + 1].gather(1, held).unsqueeze(0),
            held.unsqueeze(0),
            schedule.kept_for(prompt, number),
            prefix=schedule.prefix_for(prompt),
            protect=schedule.protect,
        )[0]
        gone = torch.ones_like(held, dtype=torch.bool).scatter_(1, keep, False)
        event_of.scatter_(1, held[gone].view(kv_heads, -1), number + 1)
        held = held.gather(1, keep)
    return event_of


def least_loss(demand: Demand, schedule: EvictionSchedule, prompt: int) -> Tensor:
    """Attention that is lost in each cycle whatever is kept.

    The arguments are those of :func:`oracle`.

    Returns:
        (H_kv, E + 1) float32, share of a query's attention, mean over the queries of a cycle and the heads of
        the group; NaN for a cycle without queries.
    """
    mass = demand.of_group()
    group = demand.mass.shape[0] // mass.shape[0]
    least = torch.zeros(mass.shape[:2])
    for number, step in enumerate(demand.steps):
        old = mass[:, number + 1, : step + 1]
        kept = old.topk(schedule.kept_for(prompt, number), dim=-1).values.sum(-1)
        least[:, number + 1] = (old.sum(-1) - kept).clamp_min(0)
    return least / demand.queries / group
