"""Bytes that a policy remembers of a row, measured on one that has seen a single query."""

from __future__ import annotations

import torch

from .. import ops
from ..policies import EvictionPolicy
from ..types import Rope, Rows


def can_join(policy: EvictionPolicy) -> bool:
    """Whether the policy can be shown the heads of several layers side by side."""
    state = policy.new_state(1)
    return type(state).join([policy.new_state(1)]) is not None


def state_bytes(policy: EvictionPolicy, budget: int, heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of what a policy remembers of one row, beside its entries.

    What grows with the text, or with the entries (policies that set ``observes_entries``), is not in it.

    Args:
        policy: whose state it is.
        budget: B_max.
        heads: query heads, of all layers that share the state.
        head_dim: D.
        dtype: of the queries.
    """
    state = policy.new_state(1)
    if not policy.observes_entries:
        cos = torch.ones(1, 1, head_dim, dtype=dtype)
        rope = Rope(cos, torch.zeros_like(cos), ops.apply_half)
        state.observe(torch.zeros(1, heads, 1, head_dim, dtype=dtype), rope, [budget], Rows([0]), None)
    return state.nbytes
