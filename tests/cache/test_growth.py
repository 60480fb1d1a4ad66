"""A cache that becomes larger with each eviction (RPC), against a program that only counts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from beaconkv import EvictionSchedule, make_policy, ops, parse_policy
from beaconkv.cache import BoundedLayer
from beaconkv.types import AttentionParams, Rope


def run(policy, schedule, prompts, steps, check):
    """Feeds rows of such prompts; check(layer, events) after each pass."""
    events, dropped = [], 0
    layer = BoundedLayer(policy, schedule, on_evict=events.append)
    longest = max(prompts)
    pad = torch.tensor([longest - p for p in prompts])
    real = torch.arange(longest) >= pad.unsqueeze(1)
    for m in [longest, *[1] * steps]:
        rope = Rope(torch.ones(1, m, 4), torch.zeros(1, m, 4), ops.apply_half)
        keys = torch.randn(len(prompts), 2, m, 4)
        layer.append(keys, keys, real if m == longest and not real.all() else None)
        layer.observe(torch.randn(len(prompts), 4, m, 4), rope, AttentionParams(0.5))
        layer.check_integrity()
        check(layer, events)
        dropped += sum(event.dropped.numel() for event in events)
        assert layer.entries_dropped == dropped
        events.clear()
    return layer


class Counter:
    """Entries of one row: the published rule, one token at a time."""

    def __init__(self, schedule, prompt):
        self.full, self.kept, self.growth = schedule.budget, schedule.budget_min, schedule.growth
        if schedule.scope == "output":
            self.full, self.kept = self.full + prompt, self.kept + prompt
        self.length, self.evictions = 0, 0

    def add(self, tokens):
        """Whether the row is evicted."""
        self.length += tokens
        if self.length < self.full:
            return False
        self.length = self.kept
        self.full, self.kept = self.full + self.growth, self.kept + self.growth
        self.evictions += 1
        return True


@given(
    budget=st.integers(8, 24),
    left=st.integers(4, 7),
    growth=st.integers(0, 9),
    scope=st.sampled_from(["total", "output"]),
    prompts=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    name=st.sampled_from(["rpc", "beaconkv", "h2o", "streaming_llm"]),
)
def test_lengths_equal_counting(budget, left, growth, scope, prompts, name):
    schedule = EvictionSchedule(budget, left, scope, prefix=1, protect=2, growth=growth)
    counters = [Counter(schedule, p) for p in prompts]
    new = [list(prompts)]

    def check(layer, events):
        tokens = new[0]
        due = [row for row, counter in enumerate(counters) if counter.add(tokens[row])]
        new[0] = [1] * len(prompts)
        assert sorted(row for event in events for row in event.rows) == due
        assert layer.slab.lengths == [c.length for c in counters]
        assert layer.num_evictions == [c.evictions for c in counters]
        assert (
            layer.slab.keys.shape[2]
            == max(c.full for c in counters)
            == layer.formula_bytes // (layer.slab.bytes_per_slot)
        )
        for event in events:
            assert len({counters[row].evictions for row in event.rows}) == 1 or growth == 0

    run(make_policy(name), schedule, prompts, 70, check)


def test_the_slab_grows_only_at_an_eviction():
    def check(layer, events):
        slots = layer.slab.keys.shape[2]
        assert slots == sizes[-1] or events
        sizes.append(slots)

    sizes = [30]
    schedule = EvictionSchedule(30, 10, prefix=2, protect=4, growth=5)
    run(make_policy("rpc", n_recent=4), schedule, [6, 17], 100, check)
    assert sizes[-1] > 45


def test_rows_without_growth_may_differ_in_evictions():
    """They are one group as before; with growth they are not."""

    def groups(growth):
        seen = []
        schedule = EvictionSchedule(16, 8, prefix=1, protect=2, growth=growth)
        run(make_policy("recent"), schedule, [20, 8], 40, lambda layer, events: seen.extend(events))
        return max(len(event.rows) for event in seen)

    assert groups(0) == 2
    assert groups(3) == 1


@pytest.mark.parametrize(
    ("spec", "budget", "budget_min"),
    [("growing-1024", 1024, 256), ("growing-4096", 4096, 1024), ("code-1024", 1056, 288), ("code-4096", 4128, 1056)],
)
def test_presets_of_rpc(spec, budget, budget_min):
    spec = parse_policy(f"rpc:{spec}")
    schedule = spec.schedule()
    assert (schedule.budget, schedule.budget_min, schedule.scope, schedule.protect) == (
        budget, budget_min, "output", 32,
    )  # fmt: skip
    interval = budget - budget_min + schedule.growth
    assert [schedule.full_at(7, k) for k in range(3)] == [7 + budget + k * interval // 4 for k in range(3)]
    assert [schedule.kept_for(7, k) for k in range(3)] == [7 + budget_min + k * interval // 4 for k in range(3)]


def test_refusals():
    with pytest.raises(ValueError, match="growth must be an integer >= 0, got -1"):
        EvictionSchedule(64, growth=-1)
    with pytest.raises(ValueError, match="growth=3 has no meaning without a budget"):
        EvictionSchedule(None, growth=3)


def test_rows_of_equal_length_and_tokens_keep_their_own_number_of_evictions():
    """One was evicted twice, the other once of as many entries; then they change places."""
    layer = BoundedLayer(make_policy("streaming_llm"), EvictionSchedule(16, 8, prefix=1, protect=2))
    for counts in ((30, 41), (11, 0)):
        longest = max(counts)
        real = torch.arange(longest) >= torch.tensor([[longest - count] for count in counts])
        rope = Rope(torch.ones(1, longest, 4), torch.zeros(1, longest, 4), ops.apply_half)
        keys = torch.randn(2, 2, longest, 4)
        layer.append(keys, keys, real)
        layer.observe(torch.randn(2, 4, longest, 4), rope, AttentionParams(0.5))
    assert (layer.slab.lengths, layer.slab.num_seen, layer.num_evictions) == ([8, 8], [41, 41], [2, 1])
    layer.select_rows(torch.tensor([1, 0]))
    layer.check_integrity()
    assert layer.num_evictions == [1, 2]


def test_rows_of_equal_length_but_other_evictions_are_not_alike():
    """Turns of different length bring two rows to one length and one position, and to different next evictions."""
    layer = BoundedLayer(make_policy("recent"), EvictionSchedule(16, 8, prefix=1, protect=2, growth=3))

    def feed(*counts):
        longest = max(counts)
        real = torch.arange(longest) >= torch.tensor([[longest - c] for c in counts])
        rope = Rope(torch.ones(1, longest, 4), torch.zeros(1, longest, 4), ops.apply_half)
        keys = torch.randn(2, 2, longest, 4)
        layer.append(keys, keys, real)
        layer.observe(torch.randn(2, 4, longest, 4), rope, AttentionParams(0.5))
        layer.check_integrity()
        return layer.slab.lengths, layer.num_evictions

    assert feed(30, 38) == ([8, 8], [1, 1])
    assert feed(11, 3) == ([11, 11], [2, 1])
    assert layer.slab.num_seen == [41, 41]
    assert feed(8, 8) == ([19, 11], [2, 2])
