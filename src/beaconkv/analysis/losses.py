"""Policies compared over one trace: what each lost, next to an oracle and a bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .demand import Loss, find_demand, find_loss
from .oracle import least_loss, oracle
from .replay import Replay, replay
from .trace import Trace


@dataclass(frozen=True)
class Outcome:
    """One policy at one budget.

    Attributes:
        replay: what it dropped, and when.
        queries: (E + 1,) int64, queries in each cycle between evictions.
        lost, oracle: (L, H, E + 1) float32, share of attention lost, by the policy and by the oracle.
        bound: (L, H_kv, E + 1) float32, share that is lost whatever is kept.
        recall: (L, H_kv, E + 1) float32, share of each query's ``top_keys`` keys that is still held.
        later_mass: (L, H_kv, T) float32; later_wanted: (L, H_kv, T) int64; see :class:`Loss`.
        top_keys: as given to :func:`compare_policies`.
    """

    replay: Replay
    queries: Tensor
    lost: Tensor
    oracle: Tensor
    bound: Tensor
    recall: Tensor
    later_mass: Tensor
    later_wanted: Tensor
    top_keys: int

    def mean(self, values: Tensor) -> float:
        """Mean over layers, heads and all queries after the first eviction; NaN if there are none.

        Args:
            values: (L, heads, E + 1), means over the queries of each cycle.
        """
        weights = self.queries[1:].double()
        return ((values[..., 1:].double().nan_to_num() * weights).sum(-1) / weights.sum()).mean().item()

    def summary(self) -> dict[str, Any]:
        """The row of a table, as plain JSON; None where a value is not defined."""
        own, best, least = (self.mean(values) for values in (self.lost, self.oracle, self.bound))
        covered = self.replay.coverage.nanmean().item()
        row = {
            "policy": self.replay.policy,
            "budget": self.replay.budget,
            "evictions": len(self.replay.steps),
            "dropped": int((self.replay.event_of() > 0).sum()),
            "lost": own,
            "oracle": best,
            "bound": least,
            "regret": own - best,
            "recall": self.mean(self.recall),
            "coverage": covered,
            "later_wanted": int(self.later_wanted.sum()),
        }
        return {name: None if value != value else value for name, value in row.items()}

    def events(self) -> list[dict[str, Any]]:
        """One row for each eviction: what went, what later queries wanted of it, and the cycle that followed."""
        number = self.replay.event_of()
        bounds = [*self.replay.steps, self.replay.coverage.shape[-1] - 1]
        rows = []
        for event, step in enumerate(self.replay.steps, 1):
            here = number == event
            coverage = self.replay.coverage[:, :, step + 1 : bounds[event] + 1]
            row = {
                "event": event,
                "step": step,
                "dropped": int(here.sum()),
                "later_mass": (self.later_mass * here).sum().item(),
                "later_wanted": int((self.later_wanted * here).sum()),
                "queries_after": int(self.queries[event]),
                "lost_after": self.lost[..., event].mean().item(),
                "oracle_after": self.oracle[..., event].mean().item(),
                "bound_after": self.bound[..., event].mean().item(),
                "recall_after": self.recall[..., event].mean().item(),
                "coverage_after": coverage.nanmean().item() if coverage.numel() else float("nan"),
            }
            rows.append({name: None if value != value else value for name, value in row.items()})
        return rows


def compare_policies(
    trace: Trace,
    cells: Sequence[tuple[str, int | None]],
    *,
    layers: list[int] | None = None,
    top_keys: int = 16,
    advance: Callable[[float], None] = lambda share: None,
    **overrides: Any,
) -> list[Outcome]:
    """Replay policies over a trace, and measure the loss of later queries by each.

    Args:
        cells: specs and budgets.
        layers: None: all recorded ones.
        top_keys: keys of each query that count as wanted.
        advance: called with the further share of the work that is done; 1 in all.
        overrides: as of :func:`replay`.

    Example:
        >>> trace = record(model, tokenizer, chain, 40, folder / "compared.trace")
        >>> rows = [outcome.summary() for outcome in compare_policies(trace, [("beaconkv", 128), ("rkv", 128)])]
        >>> all(row["bound"] <= row["oracle"] <= row["lost"] for row in rows)
        True

    Raises:
        ValueError: as :func:`replay`; no cell.
    """
    if not cells:
        raise ValueError("nothing to replay: give at least one policy, and a budget")
    layers = trace.info.layers if layers is None else list(layers)
    parts = 2 * len(cells)
    share = 1 / (parts * len(layers) * len(trace))
    replays = [
        replay(trace, *cell, layers=layers, advance=lambda done: advance(done * share), **overrides) for cell in cells
    ]
    losses: list[list[tuple[Loss, Tensor, Tensor, Tensor]]] = [[] for _ in cells]
    prompt = trace.info.prompt_length
    events = [one.event_of() for one in replays]
    for number, layer in enumerate(layers):
        demands: dict[tuple[int, ...], Any] = {}
        ideals: dict[Any, tuple[Tensor, Tensor]] = {}
        for at in sorted(range(len(replays)), key=lambda at: tuple(replays[at].steps)):
            one = replays[at]
            steps = tuple(one.steps)
            if steps not in demands:
                demands = {steps: find_demand(trace, layer, one.steps, top_keys)}  # one at a time: it is large
                ideals = {}
            demand = demands[steps]
            if one.schedule not in ideals:
                best = find_loss(demand, oracle(demand, one.schedule, prompt)).lost
                ideals[one.schedule] = best, least_loss(demand, one.schedule, prompt)
            losses[at].append((find_loss(demand, events[at][number]), *ideals[one.schedule], demand.queries))
            advance(1 / (parts * len(layers)))
    return [_outcome(one, own, top_keys) for one, own in zip(replays, losses, strict=True)]


def _outcome(replay: Replay, layers: list[tuple[Loss, Tensor, Tensor, Tensor]], top_keys: int) -> Outcome:
    losses, best, least, queries = zip(*layers, strict=True)

    def stack(name: str) -> Tensor:
        return torch.stack([getattr(loss, name) for loss in losses])

    return Outcome(
        replay,
        queries[0],
        stack("lost"),
        torch.stack(best),
        torch.stack(least),
        stack("recall"),
        stack("later_mass"),
        stack("later_wanted"),
        top_keys,
    )
