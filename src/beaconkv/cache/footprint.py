"""Bytes that a policy remembers of a row, measured on states that have seen a text of that length."""

from __future__ import annotations

import torch

from .. import ops
from ..policies import EvictionPolicy, LayerState
from ..types import AttentionParams, CacheView, Rope, Rows
from .counts import RowCounts


def can_stack(policy: EvictionPolicy) -> bool:
    """Whether the policy can be shown the stacked heads of several layers."""
    state = policy.new_state(1)
    return type(state).stack([policy.new_state(1)]) is not None


def state_bytes(
    policy: EvictionPolicy,
    budget: int,
    length: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
) -> int:
    """Bytes of the policy state of one row, without its entries.

    A state's tensors have heads and head dimensions among their sides, or not: bytes are linear in both. So four
    small states, of one and two heads (KV heads, where entries are observed) with two and four dimensions, give those
    of a large one, however long the text.

    Args:
        policy: whose state it is.
        budget: B_max.
        length: tokens the row has seen.
        heads, kv_heads: H and H_kv, of all layers that share the state.
        head_dim: D.
        dtype: dtype of the queries.
    """

    units, group = (kv_heads, heads // kv_heads) if policy.observes_entries else (heads, 1)

    def at_dim(dim: int) -> int:
        one, two = (_seen(policy, budget, length, unit, unit * group, dim, dtype).nbytes for unit in (1, 2))
        return one + (units - 1) * (two - one)

    two, four = at_dim(2), at_dim(4)
    return two + (head_dim - 2) * (four - two) // 2


def _seen(
    policy: EvictionPolicy, budget: int, length: int, kv_heads: int, heads: int, dim: int, dtype: torch.dtype
) -> LayerState:
    """A state that has seen a text of zeros.

    Queries come as one prompt. Where entries are observed, the state sees the newest query with all entries there
    are: a prompt's queries against its entries would take the square of its length.
    """
    state = policy.new_state(1)
    tokens = 1 if policy.observes_entries else length
    cos = torch.ones(1, 1, dim, dtype=dtype)
    rope = Rope(cos.expand(-1, tokens, -1), torch.zeros_like(cos).expand(-1, tokens, -1), ops.apply_half)
    queries = torch.zeros(1, 1, 1, 1, dtype=dtype).expand(1, heads, tokens, dim)
    held = min(length, budget)
    view = None
    if policy.observes_entries:
        entries = torch.zeros(1, kv_heads, held, dim, dtype=dtype)
        positions = torch.arange(length - held, length, dtype=torch.int32).expand(1, kv_heads, -1)
        now = torch.tensor([length - 1])
        view = CacheView(entries, entries, positions, now, rope, AttentionParams(1.0), Rows([0]))
    state.observe(queries, rope, [budget - held], Rows([0]), view)
    return state


def row_bytes() -> int:
    """Bytes that are counted of one row on the device."""
    return RowCounts(torch.zeros(1)).nbytes
