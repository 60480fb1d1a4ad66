"""What H2O adds up, and what that costs."""

from importlib import import_module

import pytest
import torch

from beaconkv import EvictionSchedule, make_policy, ops
from beaconkv.cache import BoundedLayer
from beaconkv.types import AttentionParams, Rope
from tests.policies.scalar import Method
from tests.policies.test_against_formula import compare


def test_a_prompt_in_blocks_gives_the_same(monkeypatch):
    monkeypatch.setattr(import_module("beaconkv.policies.h2o"), "BLOCK", 7)
    error, evictions = compare(make_policy("h2o"), Method(kind="accumulated"), 2)
    assert error < 2e-5
    assert evictions > 15


def layer_of(prompts, budget=32, **schedule):
    layer = BoundedLayer(make_policy("h2o"), EvictionSchedule(budget, prefix=2, protect=4, **schedule))
    longest = max(prompts)
    real = torch.arange(longest) >= torch.tensor([[longest - p] for p in prompts])

    def feed(n, mask=None):
        rope = Rope(torch.ones(1, n, 4), torch.zeros(1, n, 4), ops.apply_half)
        keys = torch.randn(len(prompts), 2, n, 4)
        layer.append(keys, keys, mask)
        layer.observe(torch.randn(len(prompts), 4, n, 4), rope, AttentionParams(0.5))

    feed(longest, None if real.all() else real)
    return layer, feed


def test_one_tensor_of_as_many_slots_as_entries():
    layer, feed = layer_of([20, 9, 31])
    sums = layer.state.sums
    assert sums.shape == (3, 2, 32)
    assert layer.state.nbytes == 4 * 3 * 2 * 32
    for _ in range(100):
        feed(1)
    assert layer.state.sums is sums
    assert min(layer.num_evictions) > 10


@pytest.mark.parametrize(
    ("schedule", "slots"),
    [({}, 32), ({"growth": 5}, 32), ({"prefill_chunk": 16}, 32), ({"scope": "output"}, 232)],
    ids=str,
)
def test_a_prompt_longer_than_the_budget_leaves_no_longer_tensor(schedule, slots):
    layer, feed = layer_of([200, 9, 31], **schedule)
    sums = layer.state.sums
    assert sums.shape[2] == slots
    feed(1)
    assert layer.state.sums is sums
    layer.check_integrity()


def test_each_query_gives_as_much_as_it_has_heads():
    """Weights of one query sum to 1 per head, so nothing may be lost or counted twice before an eviction."""
    layer, feed = layer_of([20, 9])
    for _ in range(6):
        feed(1)
    total = layer.state.sums.sum(-1)  # (B, H_kv), 2 heads in each group
    assert total.flatten().tolist() == pytest.approx([2 * 26.0] * 2 + [2 * 15.0] * 2, rel=1e-5)
    for row, length in enumerate(layer.slab.lengths):
        assert not layer.state.sums[row, :, length:].any()


def test_ragged_rows_are_observed_in_one_go(monkeypatch):
    layer, feed = layer_of([20, 9, 13, 17])
    calls = []
    weights = ops.attention_weights
    monkeypatch.setattr(ops, "attention_weights", lambda *a: calls.append(a[0].shape[0]) or weights(*a))
    feed(1)
    assert calls == [4]
