"""A bounded cache made from a spec: what the spec recommends, what the caller says, and that text comes out."""

import pytest

from beaconkv import BoundedCache, make_policy, policies
from tests.tiny import greedy, prompt, tiny

SMALL = dict(budget=48, protect=8)
EVICTING = [name for name, cls in policies().items() if cls.evicts]


def test_a_spec_recommends_and_the_caller_wins():
    model = tiny()
    schedule = BoundedCache(model, "rkv:code", 512).schedule
    assert (schedule.prefix, schedule.protect, schedule.budget_min) == (0, 8, 384)
    schedule = BoundedCache(model, "rkv:code", 100, budget_min=80, prefix=2, scope="output", growth=3).schedule
    assert (schedule.prefix, schedule.protect, schedule.budget_min) == (2, 8, 80)
    assert (schedule.scope, schedule.growth) == ("output", 3)
    schedule = BoundedCache(model, "rpc:growing-1024").schedule
    assert (schedule.budget, schedule.budget_min, schedule.growth, schedule.scope) == (1024, 256, 256, "output")
    schedule = BoundedCache(model, make_policy("h2o"), 64).schedule
    assert (schedule.prefix, schedule.protect, schedule.budget_min) == (4, 28, 56)


def test_a_schedule_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="every=128 steps, which budget=64 does not allow"):
        BoundedCache(tiny(), "rkv:paper", 64)
    with pytest.raises(ValueError, match="budget must be None or 1024, got 512"):
        BoundedCache(tiny(), "rpc:growing-1024", 512)


@pytest.mark.parametrize("name", EVICTING)
def test_a_padded_batch_gives_each_row_what_it_gets_alone(name):
    model, inputs = tiny("qwen3"), prompt(60, 9, 31)
    cache = BoundedCache(model, name, **SMALL)
    together = greedy(model, inputs, cache, new_tokens=60)
    cache.check_integrity()
    assert cache.stats.evictions > 5
    for row, length in enumerate((60, 9, 31)):
        alone = {k: v[row : row + 1, -length:] for k, v in inputs.items()}
        assert greedy(model, alone, BoundedCache(model, name, **SMALL), new_tokens=60).equal(together[row : row + 1])


def test_a_growing_cache_writes_text():
    model = tiny()
    cache = BoundedCache(model, "rpc", 24, budget_min=12, growth=6, scope="output", protect=4)
    greedy(model, prompt(30, 11), cache, new_tokens=120)
    cache.check_integrity()
    stats = cache.stats
    # Full after 24 tokens, and after 18 more each time.
    assert stats.evictions == 1 + (119 - 24) // 18
    assert stats.kv_bytes == stats.formula_bytes
