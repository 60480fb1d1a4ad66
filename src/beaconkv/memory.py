"""Arithmetic of memory: what a cache costs, how many rows fit, from which length a budget saves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch

from .cache import EvictionSchedule, can_stack, row_bytes, state_bytes
from .policies import EvictionPolicy

GIB = 1 << 30
NO_BREAK_EVEN = "never"
FAR, FARTHER = 1 << 12, 1 << 13
"""Two lengths, between which the growth of a state is measured: multiples of the blocks it grows by."""


@dataclass(frozen=True)
class ModelShape:
    """The numbers of a model that set the size of its cache.

    Attributes:
        full_layers, sliding_layers: Number of attention layers of either kind.
        window: Number of entries in a sliding layer.
        num_heads, kv_heads, head_dim: Numbers H, H_kv and D.
        weight_count: Number of parameters.
    """

    full_layers: int
    sliding_layers: int
    window: int
    num_heads: int
    kv_heads: int
    head_dim: int
    weight_count: int

    @classmethod
    def of_config(cls, config: Any) -> ModelShape:
        """Read a transformers config; parameters are counted on a model without storage.

        Raises:
            ValueError: no full-attention layer, or multi-head latent attention: there is nothing to bound.
        """
        from transformers import AutoModelForCausalLM

        text = config.get_text_config(decoder=True)
        heads = text.num_attention_heads
        if getattr(text, "kv_lora_rank", None):
            raise ValueError(f"{type(config).__name__} has multi-head latent attention (MLA): cannot be bounded")
        kinds = getattr(text, "layer_types", None)
        if kinds is None:
            sliding = getattr(text, "sliding_window", None) if getattr(text, "use_sliding_window", True) else None
            kinds = ["sliding_attention" if sliding else "full_attention"] * text.num_hidden_layers
        full = kinds.count("full_attention")
        if not full:
            raise ValueError(
                f"{type(config).__name__} has no full-attention layer, only {', '.join(sorted(set(kinds)))}"
            )
        with torch.device("meta"):
            weights = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
        return cls(
            full_layers=full,
            sliding_layers=sum("sliding" in kind for kind in kinds),
            window=getattr(text, "sliding_window", None) or 0,
            num_heads=heads,
            kv_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
            weight_count=weights,
        )


@dataclass(frozen=True)
class Plan:
    """Memory of one row, with the full cache and at a budget, in bytes unless another unit is given.

    Attributes:
        weight_bytes: the model.
        bytes_per_token: keys and values of one token in all full-attention layers.
        full_row: one row of ``length`` tokens, nothing evicted.
        bounded_row: such a row at the budget: slabs, positions and the policy's state.
        state_row: the part of bounded_row that is not keys and values, after ``length`` tokens.
        state_per_token: bytes by which state_row grows with each further token, on average; 0 for most policies.
        batch_full, batch_bounded: number of rows that fit together with the weights.
        break_even_length: tokens from which a bounded row is smaller than a full one. None: never, since the
            policy's state grows as fast as the full cache.
    """

    memory: int
    length: int
    budget: int
    policy: str
    weight_bytes: int
    bytes_per_token: int
    full_row: int
    bounded_row: int
    state_row: int
    state_per_token: float
    batch_full: int
    batch_bounded: int
    break_even_length: int | None

    def to_dict(self) -> dict[str, Any]:
        """A plain dict, ready for JSON; a break-even length of None becomes "never"."""
        return asdict(self) | {
            "break_even_length": NO_BREAK_EVEN if self.break_even_length is None else self.break_even_length
        }


def plan_memory(
    shape: ModelShape,
    policy: EvictionPolicy,
    budget: int,
    *,
    length: int = 32768,
    memory_gib: float = 80.0,
    utilization: float = 0.9,
    dtype: torch.dtype = torch.bfloat16,
) -> Plan:
    """Compare the full cache with a budget.

    Args:
        shape: shape of the model.
        policy: whose state is counted.
        budget: B_max, in entries.
        length: tokens of a row, prompt included.
        memory_gib: memory of the device in GiB.
        utilization: share of it that weights and caches may take; the rest is for activations.
        dtype: dtype of weights and cache.

    Example:
        >>> shape = ModelShape.of_config(model.config)
        >>> plan = plan_memory(shape, beaconkv.make_policy("beaconkv"), budget=256, length=2000, memory_gib=1)
        >>> plan.bounded_row < plan.full_row, plan.batch_bounded > plan.batch_full
        (True, True)

    Raises:
        ValueError: numbers out of range, or a policy that never evicts.
    """
    if not policy.evicts:
        raise ValueError(f"policy {policy.name!r} never evicts: there is nothing to plan")
    for name, value in (("length", length), ("memory_gib", memory_gib)):
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be positive, got {value}")
    if not 0 < utilization <= 1:
        raise ValueError(f"utilization must be in (0, 1], got {utilization}")
    schedule = EvictionSchedule(budget, prefix=policy.default_prefix, protect=policy.default_protect)
    per_entry = 2 * shape.kv_heads * shape.head_dim * dtype.itemsize
    sliding = shape.sliding_layers * min(length, shape.window) * per_entry
    per_token = shape.full_layers * per_entry
    state = cache(lambda tokens: _state_bytes(shape, policy, schedule, tokens, dtype))
    state_row, growth = state(length), (state(FARTHER) - state(FAR)) / (FARTHER - FAR)
    full_row = per_token * length + sliding
    bounded_row = per_token * budget + state_row + sliding
    weight_bytes = shape.weight_count * dtype.itemsize
    memory = int(memory_gib * GIB)
    room = max(0, int(memory * utilization) - weight_bytes)
    return Plan(
        memory=memory,
        length=length,
        budget=budget,
        policy=policy.name,
        weight_bytes=weight_bytes,
        bytes_per_token=per_token,
        full_row=full_row,
        bounded_row=bounded_row,
        state_row=state_row,
        state_per_token=growth,
        batch_full=room // full_row,
        batch_bounded=room // bounded_row,
        break_even_length=None if growth >= per_token else _break_even(per_token, budget, state),
    )


def _break_even(per_token: int, budget: int, state: Callable[[int], int]) -> int:
    """Tokens from which ``budget`` entries and the state take less than all entries, where the state grows evenly."""
    length = budget
    while True:
        least = budget + state(length) // per_token + 1
        if least > length:
            length = least  # the state does not shrink: no length before that one saves
            continue
        if (jump := _next_growth(length, state)) is None or state(jump) < per_token * (jump - budget):
            return length
        length = jump


def _next_growth(length: int, state: Callable[[int], int]) -> int | None:
    """The first number of tokens after ``length`` with which the state is larger; None: it does not grow."""
    same, larger = length, length + FAR
    if state(larger) == state(same):
        return None
    while larger - same > 1:
        middle = (same + larger) // 2
        same, larger = (middle, larger) if state(middle) == state(length) else (same, middle)
    return larger


def _state_bytes(
    shape: ModelShape, policy: EvictionPolicy, schedule: EvictionSchedule, length: int, dtype: torch.dtype
) -> int:
    """Bytes of one row of all layers other than keys and values: positions, lengths and the policy's state, measured.

    Stacked layers share lengths and the rope of the queries, and hold the queries of one step.
    """
    layers = shape.full_layers
    together = layers > 1 and policy.per_head and can_stack(policy)
    stacked = layers if together else 1
    heads, kv_heads = stacked * shape.num_heads, stacked * shape.kv_heads
    own = state_bytes(policy, schedule.budget, length, heads, kv_heads, shape.head_dim, dtype) + row_bytes()
    own += heads * shape.head_dim * dtype.itemsize if together else 0
    return own * layers // stacked + 4 * layers * shape.kv_heads * schedule.budget
