"""What breaks for users elsewhere and must not here; one test for each complaint that concerns the cache."""

import subprocess
import sys

import pytest
import torch

from beaconkv import BoundedCache, EvictionSchedule, make_policy, ops
from beaconkv.cache import BoundedLayer
from beaconkv.types import AttentionParams, Rope
from tests.tiny import greedy, prompt, tiny

SMALL = dict(budget=40, protect=8)


def test_only_the_first_prompt_is_compressed_or_the_second_sees_the_firsts_state():
    model, a, b = tiny(), prompt(60, seed=1), prompt(45, seed=2)
    runs = []
    for inputs in (a, b, a):
        cache = BoundedCache(model, **SMALL)
        runs.append(greedy(model, inputs, cache, new_tokens=90))
        assert cache.stats.evictions > 10
    assert torch.equal(runs[0], runs[2])
    assert not torch.equal(runs[0], runs[1])


def test_wrong_positions_after_evictions():
    """The model must be told the number of tokens seen, whatever is stored."""
    model, used = tiny(), []
    handle = model.model.rotary_emb.register_forward_pre_hook(
        lambda module, args, kwargs: used.append(kwargs["position_ids"] if "position_ids" in kwargs else args[1]),
        with_kwargs=True,
    )
    try:
        cache = BoundedCache(model, **SMALL)
        greedy(model, prompt(50), cache, new_tokens=100)
    finally:
        handle.remove()
    assert torch.equal(torch.cat([p.flatten() for p in used]), torch.arange(149))
    assert cache.stats.evictions > 10
    assert cache.get_seq_length() == cache.stats.tokens_seen == 149
    assert cache.stats.entries < 40


def test_buffered_queries_all_turned_by_the_current_angle(monkeypatch):
    """What scores the entries: recent queries at their own positions, beacons at the current one."""
    n_recent, n_beacon, steps, dim = 4, 3, 24, 8
    layer = BoundedLayer(
        make_policy("beaconkv", n_recent=n_recent, n_beacon=n_beacon), EvictionSchedule(steps, prefix=0, protect=1)
    )
    before_rope, inv, used = torch.randn(1, 2, steps, dim), 0.5 ** torch.arange(dim // 2), {}

    def spy(queries, keys, params, query_positions, *rest):
        used.update(queries=queries[0], positions=query_positions[0].tolist())
        return observation_scores(queries, keys, params, query_positions, *rest)

    observation_scores = ops.observation_scores
    monkeypatch.setattr(ops, "observation_scores", spy)

    def turned(query, t):
        """(heads, dim) by hand, sharing nothing with ops.rope."""
        first, second = query.chunk(2, -1)
        cos, sin = (t * inv).cos(), (t * inv).sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    for t in range(steps):
        angle = torch.cat([t * inv, t * inv]).view(1, 1, -1)
        layer.append(torch.randn(1, 2, 1, dim), torch.randn(1, 2, 1, dim))
        query = turned(before_rope[0, :, t], t).view(1, 2, 1, dim)
        layer.observe(query, Rope(angle.cos(), angle.sin(), ops.apply_half), AttentionParams(1.0))
    now = steps - 1
    assert used["positions"] == [now] * n_beacon + list(range(steps - n_recent, steps))
    for i, t in enumerate(range(steps - n_recent, steps)):
        torch.testing.assert_close(used["queries"][:, n_beacon + i], turned(before_rope[0, :, t], t))
    past_at_now = torch.stack([turned(before_rope[0, :, t], now) for t in range(steps - n_recent)], 1)
    for head in range(2):
        for beacon in used["queries"][head, :n_beacon]:
            assert (past_at_now[head] - beacon).abs().amax(-1).min() < 1e-4


def test_a_batch_of_two_is_garbled_by_sums_over_the_batch_or_padding():
    model, inputs = tiny(), prompt(12, 70)
    together = greedy(model, inputs, BoundedCache(model, **SMALL), new_tokens=90)
    for row, length in enumerate((12, 70)):
        alone = {k: v[row : row + 1, 70 - length :] for k, v in inputs.items()}
        assert torch.equal(greedy(model, alone, BoundedCache(model, **SMALL), new_tokens=90)[0], together[row])


def test_keys_stored_once_for_each_query_head():
    model = tiny()
    cache = BoundedCache(model, **SMALL)
    greedy(model, prompt(50, 50), cache, new_tokens=90)
    config = model.config
    per_entry = 2 * config.num_key_value_heads * config.head_dim * 4
    assert cache.stats.kv_bytes == 2 * config.num_hidden_layers * 40 * per_entry
    assert cache.stats.formula_bytes == cache.stats.kv_bytes
    assert cache.layers[0].keys.shape[1] == config.num_key_value_heads


@pytest.mark.parametrize("score", [0.0, 1.0, 1e30])
def test_protected_tokens_evicted_on_a_tie(score, monkeypatch):
    """Everything ties, at whatever score a protected entry might have been given; it must still be there."""
    policy = make_policy("beaconkv")
    monkeypatch.setattr(type(policy), "score", lambda self, view, state: torch.full(view.positions.shape, score))
    layer = BoundedLayer(policy, EvictionSchedule(64, prefix=3, protect=9))
    one = Rope(torch.ones(1, 1, 4), torch.zeros(1, 1, 4), ops.apply_half)
    for t in range(300):
        layer.append(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4))
        layer.observe(torch.ones(1, 4, 1, 4), one, AttentionParams(0.5))
        held = layer.slab.held_positions()[0, 0].tolist()
        assert held[:3] == list(range(min(t + 1, 3)))
        assert held[-9:] == list(range(max(0, t - 8), t + 1))


