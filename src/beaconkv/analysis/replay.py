"""Any policy over a trace: the same policy objects and the same cache layer as in a live cache, without the model.

A replay shows what a policy would have dropped if the model had gone on as it did with the full cache. The layers of
a trace are the rows of one batch, since the result of a row does not depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..cache import BoundedLayer, EvictionSchedule
from ..policies import EvictionPolicy, parse_policy
from ..types import EvictionEvent
from .trace import Trace

NOT_DROPPED = 2**31 - 1
"""Value in ``Replay.dropped`` of an entry that stayed."""

GROUP_BYTES = 1 << 28
"""Maximum size of the queries and keys of the layers that are replayed together (one layer at least)."""


@dataclass(frozen=True)
class Replay:
    """The entries that one policy dropped, and when.

    Attributes:
        policy: Spec of the policy.
        budget: Maximum number of entries (B_max).
        schedule: Schedule of the cache.
        layers: Indices in the model; the first dimension of the tensors.
        steps: Positions of the tokens after which evictions came, the same in all layers and heads.
        dropped: Position of the token right after which an entry was dropped (L, H_kv, T) int32; ``NOT_DROPPED``: it
            stayed.
        coverage: Highest cosine, before RoPE, of each query to the observation queries of the last eviction before it
            (L, H, T) float32 (Figure 6, upper half); NaN before the first, and for policies without any.
    """

    policy: str
    budget: int
    schedule: EvictionSchedule
    layers: list[int]
    steps: list[int]
    dropped: Tensor
    coverage: Tensor

    @property
    def label(self) -> str:
        """``beaconkv at 256``."""
        return f"{self.policy} at {self.budget}"

    def event_of(self) -> Tensor:
        """(L, H_kv, T) int64: the number of the eviction that dropped an entry, from 1; 0 if none did."""
        steps = torch.tensor([*self.steps, NOT_DROPPED], dtype=self.dropped.dtype)
        number = torch.searchsorted(steps, self.dropped.contiguous()) + 1
        return number.masked_fill(self.dropped == NOT_DROPPED, 0)


def replay_schedule(
    policy: str | EvictionPolicy, budget: int | None, **overrides: Any
) -> tuple[EvictionPolicy, EvictionSchedule]:
    """A policy and the schedule that a live cache would follow with the same arguments.

    Raises:
        ValueError: errors of :func:`beaconkv.parse_policy` and of the schedule; a policy that evicts nothing; a prefill
            chunk, which a replay does not support.
    """
    spec = parse_policy(policy)
    if not spec.policy.evicts:
        raise ValueError(f"policy {spec.spec!r} evicts nothing: there is nothing to replay")
    schedule = spec.schedule(budget, **overrides)
    if schedule.budget is None:
        raise ValueError(f"policy {spec.spec!r} needs a budget")
    if schedule.prefill_chunk is not None:
        raise ValueError("a replay takes the prompt as one chunk: prefill_chunk must be None")
    return spec.policy, schedule


def replay(
    trace: Trace,
    policy: str | EvictionPolicy,
    budget: int | None = None,
    *,
    layers: list[int] | None = None,
    on_evict: Callable[[EvictionEvent], None] | None = None,
    advance: Callable[[int], None] = lambda tokens: None,
    **overrides: Any,
) -> Replay:
    """Run a policy over a trace.

    Args:
        policy: a spec such as "beaconkv" or "rkv:code", or a policy object.
        budget: B_max.
        layers: None: all recorded ones.
        on_evict: called after each eviction; the event's ``layer`` is the index in the model, its rows are [0].
        advance: called with the number of tokens of all layers that were replayed, ``len(layers) * T`` in the end.
        overrides: further arguments of :class:`beaconkv.EvictionSchedule`.

    Example:
        >>> trace = record(model, tokenizer, chain, 40, folder / "chain.trace")
        >>> len(replay(trace, "beaconkv", 128).steps) > 0  # positions of the tokens at which entries were evicted
        True

    Raises:
        ValueError: errors of :func:`replay_schedule`; a layer that was not recorded; a policy that reads values,
            of a trace without values.
    """
    chosen, schedule = replay_schedule(policy, budget, **overrides)
    if getattr(chosen, "value_norm", False) and not trace.info.has_values:
        raise ValueError(f"{chosen.name} with value_norm reads values, and {trace.path} was recorded without them")
    layers = trace.info.layers if layers is None else list(layers)
    kv_heads, tokens = len(trace.info.kv_heads), len(trace)
    dropped = torch.full((len(layers), kv_heads, tokens), NOT_DROPPED, dtype=torch.int32)
    coverage = torch.full((len(layers), trace.info.num_heads, tokens), torch.nan)
    steps: list[int] = []
    for group in _alike(trace, layers):
        numbers = [layers.index(layer) for layer in group]

        def take(event: EvictionEvent, numbers: list[int] = numbers, group: list[int] = group) -> None:
            now, at = event.now[0], torch.tensor(numbers)
            table = dropped[at].scatter_(-1, event.dropped.long(), now)
            dropped[at] = table
            if numbers[0] == 0:
                steps.append(now)
            if on_evict is not None:
                for row, index in enumerate(group):
                    one = slice(row, row + 1)
                    tables = (event.positions, event.scores, event.kept, event.dropped)
                    queries = None if event.queries is None else event.queries[one]
                    on_evict(EvictionEvent(index, [0], [now], *(table[one] for table in tables), queries))

        _run(trace, group, chosen, schedule, take, coverage, numbers, advance)
    name = policy if isinstance(policy, str) else chosen.name or type(chosen).__name__
    return Replay(name, schedule.budget, schedule, list(layers), steps, dropped, coverage)


def _alike(trace: Trace, layers: list[int]) -> Iterator[list[int]]:
    """Layers that can be rows of one batch: one rope, one way to compute logits."""
    info = trace.info
    per_layer = (info.num_heads + len(info.kv_heads)) * info.dim * len(trace) * 4
    most = max(1, GROUP_BYTES // per_layer)
    groups: dict[tuple, list[int]] = {}
    for layer in layers:
        i = trace.number(layer)
        own = layer if info.has_sinks else None
        key = info.rope_of[i], info.rotary[i], info.scaling[i], info.softcap[i], own
        groups.setdefault(key, []).append(layer)
    for group in groups.values():
        for start in range(0, len(group), most):
            yield group[start : start + most]


@torch.inference_mode()
def _run(
    trace: Trace,
    group: list[int],
    policy: EvictionPolicy,
    schedule: EvictionSchedule,
    take: Callable[[EvictionEvent], None],
    coverage: Tensor,
    numbers: list[int],
    advance: Callable[[int], None],
) -> None:
    """One batch of layers, token by token."""
    prompt, tokens = trace.info.prompt_length, len(trace)
    keys = torch.cat([trace.keys(layer) for layer in group])
    queries = torch.cat([trace.queries(layer) for layer in group])
    if trace.info.has_values:
        values = torch.cat([trace.values(layer) for layer in group])
    else:  # a policy that reads values fails
        values = torch.full((*keys.shape[:3], 1), torch.nan, dtype=keys.dtype)
    rope, params = trace.rope(group[0]), trace.params(group[0])
    observed: list[Tensor | None] = [None]  # unit vectors (R, H, m, D): observation queries of the last eviction

    def look(event: EvictionEvent) -> None:
        observed[0] = None if event.queries is None else ops.unit_vectors(event.queries)
        take(event)

    layer = BoundedLayer(policy, schedule, group[0], look)
    for start, stop in [(0, prompt), *((t, t + 1) for t in range(prompt, tokens))]:
        part = slice(start, stop)
        layer.append(keys[:, :, part], values[:, :, part])
        if observed[0] is not None:
            before = ops.unrotate(queries[:, :, part], rope.steps(start, stop))
            _cover(coverage, numbers, part, before, observed[0])
        layer.observe(queries[:, :, part], rope.steps(start, stop), params)
        advance((stop - start) * len(group))


def _cover(coverage: Tensor, numbers: list[int], part: slice, before_rope: Tensor, observed: Tensor) -> None:
    cosine = ops.unit_vectors(before_rope) @ observed.transpose(-1, -2)  # (R, H, n, m)
    coverage[torch.tensor(numbers), :, part] = cosine.amax(-1)
