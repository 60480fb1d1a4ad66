"""Layers that take decode steps together keep what they would keep apart, under every policy."""

import gc
import weakref
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from beaconkv import EvictionSchedule, make_policy, ops, policies
from beaconkv.cache import BoundedLayer, LayerStack, eviction_steps, staggered
from beaconkv.policies.history import WholeHistoryPolicy
from beaconkv.policies.query_buffer import QueryBuffer
from beaconkv.policies.rpc import RPC
from beaconkv.types import AttentionParams, Rope

L, H, H_KV, D = 3, 4, 2, 8
CLASSES = {name: cls for name, cls in policies().items() if cls.evicts}


def rope_at(positions):
    angle = positions.unsqueeze(-1) / 50 ** (torch.arange(D // 2) / (D // 2))
    angle = torch.cat([angle, angle], -1)
    return Rope(angle.cos(), angle.sin(), ops.apply_half)


class Both:
    """The same layers in a stack and one by one, fed alike."""

    def __init__(self, policy, schedule, seed=0, sinks=False):
        self.generator = torch.Generator().manual_seed(seed)
        self.events, self.apart_events = [], []
        self.stack = LayerStack([BoundedLayer(policy, schedule, i, self.events.append) for i in range(L)])
        self.apart = [BoundedLayer(policy, schedule, i, self.apart_events.append) for i in range(L)]
        self.sinks = torch.randn(L, H, generator=self.generator) if sinks else [None] * L
        self.seen = None

    def randn(self, *shape):
        return torch.randn(*shape, generator=self.generator)

    def feed(self, batch, tokens, real=None):
        """One forward pass of new tokens; real (B, tokens) bool or None."""
        if self.seen is None:
            self.seen = torch.zeros(batch, dtype=torch.int64)
        taken = torch.ones(batch, tokens, dtype=torch.int64) if real is None else real.long()
        rope = rope_at(self.seen[:, None] + (taken.cumsum(1) - 1).clamp(min=0))
        self.seen += taken.sum(1)
        is_step = tokens == 1 and real is None and self.apart[0].is_allocated
        if not is_step:
            self.stack.unstack()
        for i in range(L):
            keys, values = self.randn(batch, H_KV, tokens, D), self.randn(batch, H_KV, tokens, D)
            queries, params = 3 * self.randn(batch, H, tokens, D), AttentionParams(D**-0.5, sinks=self.sinks[i])
            alone, own = self.apart[i], self.stack.layers[i]
            if alone.is_allocated and tokens > 1:
                for layer in (alone, own):
                    layer.extend_prompt(keys, taken.sum(1).tolist())
            if not own.is_allocated:
                self.stack.allocate(i, keys, values, taken.sum(1).tolist())
            expected = alone.append(keys, values, real)
            got = self.stack.append(i, keys, values) if is_step else own.append(keys, values, real)
            for a, b in ((got.keys, expected.keys), (got.values, expected.values), (got.valid, expected.valid)):
                assert (a is None) == (b is None)
                assert a is None or torch.equal(a, b)
            alone.observe(queries, rope, params)
            if is_step:
                self.stack.observe(i, queries, rope, params)
            else:
                own.observe(queries, rope, params)

    def select_rows(self, index):
        index = torch.tensor(index)
        self.stack.select_rows(index)
        for layer in self.apart:
            layer.select_rows(index)
        self.seen = self.seen[index]

    def check(self):
        self.stack.check_integrity()
        assert len(self.events) == len(self.apart_events)
        in_order = [
            sorted(events, key=lambda e: (e.now, e.rows, e.layer)) for events in (self.events, self.apart_events)
        ]
        for got, expected in zip(*in_order, strict=True):
            assert (got.layer, got.rows, got.now) == (expected.layer, expected.rows, expected.now)
            torch.testing.assert_close(got.scores, expected.scores, atol=1e-6, rtol=1e-5)
            for name in ("positions", "kept", "dropped"):
                assert torch.equal(getattr(got, name), getattr(expected, name))
        for own, alone in zip(self.stack.layers, self.apart, strict=True):
            assert own.slab.counts.state == alone.slab.counts.state
            assert torch.equal(own.slab.held_positions(), alone.slab.held_positions())
        counted = self.stack.counted
        assert sum(layer.entries_dropped for layer in counted) == sum(layer.entries_dropped for layer in self.apart)
        assert max(layer.peak_entries for layer in counted) == max(layer.peak_entries for layer in self.apart)
        assert self.stack.kv_bytes == sum(layer.slab.kv_bytes for layer in self.apart)


def ragged(lengths):
    longest = max(lengths)
    return None if min(lengths) == longest else torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("lengths", [[30], [3, 30, 61]])
def test_every_policy(name, lengths):
    both = Both(make_policy(name), EvictionSchedule(24, prefix=2, protect=5), sinks=name in ("beaconkv", "rkv"))
    both.feed(len(lengths), max(lengths), ragged(lengths))
    for _ in range(40):
        both.feed(len(lengths), 1)
    together = CLASSES[name].per_head and not issubclass(CLASSES[name], WholeHistoryPolicy)
    assert both.stack.is_stacked == together
    assert len(both.events) > 10 * L
    both.check()


@settings(max_examples=60)
@given(
    name=st.sampled_from(["beaconkv", "rkv", "h2o", "random_history", "tova", "streaming_llm", "kmeans_centroid"]),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    feeds=st.lists(
        st.one_of(
            st.integers(1, 3).map(lambda n: ("steps", 6 * n)),
            st.integers(2, 9).map(lambda n: ("tokens", n)),
            st.lists(st.integers(0, 2), min_size=1, max_size=3).map(lambda rows: ("rows", rows)),
        ),
        max_size=6,
    ),
    scope=st.sampled_from(["total", "output"]),
    sinks=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_order_of_events(name, lengths, feeds, scope, sinks, seed):
    both = Both(make_policy(name), EvictionSchedule(20, scope=scope, prefix=2, protect=5), seed, sinks)
    batch = len(lengths)
    both.feed(batch, max(lengths), ragged(lengths))
    for kind, what in feeds:
        if kind == "rows":
            rows = [row % batch for row in what]
            both.select_rows(rows)
            batch = len(rows)
        else:
            for _ in range(what if kind == "steps" else 1):
                both.feed(batch, 1 if kind == "steps" else what)
    both.check()


def test_layers_that_differ_stay_apart():
    """In how they compute logits, in their rotation, or in their shape: then nothing is joined, and nothing breaks."""

    def fed(scaling=(1.0, 1.0), softcap=(None, None), angles=(None, None), dims=(D, D)):
        layers = [BoundedLayer(make_policy("beaconkv"), EvictionSchedule(16, protect=4), i) for i in range(2)]
        stack, rope = LayerStack(layers), rope_at(torch.zeros(1, 1))
        for step in range(40):
            for i in range(2):
                own = angles[i] or rope
                new = [torch.randn(1, h, 1, dims[i]) for h in (H_KV, H_KV, H)]
                if step == 0:
                    stack.allocate(i, *new[:2], [1])
                stack.append(i, *new[:2]) if step else layers[i].append(*new[:2])
                observe = layers[i].observe if step == 0 else (lambda *a, i=i: stack.observe(i, *a))
                observe(new[2], own, AttentionParams(scaling[i], softcap[i]))
        stack.check_integrity()
        assert layers[0].num_evictions == layers[1].num_evictions > [4]
        return stack

    assert fed().is_stacked
    assert not fed(scaling=(1.0, 0.5)).is_stacked
    assert not fed(softcap=(None, 5.0)).is_stacked
    assert fed(softcap=(5.0, 5.0)).is_stacked
    other = replace(rope_at(torch.ones(1, 1)), table=1)
    assert not fed(angles=(None, other)).is_stacked
    wide = fed(dims=(D, 2 * D))
    assert not wide.is_stacked
    wide.select_rows(torch.tensor([0, 0]))
    wide.check_integrity()


def test_copies_are_independent():
    both = Both(make_policy("beaconkv"), EvictionSchedule(24, prefix=2, protect=5))
    both.feed(2, 30)
    for _ in range(20):
        both.feed(2, 1)
    stack = deepcopy(both.stack)
    held = [layer.slab.held_positions().clone() for layer in stack.layers]
    storages = {layer.slab.keys.untyped_storage().data_ptr() for layer in stack.layers}
    assert storages == {stack.whole.slab.keys.untyped_storage().data_ptr()}
    assert storages.isdisjoint({both.stack.whole.slab.keys.untyped_storage().data_ptr()})
    for _ in range(20):
        both.feed(2, 1)
    assert all(torch.equal(layer.slab.held_positions(), old) for layer, old in zip(stack.layers, held, strict=True))
    both.check()


def test_reset_forgets_everything():
    both = Both(make_policy("beaconkv"), EvictionSchedule(24, prefix=2, protect=5))
    both.feed(2, 30)
    both.feed(2, 1)
    both.stack.reset()
    assert not both.stack.is_allocated
    assert both.stack.kv_bytes == both.stack.state_bytes == 0
    assert all(layer.entries_dropped == layer.peak_entries == 0 for layer in both.stack.counted)


@given(
    budget=st.integers(8, 30),
    cycle=st.integers(2, 7),
    phases=st.integers(1, 9),
    prompt=st.integers(1, 60),
    steps=st.integers(1, 60),
)
def test_staggered_layers_are_evicted_at_different_steps(budget, cycle, phases, prompt, steps):
    schedule = EvictionSchedule(budget, max(budget - cycle, 1), prefix=1, protect=0)
    cycle = schedule.budget - schedule.budget_min
    spread = staggered(schedule, phases)
    assert [s.early for s in spread] == sorted({s.early for s in spread})
    assert len(spread) == min(phases, cycle)
    in_steps = []
    for own in spread:
        layer = BoundedLayer(make_policy("streaming_llm"), own)
        seen, new = [], lambda n: (torch.randn(1, 1, n, 4), torch.randn(1, 1, n, 4))
        for step in range(steps + 1):
            n = prompt if step == 0 else 1
            before = layer.num_evictions[:]
            layer.append(*new(n))
            rope = Rope(torch.ones(1, n, 4), torch.zeros(1, n, 4), ops.apply_half)
            layer.observe(torch.randn(1, 1, n, 4), rope, AttentionParams(1.0))
            layer.check_integrity()
            assert layer.peak_entries <= max(budget, prompt)
            if layer.num_evictions != (before or [0]):
                seen.append(prompt + step - 1)
        assert seen == eviction_steps(own, prompt, prompt + steps)
        in_steps.append({step for step in seen if step >= prompt})
    late = {prompt}  # a prompt that just fits may bring the first ones together
    for i, own in enumerate(in_steps):
        for other in in_steps[:i]:
            assert (own & other) <= late
    if steps > 3 * cycle and prompt + steps >= budget:
        assert all(in_steps)


class Global(RPC):
    """Not registered: its score looks at all heads at once, and it says nothing of it."""

    def score(self, view, state):
        return super().score(view, state).mean(1, keepdim=True).expand(-1, view.keys.shape[1], -1)


def test_whoever_overrides_a_method_promises_anew():
    assert RPC.per_head
    assert not Global.per_head
    both = Both(Global(), EvictionSchedule(24, prefix=2, protect=5))
    both.feed(1, 30)
    for _ in range(20):
        both.feed(1, 1)
    assert not both.stack.is_stacked
    both.check()


class Counting(QueryBuffer):
    """Has a memory of its own, which its parent does not know how to join."""


def test_a_state_of_a_subclass_is_not_joined_by_its_parent():
    assert QueryBuffer.stack([QueryBuffer(1, 2, 2, 8)]) is not None
    assert Counting.stack([Counting(1, 2, 2, 8)]) is None


def test_a_slab_is_freed_with_its_stack_and_forgotten_by_it():
    both = Both(make_policy("beaconkv"), EvictionSchedule(24, prefix=2, protect=5))
    both.feed(2, 30)
    both.feed(2, 1)
    gc.collect()
    gc.disable()
    try:
        slab = weakref.ref(both.stack.whole.slab.keys)
        both.stack.reset()
        assert slab() is None
        both.stack.allocate(0, torch.zeros(1, H_KV, 1, D), torch.zeros(1, H_KV, 1, D), [1])
        slab = weakref.ref(both.stack.whole.slab.keys)
        both.stack = None
        assert slab() is None
    finally:
        gc.enable()


def test_stagger_is_refused_by_name():
    with pytest.raises(ValueError, match="stagger must be an integer >= 1, got 0"):
        staggered(EvictionSchedule(24, protect=4), 0)
    with pytest.raises(ValueError, match="stagger=2 has no meaning without a budget"):
        staggered(EvictionSchedule(None), 2)
    with pytest.raises(ValueError, match="early=3 must be less than budget - budget_min = 3"):
        EvictionSchedule(24, 21, protect=4, early=3)