def test_quality_falls_off_a_cliff_as_soon_as_anything_is_evicted():
    """With 95% of the cache kept, next-token probabilities stay close to the full cache's.

    Even here, where a random model spreads its attention over everything; a real model: tests/models.
    """
    model, ids = tiny("qwen3"), prompt(400, seed=3)["input_ids"]
    with torch.no_grad():
        full = model(ids).logits[0, 300:].log_softmax(-1)

        def divergence(budget_min):
            cache = BoundedCache(model, budget=300, budget_min=budget_min, protect=32)
            parts = [model(ids[:, :300], past_key_values=cache, use_cache=True).logits[:, -1:]]
            parts += [model(ids[:, t : t + 1], past_key_values=cache, use_cache=True).logits for t in range(300, 400)]
            assert cache.stats.evictions > 0
            bounded = torch.cat(parts, 1)[0, 1:].log_softmax(-1)
            return (full.exp() * (full - bounded)).sum(-1).mean()

        chance = (full.exp() * (full - full[torch.randperm(100)])).sum(-1).mean()
    losses = [divergence(share * 300 // 100) for share in (95, 70, 40, 15)]
    assert losses == sorted(losses)  # a slope, not a cliff
    assert losses[0] < 0.1 * chance


def test_budgets_alike_because_nothing_was_ever_compacted():
    model, inputs, held = tiny(), prompt(30), {}
    for budget in (48, 64, 4096):
        cache = BoundedCache(model, budget=budget, protect=8)
        greedy(model, inputs, cache, new_tokens=150)
        stats = cache.stats
        held[budget] = stats.entries
        assert (stats.evictions > 0) == (budget < 179)
        expected = 3 * 2 * (stats.tokens_seen - stats.entries)
        assert stats.entries_dropped == expected
        assert stats.peak_entries == min(budget, 179)
    assert held[48] < held[64] < held[4096] == 179


MEMORY = """
import torch
from beaconkv import BoundedCache
from tests.tiny import prompt, tiny
torch.set_num_threads(1)

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

model = tiny()
cache = BoundedCache(model, budget=256)
ids = prompt(20)["input_ids"]
with torch.inference_mode():
    for step in range(4000):
        ids = model(ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        if step == 600:
            first, bytes_then = resident(), cache.stats.kv_bytes + cache.stats.state_bytes
stats = cache.stats
config = model.config
formula = 2 * config.num_hidden_layers * config.num_key_value_heads * 256 * config.head_dim * 4
assert stats.tokens_seen == 4019 and stats.evictions > 100, stats
assert stats.kv_bytes == formula == stats.formula_bytes, (stats, formula)
assert stats.kv_bytes + stats.state_bytes == bytes_then
print(resident() - first)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")
def test_claimed_memory_is_not_freed():
    """4,000 tokens at budget 256: bytes equal the formula, resident memory stays flat."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", MEMORY], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < 4 << 20


def test_slabs_are_never_allocated_again():
    """The decode step writes in place: storage of keys, values, positions and queries stays where it is."""
    model = tiny()
    cache = BoundedCache(model, **SMALL)
    greedy(model, prompt(30), cache, new_tokens=2)

    def addresses():
        found = []
        for stack in cache._stacks:
            assert stack.is_stacked
            layer, state = stack.whole, stack.whole.state
            tensors = (
                layer.slab.keys,
                layer.slab.values,
                layer.slab.positions,
                state.history,
                state.recent,
                state.rope.cos,
            )
            found += [t.untyped_storage().data_ptr() for t in tensors]
        return found

    before = addresses()
    with torch.no_grad():
        for _ in range(200):
            model(torch.ones(1, 1, dtype=torch.int64), past_key_values=cache, use_cache=True)
    assert cache.stats.evictions > 30
    assert addresses() == before
